"""Scaled dot-product attention: each query's context is the values' mean, weighted by how well the keys match.

Formula:
    Attention(Q, K, V) = softmax(Q Kᵀ / √Dk) V

Source:
    Vaswani et al., 2017, "Attention Is All You Need", arXiv:1706.03762, section 3.2.1, equation (1)
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor
from torch.nn import functional

from attnshape.targets.builtin.cases import Case, attention_mask, causal_mask


@jaxtyped(typechecker=beartype)
def scaled_dot_product(
    query: Float[Tensor, "*batch Lq Dk"],
    key: Float[Tensor, "*batch Lk Dk"],
    value: Float[Tensor, "*batch Lk Dv"],
    mask: Bool[Tensor, "... #Lq #Lk"] | None = None,
    dropout: float = 0.0,
    *,
    mask_value: float = -math.inf,
    training: bool = False,
) -> tuple[Float[Tensor, "*batch Lq Dv"], Float[Tensor, "*batch Lq Lk"]]:
    """Return softmax(Q Kᵀ / √Dk) V and the weights: equation (1) of Vaswani et al.

    Args:
        query: Q, (*batch, Lq, Dk).
        key: K, (*batch, Lk, Dk).
        value: V, (*batch, Lk, Dv).
        mask: True where a query may see a key; broadcasts to the scores. None hides nothing.
        dropout: The probability that a weight is set to 0 in training.
        mask_value: The score of a hidden key.
        training: Whether dropout is active.

    Returns:
        The context, (*batch, Lq, Dv), and the weights before dropout, (*batch, Lq, Lk).
    """
    Dk = query.shape[-1]
    scores: Float[Tensor, "*batch Lq Lk"] = query @ key.transpose(-2, -1) / math.sqrt(Dk)
    logits: Float[Tensor, "*batch Lq Lk"] = scores if mask is None else scores.masked_fill(~mask, mask_value)
    weights: Float[Tensor, "*batch Lq Lk"] = logits.softmax(dim=-1)
    context: Float[Tensor, "*batch Lq Dv"] = functional.dropout(weights, dropout, training) @ value
    return context, weights


def batched(
    B: int,
    Lq: int,
    Lk: int,
    Dk: int,
    Dv: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    train: bool = False,
) -> Case:
    """One set of queries, keys and values for each sequence: three dimensions."""
    query, key, value = torch.randn(B, Lq, Dk), torch.randn(B, Lk, Dk), torch.randn(B, Lk, Dv)
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding)
    return scaled_dot_product, (query, key, value, mask, dropout), {"mask_value": mask_value, "training": train}


def with_heads(
    B: int,
    H: int,
    Lq: int,
    Lk: int,
    Dk: int,
    Dv: int,
    *,
    causal: bool = False,
    padding: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    train: bool = False,
) -> Case:
    """Queries, keys and values for each head of each sequence: four dimensions."""
    query, key, value = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dv)
    mask = attention_mask(B, Lq, Lk, causal=causal, padding=padding, heads=True)
    return scaled_dot_product, (query, key, value, mask, dropout), {"mask_value": mask_value, "training": train}


def unbatched(
    Lq: int,
    Lk: int,
    Dk: int,
    Dv: int,
    *,
    causal: bool = False,
    mask_value: float = -math.inf,
    dropout: float = 0.0,
    train: bool = False,
) -> Case:
    """One sequence, without a batch axis: two dimensions."""
    query, key, value = torch.randn(Lq, Dk), torch.randn(Lk, Dk), torch.randn(Lk, Dv)
    mask = causal_mask(Lq, Lk) if causal else None
    return scaled_dot_product, (query, key, value, mask, dropout), {"mask_value": mask_value, "training": train}
