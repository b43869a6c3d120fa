r"""Cross-attention: queries from one sequence, keys and values from another.

Trace it:

    attnshape trace examples/cross_attention.py:Cross --init "D, H" --input "q: B Lq D" --input "kv: B Lk D" \
        --expect "scores: B H Lq Lk" --expect "output: B Lq D"
"""

import math

import torch
from torch import Tensor, nn


class Cross(nn.Module):
    """Every token of `q` attends to all tokens of `kv`."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        B, Lq, D = q.shape
        Lk = kv.shape[1]
        query = self.Wq(q).view(B, Lq, self.H, self.Dk).transpose(1, 2)
        key = self.Wk(kv).view(B, Lk, self.H, self.Dk).transpose(1, 2)
        value = self.Wv(kv).view(B, Lk, self.H, self.Dk).transpose(1, 2)

        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        weights = scores.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).reshape(B, Lq, D)
        output = self.Wo(merged)
        return output, weights


if __name__ == "__main__":
    cross = Cross(d_model=512, n_heads=8)
    output, weights = cross(torch.randn(2, 10, 512), torch.randn(2, 16, 512))
    print(tuple(output.shape), tuple(weights.shape))
