"""The module that all tools trace: cross-attention with 21 intermediate tensors."""

import math

import torch
from torch import Tensor, nn

B, H, Lq, Lk, D = 2, 8, 10, 16, 512


class CrossAttention(nn.Module):
    """Queries from `q`, keys and values from `kv`; keys that `visible` marks False are padding."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(0.1)

    def forward(self, q: Tensor, kv: Tensor, visible: Tensor) -> Tensor:
        """Attend."""
        B, Lq, D = q.shape
        Lk = kv.shape[1]
        query = self.Wq(q).view(B, Lq, self.H, self.Dk).transpose(1, 2)
        key = self.Wk(kv).view(B, Lk, self.H, self.Dk).transpose(1, 2)
        value = self.Wv(kv).view(B, Lk, self.H, self.Dk).transpose(1, 2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        mask = visible[:, None, None, :]
        masked = scores.masked_fill(~mask, -math.inf)
        weights = masked.softmax(dim=-1)
        dropped = self.dropout(weights)
        context = dropped @ value
        merged = context.transpose(1, 2).reshape(B, Lq, D)
        return self.Wo(merged)


def build() -> tuple[CrossAttention, tuple[Tensor, Tensor, Tensor]]:
    """Return the module in eval mode, and inputs for it."""
    visible = torch.arange(Lk) < torch.tensor([[Lk], [Lk - 3]])
    return CrossAttention(D, H).eval(), (torch.randn(B, Lq, D), torch.randn(B, Lk, D), visible)
