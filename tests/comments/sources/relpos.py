"""Relative attention with the skewing trick of Music Transformer (Huang et al., 2018)."""
import math

import torch
import torch.nn.functional as F
from torch import nn


def skew(qer):
    """Moves the relative logits to absolute positions.

    :param qer: (batch, heads, seq, seq)
    :return: (batch, heads, seq, seq), row i shifted left by seq - 1 - i steps
"""
    batch, heads, seq, _ = qer.shape
    padded = F.pad(qer, [1, 0])  # (batch, heads, seq, 1 + seq)
    rows = padded.view(batch, heads, 1 + seq, seq)  # (batch, heads, 1 + seq, seq)
    return rows[:, :, 1:, :]  # drop the first row (all of it)


class RelPosAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_len):
        super().__init__()
        self.num_heads = num_heads
        self.max_len = max_len
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.Er = nn.Parameter(torch.randn(max_len, d_model // num_heads))
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len))[None, None])

    def forward(self, x):
        """Causal self-attention.

        :param x: (batch, seq, dim)
        :returns: (batch, seq, dim)
        """
        batch, seq, dim = x.shape
        heads = self.num_heads
        dh = dim // heads  # (64 in the paper)
        q, k, v = self.qkv(x).view(batch, seq, 3, heads, dh).permute(2, 0, 3, 1, 4)
        # q.shape = (batch, heads, seq, dh)
        k_t = k.transpose(-1, -2)
        # k_t.shape = (batch, heads, dh, seq)

        start = self.max_len - seq
        Er_t = self.Er[start:, :].transpose(0, 1)
        # Er_t.shape = (dh, seq)
        QEr = torch.matmul(q, Er_t)
        # QEr.shape = (batch, heads, seq, seq)
        Srel = skew(QEr)

        attn = (torch.matmul(q, k_t) + Srel) / math.sqrt(dh)  # eq. (3) of the paper
        mask = self.mask[:, :, :seq, :seq]
        # mask.shape = (1, 1, seq, seq)
        attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(attn, dim=-1)  # 1 x 1 for the first token
        out = torch.matmul(attn, v)
        # out.shape = (batch, heads, seq, dh)
        out = out.transpose(1, 2)
        # out.shape == (batch, seq, heads, dh)
        return out.reshape(batch, seq, -1)
