"""Averaging: all scores are equal, so each token becomes the mean of the tokens that it may see.

Formula:
    Average(X) = softmax(0) X;  causal: row i is the mean of rows 0 to i of X

Source:
    Zhang, Xiong and Su, 2018, "Accelerating Neural Transformer via an Average Attention Network",
    arXiv:1805.00631, equation (1), the cumulative average (without its feed-forward layer)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor

from attnshape.targets.builtin.cases import Case, attention_mask, causal_mask


@jaxtyped(typechecker=beartype)
def average(
    input: Float[Tensor, "*batch L D"],
    mask: Bool[Tensor, "... #L #L"] | None = None,
    *,
    mask_value: float = -math.inf,
) -> Float[Tensor, "*batch L D"]:
    """Return for each token the mean of the tokens that it may see: equation (1) of Zhang et al.

    Args:
        input: The tokens, (*batch, L, D).
        mask: True where a query may see a key; broadcasts to the scores. None hides nothing.
        mask_value: The score of a hidden key.

    Returns:
        The means, (*batch, L, D).
    """
    L = input.shape[-2]
    scores: Float[Tensor, "*batch L L"] = input.new_zeros(*input.shape[:-1], L)
    logits: Float[Tensor, "*batch L L"] = scores if mask is None else scores.masked_fill(~mask, mask_value)
    weights: Float[Tensor, "*batch L L"] = logits.softmax(dim=-1)
    output: Float[Tensor, "*batch L D"] = weights @ input
    return output


def batched(
    B: int, L: int, D: int, *, causal: bool = False, padding: bool = False, mask_value: float = -math.inf
) -> Case:
    """Each token averages the tokens of its own sequence."""
    mask = attention_mask(B, L, L, causal=causal, padding=padding)
    return average, (torch.randn(B, L, D), mask), {"mask_value": mask_value}


def unbatched(L: int, D: int, *, causal: bool = False, mask_value: float = -math.inf) -> Case:
    """One sequence, without a batch axis."""
    return average, (torch.randn(L, D), causal_mask(L, L) if causal else None), {"mask_value": mask_value}
