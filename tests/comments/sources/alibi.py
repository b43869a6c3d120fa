# ALiBi: train short, test long (Press et al., ICLR 2022)
import math

import torch
import torch.nn as nn


def get_slopes(n):
    start = 2 ** (-8 / n)
    return torch.tensor([start ** (i + 1) for i in range(n)])  # [n]


def build_alibi(n_heads, T):
    pos = torch.arange(T)
    dist = pos[None, :] - pos[:, None]  # [T, T]
    dist = -dist.abs().float()
    slopes = get_slopes(n_heads)  # [n_heads]
    return slopes[:, None, None] * dist  # [n_heads, T, T]


class AlibiAttention(nn.Module):
    """
    Shape:
        - x: :math:`(B, T, C)`
        - pad: :math:`(B, T)`, True at padding
        - Output: :math:`(B, T, C)`
    """

    def __init__(self, n_embd, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(n_embd, 3 * n_embd)
        self.out_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, pad=None):
        B, T, C = x.shape
        n_heads = self.n_heads
        hs = C // n_heads
        alibi = build_alibi(n_heads, T)  # [n_heads, T, T]

        qkv = self.in_proj(x)  # [B, T, 3 * C]
        # [B, T, 3 * C] -> 3 times [B, n_heads, T, hs]
        q, k, v = (t.view(B, T, n_heads, hs).transpose(1, 2) for t in qkv.chunk(3, dim=-1))

        s = q @ k.transpose(-1, -2) / math.sqrt(hs)  # [B, n_heads, T, T]
        s = s + alibi  # (broadcast over the batch)
        if pad is not None:
            s = s.masked_fill(
                pad[:, None, None, :],  # [B, 1, 1, T]
                torch.finfo(s.dtype).min,
            )
        p = torch.softmax(s, -1)  # see issue (#17)
        o = (p @ v).transpose(1, 2).reshape(B, T, C)
        return self.out_proj(o)
