"""Right biases where learned vectors stand in front of the tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as711_memory import SIZES, Decoder, Encoder, EncoderBias

UNUSUAL = [
    ("zero_bias_of_memory", *SIZES),
    ("tolerance_before_penalty", *SIZES),
    ("blocks_of_three_beside_memory", *SIZES),
]


class ZeroForMemory(EncoderBias):
    """Learned vectors have no position: their bias is 0."""

    def forward(self, i, j):
        return F.pad(super().forward(i, i), (j - i, 0))


def case_zero_bias_of_memory(B, H, L, Dk):
    return Encoder(H * Dk, H, ZeroForMemory), (torch.randn(B, L, H * Dk),), {}


class Tolerant(Decoder):
    """The keys up to four positions back have no penalty."""

    def behind(self, queries, keys):
        return (super().behind(queries, keys) - 4).clamp(min=0)


def case_tolerance_before_penalty(B, H, L, Dk):
    return Tolerant(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


class InBlocks(nn.Module):
    """Three distances share an entry."""

    def __init__(self, heads):
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 16))

    def forward(self, i, j):
        behind = torch.arange(j)[-i:, None] - torch.arange(j)
        return self.table[:, behind.div(3, rounding_mode="floor") + 8]


def case_blocks_of_three_beside_memory(B, H, L, Dk):
    return Encoder(H * Dk, H, InBlocks), (torch.randn(B, L, H * Dk),), {}
