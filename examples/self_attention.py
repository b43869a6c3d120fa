"""Causal self-attention, with the mask registered as a buffer.

Trace it:

    attnshape trace examples/self_attention.py:CausalSelfAttention --init "D, H" --input "x: B L D"
"""

import math

import torch
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """Each token attends to itself and to the tokens before it."""

    causal: Tensor

    def __init__(self, d_model: int, n_heads: int, max_length: int = 1024) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)
        causal = torch.ones(max_length, max_length, dtype=torch.bool).tril()
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query = self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        key = self.Wk(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        value = self.Wv(x).view(B, L, self.H, self.Dk).transpose(1, 2)

        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        visible = self.causal[:L, :L]
        masked = scores.masked_fill(~visible, -math.inf)
        weights = masked.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).contiguous().view(B, L, D)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = CausalSelfAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
