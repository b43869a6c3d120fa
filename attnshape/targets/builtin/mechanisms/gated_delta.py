"""The gated delta rule: a state decays, and each token corrects what the state returns for its key.

Formula:
    S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ,  o_t = S_tᵀ q_t,  S_0 = 0;  k_t has length 1

Source:
    Yang, Kautz and Hatamizadeh, 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv:2412.06464,
    equation (10), with its state transposed
"""

from itertools import accumulate

import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor
from torch.nn import functional

from attnshape.targets.builtin.cases import Case


@jaxtyped(typechecker=beartype)
def updated(
    state: Float[Tensor, "B H Dk Dv"],
    key: Float[Tensor, "B H Dk"],
    value: Float[Tensor, "B H Dv"],
    decay: Float[Tensor, "B H"],
    rate: Float[Tensor, "B H"],
) -> Float[Tensor, "B H Dk Dv"]:
    """Return the state after one more token."""
    decayed: Float[Tensor, "B H Dk Dv"] = decay[..., None, None] * state
    recalled: Float[Tensor, "B H Dv"] = (key.unsqueeze(-2) @ decayed).squeeze(-2)
    correction: Float[Tensor, "B H Dv"] = rate.unsqueeze(-1) * (value - recalled)
    return decayed + key.unsqueeze(-1) * correction.unsqueeze(-2)


@jaxtyped(typechecker=beartype)
def gated_delta(
    query: Float[Tensor, "B H L Dk"],
    key: Float[Tensor, "B H L Dk"],
    value: Float[Tensor, "B H L Dv"],
    decay: Float[Tensor, "B H L"],
    rate: Float[Tensor, "B H L"],
) -> Float[Tensor, "B H L Dv"]:
    """Return the context of each token: equation (10) of Yang et al.

    Args:
        query: q, (B, H, L, Dk).
        key: k, of any length, (B, H, L, Dk).
        value: v, (B, H, L, Dv).
        decay: α, between 0 and 1, (B, H, L).
        rate: β, between 0 and 1, (B, H, L).

    Returns:
        The context, (B, H, L, Dv).
    """
    B, H, Dk, Dv = *key.shape[:2], key.shape[-1], value.shape[-1]
    unit_key: Float[Tensor, "B H L Dk"] = functional.normalize(key, dim=-1)
    start: Float[Tensor, "B H Dk Dv"] = key.new_zeros(B, H, Dk, Dv)
    states: Float[Tensor, "B H L Dk Dv"] = torch.stack(
        list(
            accumulate(
                zip(unit_key.unbind(2), value.unbind(2), decay.unbind(2), rate.unbind(2), strict=True),
                lambda state, token: updated(state, *token),
                initial=start,
            )
        )[1:],
        dim=2,
    )
    context: Float[Tensor, "B H L Dv"] = (query.unsqueeze(-2) @ states).squeeze(-2)
    return context


def recurrent(B: int, H: int, L: int, Dk: int, Dv: int) -> Case:
    """One token after the other updates the state of each head."""
    query, key, value = torch.randn(B, H, L, Dk), torch.randn(B, H, L, Dk), torch.randn(B, H, L, Dv)
    return gated_delta, (query, key, value, torch.rand(B, H, L), torch.rand(B, H, L)), {}, ("causal",)
