r"""Decoding with a cache: L new tokens attend to Lp cached ones and to each other.

Trace it:

    attnshape trace examples/kv_cache.py:CachedAttention --init "D, H" --input "x: B L D" \
        --input "past_key: B H Lp Dk" --input "past_value: B H Lp Dk"
"""

import math

import torch
from torch import Tensor, nn


class CachedAttention(nn.Module):
    """Causal self-attention that takes and returns the keys and values seen so far."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Dk = d_model // n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wk = nn.Linear(d_model, d_model)
        self.Wv = nn.Linear(d_model, d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, L, D = x.shape
        Lp = past_key.shape[2]
        query = self.Wq(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        new_key = self.Wk(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        new_value = self.Wv(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        key = torch.cat((past_key, new_key), dim=2)
        value = torch.cat((past_value, new_value), dim=2)

        # New token i is at position Lp + i, so the diagonal is shifted by Lp.
        visible = torch.ones(L, Lp + L, dtype=torch.bool, device=x.device).tril(diagonal=Lp)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.Dk)
        masked = scores.masked_fill(~visible, -math.inf)
        weights = masked.softmax(dim=-1)
        context = weights @ value

        merged = context.transpose(1, 2).reshape(B, L, D)
        output = self.Wo(merged)
        return output, key, value


if __name__ == "__main__":
    attention = CachedAttention(d_model=512, n_heads=8)
    past_key, past_value = torch.randn(2, 8, 6, 64), torch.randn(2, 8, 6, 64)
    output, key, value = attention(torch.randn(2, 10, 512), past_key, past_value)
    print(tuple(output.shape), tuple(key.shape), tuple(value.shape))
