"""Self-attention with a deliberate mistake: it runs, trains and has every shape right, but `check` finds the mistake.

    attnshape check examples/mistakes.py:SelfAttention --init "D, H" --input "x: B L D"

Trace it:

    attnshape trace examples/mistakes.py:SelfAttention --init "D, H" --input "x: B L D"
"""

import math

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Each token attends to all; the scores are scaled by the model's width, not by that of a head."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        qkv = self.Wqkv(x).view(B, L, 3, self.H, self.Dk)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)

        scores = query @ key.transpose(-2, -1) / math.sqrt(D)
        weights = scores.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).reshape(B, L, D)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = SelfAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
