"""Attention in einsum notation: no view, no transpose, one letter for each axis.

Trace it:

    attnshape trace examples/einsum_style.py:EinsumAttention --init "D, H" --input "x: B L D"
"""

import torch
from torch import Tensor, einsum, nn


class EinsumAttention(nn.Module):
    """Self-attention whose weights keep heads and head width as axes of their own."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        d_head = d_model // n_heads
        self.scale = d_head**-0.5
        self.Wq = nn.Parameter(torch.randn(d_model, n_heads, d_head) * d_model**-0.5)
        self.Wk = nn.Parameter(torch.randn(d_model, n_heads, d_head) * d_model**-0.5)
        self.Wv = nn.Parameter(torch.randn(d_model, n_heads, d_head) * d_model**-0.5)
        self.Wo = nn.Parameter(torch.randn(n_heads, d_head, d_model) * d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        query = einsum("bld,dhk->bhlk", x, self.Wq)
        key = einsum("bld,dhk->bhlk", x, self.Wk)
        value = einsum("bld,dhv->bhlv", x, self.Wv)

        scores = einsum("bhqk,bhsk->bhqs", query, key) * self.scale
        weights = scores.softmax(dim=-1)
        context = einsum("bhqs,bhsv->bqhv", weights, value)

        return einsum("bqhv,hvd->bqd", context, self.Wo)


if __name__ == "__main__":
    attention = EinsumAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
