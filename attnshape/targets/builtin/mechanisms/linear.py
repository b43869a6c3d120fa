"""Linear attention: features of queries and keys take the place of the softmax, so that the cost grows with L, not L².

Formula:
    Attention(Q, K, V)_i = φ(Q_i) Σ_j φ(K_j)ᵀ V_j / φ(Q_i) Σ_j φ(K_j)ᵀ,  φ(x) = elu(x) + 1
    causal: the sums run over j ≤ i

Source:
    Katharopoulos et al., 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
    arXiv:2006.16236, equations (5), (7) and (9)
"""

import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor
from torch.nn import functional

from attnshape.targets.builtin.cases import Case


@jaxtyped(typechecker=beartype)
def linear(
    query: Float[Tensor, "B H Lq Dk"], key: Float[Tensor, "B H Lk Dk"], value: Float[Tensor, "B H Lk Dv"]
) -> Float[Tensor, "B H Lq Dv"]:
    """Return the context of each query: equation (5) of Katharopoulos et al.

    Args:
        query: Q, (B, H, Lq, Dk).
        key: K, (B, H, Lk, Dk).
        value: V, (B, H, Lk, Dv).

    Returns:
        The context, (B, H, Lq, Dv).
    """
    query_features: Float[Tensor, "B H Lq Dk"] = functional.elu(query) + 1
    key_features: Float[Tensor, "B H Lk Dk"] = functional.elu(key) + 1
    state: Float[Tensor, "B H Dk Dv"] = key_features.transpose(-2, -1) @ value
    total: Float[Tensor, "B H Dk 1"] = key_features.sum(dim=2).unsqueeze(-1)
    context: Float[Tensor, "B H Lq Dv"] = (query_features @ state) / (query_features @ total)
    return context


@jaxtyped(typechecker=beartype)
def causal_linear(
    query: Float[Tensor, "B H L Dk"], key: Float[Tensor, "B H L Dk"], value: Float[Tensor, "B H L Dv"]
) -> Float[Tensor, "B H L Dv"]:
    """Return the context of each query over the keys up to its own position: equation (9) of Katharopoulos et al.

    Args:
        query: Q, (B, H, L, Dk).
        key: K, (B, H, L, Dk).
        value: V, (B, H, L, Dv).

    Returns:
        The context, (B, H, L, Dv).
    """
    query_features: Float[Tensor, "B H L Dk"] = functional.elu(query) + 1
    key_features: Float[Tensor, "B H L Dk"] = functional.elu(key) + 1
    states: Float[Tensor, "B H L Dk Dv"] = (key_features.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(dim=2)
    totals: Float[Tensor, "B H L Dk"] = key_features.cumsum(dim=2)
    mixed: Float[Tensor, "B H L Dv"] = (query_features.unsqueeze(-2) @ states).squeeze(-2)
    context: Float[Tensor, "B H L Dv"] = mixed / (query_features * totals).sum(dim=-1, keepdim=True)
    return context


def causal(B: int, H: int, L: int, Dk: int, Dv: int) -> Case:
    """Each token attends to itself and the tokens before it."""
    query, key, value = torch.randn(B, H, L, Dk), torch.randn(B, H, L, Dk), torch.randn(B, H, L, Dv)
    return causal_linear, (query, key, value), {}, ("causal",)


def bidirectional(B: int, H: int, Lq: int, Lk: int, Dk: int, Dv: int) -> Case:
    """Each query attends to all keys."""
    query, key, value = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dv)
    return linear, (query, key, value)
