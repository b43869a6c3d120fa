"""Grouped-query attention: H/Hkv query heads share one key/value head (Hkv divides H).

Trace it:

    attnshape trace examples/gqa.py:GroupedQueryAttention --init "D, H, Hkv" --input "x: B L D"
"""

import math

import torch
from torch import Tensor, nn


class GroupedQueryAttention(nn.Module):
    """Self-attention with fewer key/value heads than query heads."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Hkv = n_kv_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model, bias=False)
        self.Wk = nn.Linear(d_model, n_kv_heads * self.Dk, bias=False)
        self.Wv = nn.Linear(d_model, n_kv_heads * self.Dk, bias=False)
        self.Wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query = self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        kv_key = self.Wk(x).view(B, L, self.Hkv, self.Dk).transpose(1, 2)
        kv_value = self.Wv(x).view(B, L, self.Hkv, self.Dk).transpose(1, 2)

        G = self.H // self.Hkv
        key = kv_key.repeat_interleave(G, dim=1)
        value = kv_value.repeat_interleave(G, dim=1)

        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        weights = scores.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).reshape(B, L, D)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = GroupedQueryAttention(d_model=512, n_heads=8, n_kv_heads=4)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
