"""One projection for queries, keys and values, whose result is split in three.

Trace it:

    attnshape trace examples/fused_qkv.py:FusedSelfAttention --init "D, H" --input "x: B L D"
"""

import torch
from torch import Tensor, nn


class FusedSelfAttention(nn.Module):
    """Self-attention whose three projections are one matrix product."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        qkv = self.Wqkv(x)
        q, k, v = qkv.chunk(3, dim=-1)
        query = q.view(B, L, self.H, self.Dk).transpose(1, 2)
        key = k.view(B, L, self.H, self.Dk).transpose(1, 2)
        value = v.view(B, L, self.H, self.Dk).transpose(1, 2)

        scores = query @ key.mT * self.Dk**-0.5
        weights = scores.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).flatten(start_dim=2)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = FusedSelfAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
