"""nn.MultiheadAttention inside your own block.

Trace it:

    attnshape trace examples/torch_multihead.py:Block --init "D, H" --input "x: B L D"
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Layer norm, self-attention, and a residual connection."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, n_heads, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm(x)
        attended, weights = self.attention(normed, normed, normed)
        output = x + attended
        return output, weights


if __name__ == "__main__":
    block = Block(d_model=512, n_heads=8)
    output, weights = block(torch.randn(2, 10, 512))
    print(tuple(output.shape), tuple(weights.shape))
