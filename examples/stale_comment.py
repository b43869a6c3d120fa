"""Self-attention with a shape comment on every line; one of them is stale, and `check` finds it.

    attnshape check examples/stale_comment.py:SelfAttention --init "D, H" --input "x: B L D" --select AS0

Trace it:

    attnshape trace examples/stale_comment.py:SelfAttention --init "D, H" --input "x: B L D"
"""

import math

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Each token attends to all."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.nh = n_heads
        self.hs = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wkv = nn.Linear(d_model, 2 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        query = self.Wq(x).view(B, T, self.nh, self.hs).transpose(1, 2)  # (B, nh, T, hs)
        key, value = self.Wkv(x).view(B, T, 2, self.nh, self.hs).permute(2, 0, 3, 1, 4)  # (B, T, nh, hs) each

        scores = query @ key.transpose(-2, -1)  # (B, nh, T, hs) @ (B, nh, hs, T) -> (B, nh, T, T)
        weights = (scores / math.sqrt(self.hs)).softmax(dim=-1)  # (B, nh, T, T)
        context = weights @ value  # (B, nh, T, hs)

        merged = context.transpose(1, 2).reshape(B, T, C)  # (B, T, nh*hs)
        return self.Wo(merged)  # (B, T, C)


if __name__ == "__main__":
    attention = SelfAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
