"""AS808 and AS117 where no call stops the gradient, and no claim says which keys a length keeps."""

import torch
from torch import Tensor

from tests.mutants.pairs.further_styles import (
    CROSS,
    SIZES,
    Block,
    block_of,
    reference_block,
    reference_length_of_first,
    right_block,
    right_length_of_first,
    with_lengths,
)

PAIRS = [
    ("AS808", "scores_in_steps", *SIZES),
    ("AS117", "lengths_sorted", *CROSS),
]


class InSteps(Block):
    def scores(self, q, k):
        scores = super().scores(q, k)
        return (scores * 16).round() / 16


def wrong_scores_in_steps(B, H, L, Dk):
    return block_of(InSteps, B, H, L, Dk)


right_scores_in_steps, reference_scores_in_steps = right_block, reference_block


def by_sorted_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk) to the first keys, as many as `lengths` (B) says."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    lengths, _ = lengths.sort(descending=True)
    hidden = torch.arange(k.shape[1]) >= lengths[:, None, None, None]
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def wrong_lengths_sorted(B, H, Lq, Lk, Dk):
    return with_lengths(by_sorted_lengths, B, H, Lq, Lk, Dk)


right_lengths_sorted, reference_lengths_sorted = right_length_of_first, reference_length_of_first
