"""Dot-product self-attention without parameters: tokens are queries, keys and values at once.

Formula:
    Attention(X) = softmax(X Xᵀ) X

Source:
    Wang et al., 2018, "Non-local Neural Networks", arXiv:1711.07971, equations (1) and (2), the Gaussian
    (without its embedding g)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor

from attnshape.targets.builtin.cases import Case, attention_mask, causal_mask


@jaxtyped(typechecker=beartype)
def dot_product(
    input: Float[Tensor, "*batch L D"],
    mask: Bool[Tensor, "... #L #L"] | None = None,
    *,
    mask_value: float = -math.inf,
) -> Float[Tensor, "*batch L D"]:
    """Return for each token the mean of the tokens that it may see, weighted by their dot products with it.

    This is softmax(X Xᵀ) X: equations (1) and (2) of Wang et al. with the Gaussian.

    Args:
        input: The tokens X, (*batch, L, D).
        mask: True where a query may see a key; broadcasts to the scores. None hides nothing.
        mask_value: The score of a hidden key.

    Returns:
        The weighted means, (*batch, L, D).
    """
    scores: Float[Tensor, "*batch L L"] = input @ input.transpose(-2, -1)
    logits: Float[Tensor, "*batch L L"] = scores if mask is None else scores.masked_fill(~mask, mask_value)
    weights: Float[Tensor, "*batch L L"] = logits.softmax(dim=-1)
    output: Float[Tensor, "*batch L D"] = weights @ input
    return output


def batched(
    B: int, L: int, D: int, *, causal: bool = False, padding: bool = False, mask_value: float = -math.inf
) -> Case:
    """Each token attends to the tokens of its own sequence."""
    mask = attention_mask(B, L, L, causal=causal, padding=padding)
    return dot_product, (torch.randn(B, L, D), mask), {"mask_value": mask_value}


def unbatched(L: int, D: int, *, causal: bool = False, mask_value: float = -math.inf) -> Case:
    """One sequence, without a batch axis."""
    return dot_product, (torch.randn(L, D), causal_mask(L, L) if causal else None), {"mask_value": mask_value}
