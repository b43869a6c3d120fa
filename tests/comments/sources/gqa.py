"""Grouped-query attention (Ainslie et al., 2023), LLaMA flavour."""
import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """torch.repeat_interleave(x, dim=2, repeats=n_rep)"""
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]  # (bs, slen, n_kv_heads, 1, head_dim)
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)  # (bs, slen, n_kv_heads * n_rep, head_dim)
    )


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, head_dim: int):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = head_dim
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None):
        bsz, seqlen, dim = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)

        xq = xq.view(bsz, seqlen, self.n_heads, self.head_dim)  # (bsz, seqlen, n_heads, head_dim)
        xk = xk.view(bsz, seqlen, self.n_kv_heads, self.head_dim)  # (bsz, seqlen, n_kv_heads, head_dim)
        xv = xv.view(bsz, seqlen, self.n_kv_heads, self.head_dim)

        # repeat k/v heads if n_kv_heads < n_heads
        keys = repeat_kv(xk, self.n_rep)  # (bsz, seqlen, n_heads, head_dim)
        values = repeat_kv(xv, self.n_rep)  # (bsz, seqlen, n_heads, head_dim)

        xq = xq.transpose(1, 2)  # (bsz, n_heads, seqlen, head_dim)
        keys = keys.transpose(1, 2)  # type: ignore[assignment]
        values = values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask  # (bsz, n_heads, seqlen, seqlen)
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)  # (bsz, n_heads, seqlen, head_dim)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)  # concat (n_heads, in order)
        return self.wo(output)  # bsz x seqlen x dim


def case(B, L, D, H, Hkv, Dk):
    # H query heads per key/value head (see fig. 2)
    mask = torch.full((L, L), float("-inf")).triu(1)
    return Attention(D, Hkv * H, Hkv, Dk), (torch.randn(B, L, D), mask)
