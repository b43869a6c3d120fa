"""Attention with T5's relative bias: a learned number for each head and bucket of distances is added to the scores.

Formula:
    Attention(X) = Concat(softmax(Q_h K_hᵀ + b_h) V_h) Wo,  Q = X Wq,  K = X Wk,  V = X Wv
    b_h at (i, j) = table[bucket(j - i), h];  a half of the Nb buckets is for later keys;  of each half, the near
    distances have one bucket each, and the far ones, up to 128, share buckets whose widths grow like logarithms

Source:
    Raffel et al., 2019, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv:1910.10683, section 2.1; equation (1) of Vaswani et al., arXiv:1706.03762, without its scale
"""

import math

import torch
from beartype import beartype
from jaxtyping import Float, Int, jaxtyped
from torch import Tensor, nn

from attnshape.targets.builtin.cases import Case, head_width

FARTHEST = 128


@jaxtyped(typechecker=beartype)
def buckets(distance: Int[Tensor, "L L"], Nb: int) -> Int[Tensor, "L L"]:
    """Return the bucket of each distance: section 2.1 of Raffel et al.

    Args:
        distance: Positions of keys less those of queries, (L, L).
        Nb: The number of buckets, at least 4.

    Returns:
        The buckets, from 0 up to Nb - 1, (L, L).
    """
    later: Int[Tensor, "L L"] = (distance > 0) * (Nb // 2)
    near: Int[Tensor, "L L"] = distance.abs()
    growth: Float[Tensor, "L L"] = (near.clamp(min=1) / (Nb // 4)).log() / math.log(FARTHEST / (Nb // 4))
    far: Int[Tensor, "L L"] = Nb // 4 + (growth * (Nb // 2 - Nb // 4)).long().clamp(max=Nb // 2 - Nb // 4 - 1)
    return later + torch.where(near < Nb // 4, near, far)


class RelativeBias(nn.Module):
    """Self-attention in both directions, as in T5's encoder."""

    def __init__(self, D: int, H: int, Nb: int) -> None:
        super().__init__()
        self.H, self.Dk, self.Nb = H, head_width(D, H), Nb
        self.Wq = nn.Linear(D, D, bias=False)
        self.Wk = nn.Linear(D, D, bias=False)
        self.Wv = nn.Linear(D, D, bias=False)
        self.Wo = nn.Linear(D, D, bias=False)
        self.table = nn.Embedding(Nb, H)

    @jaxtyped(typechecker=beartype)
    def forward(self, input: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Return the output for each token, (B, L, D), from the tokens, (B, L, D)."""
        B, L, D = input.shape
        H, Dk = self.H, self.Dk
        query: Float[Tensor, "B H L Dk"] = self.Wq(input).view(B, L, H, Dk).transpose(1, 2)
        key: Float[Tensor, "B H L Dk"] = self.Wk(input).view(B, L, H, Dk).transpose(1, 2)
        value: Float[Tensor, "B H L Dk"] = self.Wv(input).view(B, L, H, Dk).transpose(1, 2)
        position: Int[Tensor, " L"] = torch.arange(L, device=input.device)
        bias: Float[Tensor, "H L L"] = self.table(buckets(position - position.unsqueeze(1), self.Nb)).permute(2, 0, 1)
        scores: Float[Tensor, "B H L L"] = query @ key.transpose(-2, -1) + bias
        weights: Float[Tensor, "B H L L"] = scores.softmax(dim=-1)
        context: Float[Tensor, "B H L Dk"] = weights @ value
        concat: Float[Tensor, "B L D"] = context.transpose(1, 2).reshape(B, L, D)
        output: Float[Tensor, "B L D"] = self.Wo(concat)
        return output


def self_attention(B: int, H: int, L: int, D: int, Nb: int) -> Case:
    """Each token attends to all tokens of its sequence."""
    return RelativeBias(D, H, Nb), (torch.randn(B, L, D),), {}, ("scale=1",)
