"""F.scaled_dot_product_attention: one fused step, whose scores are never stored.

Trace it:

    attnshape trace examples/sdpa.py:FlashSelfAttention --init "D, H" --input "x: B L D"
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FlashSelfAttention(nn.Module):
    """Causal self-attention with torch's fused kernel."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query = self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        key = self.Wk(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        value = self.Wv(x).view(B, L, self.H, self.Dk).transpose(1, 2)

        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)

        merged = context.transpose(1, 2).reshape(B, L, D)
        return self.Wo(merged)


if __name__ == "__main__":
    attention = FlashSelfAttention(d_model=512, n_heads=8)
    print(tuple(attention(torch.randn(2, 10, 512)).shape))
