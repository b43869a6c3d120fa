from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor


class MHA(nn.Module):
    """Multi-head attention, used for both (self and cross)."""

    def __init__(self, d_model: int, h: int):
        super().__init__()
        self.h = h
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, kv: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        def split_heads(x):
            # (batch, len, d_model) -> (batch, h, len, d_k)
            batch, len, d_model = x.size()
            return x.view(batch, len, self.h, d_model // self.h).transpose(1, 2)

        batch, q_len, d_model = q.size()
        h = self.h
        d_k = d_model // h
        k_len = kv.size(1)
        Q = split_heads(self.q(q))   # (batch, h, q_len, d_k)
        K = split_heads(self.k(kv))  # (batch, h, k_len, d_k)
        V = split_heads(self.v(kv))  # (batch, h, k_len, d_k)
        A = Q @ K.transpose(2, 3)    # (batch, h, q_len, k_len)
        A = A / d_k ** 0.5           # (not d_model)
        if mask is not None:
            A = A.masked_fill(mask, -1e9)
        A = torch.softmax(A, dim=-1)
        Z = A @ V                    # (batch, h, q_len, d_k)
        Z = Z.transpose(1, 2)        # (batch, q_len, h, d_k)
        Z = Z.reshape(batch, q_len, d_model)
        return self.o(Z)             # (batch, q_len, d_model)


class DecoderLayer(nn.Module):
    def __init__(self, d_model: int, h: int, ratio: int = 2):
        super().__init__()
        self.self_attn = MHA(d_model, h)
        self.cross_attn = MHA(d_model, h)
        self.ff = nn.Sequential(
            nn.Linear(d_model, ratio * d_model),
            nn.ReLU(),
            nn.Linear(ratio * d_model, d_model),
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(3)])  # [self, cross, ff]

    @staticmethod
    def subsequent_mask(n):
        # 1s above the diagonal, e.g. [[0, 1], [0, 0]] for n = 2
        return torch.ones(1, 1, n, n).triu(1).bool()  # (1, 1, n, n)

    def forward(self, y: Tensor, memory: Tensor) -> Tensor:
        batch, tgt_len, d_model = y.shape
        src_len = memory.shape[1]
        mask = self.subsequent_mask(tgt_len)  # (1, 1, tgt_len, tgt_len)
        y = self.norms[0](y + self.self_attn(y, y, mask))  # post-norm (as in the paper)
        # memory: (batch, src_len, d_model)
        y = self.norms[1](y + self.cross_attn(y, memory))  # (batch, tgt_len, d_model)
        return self.norms[2](y + self.ff(y))
