"""Rotary position embedding: queries and keys are rotated by angles that grow with their position (Dk is even).

Trace it:

    attnshape trace examples/rotary.py:RotaryAttention --init "D, H" --input "x: B L D"
"""

import math

import torch
from torch import Tensor, nn


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of features (i, i + Dk/2) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RotaryAttention(nn.Module):
    """Self-attention whose scores depend on positions only through the distance of two tokens."""

    def __init__(self, d_model: int, n_heads: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.base = base
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.Wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        qkv = self.Wqkv(x).view(B, L, 3, self.H, self.Dk)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(dim=0)

        position = torch.arange(L, device=x.device, dtype=x.dtype)
        exponent = torch.arange(0, self.Dk, 2, device=x.device, dtype=x.dtype) / self.Dk
        frequency = self.base**-exponent
        angle = torch.outer(position, frequency)
        cos = angle.cos()
        sin = angle.sin()
        rotated_query = rotate(query, cos, sin)
        rotated_key = rotate(key, cos, sin)

        scores = rotated_query @ rotated_key.transpose(-2, -1) / math.sqrt(self.Dk)
        weights = scores.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).reshape(B, L, D)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = RotaryAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
