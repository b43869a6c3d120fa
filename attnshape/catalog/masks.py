"""The masks of the catalog's cases: boolean, True where a query may attend to a key."""

import torch
from jaxtyping import Bool
from torch import Tensor

from attnshape.errors import AttnshapeError


def causal_mask(Lq: int, Lk: int) -> Bool[Tensor, "Lq Lk"]:
    """Let query i see the keys up to i + Lk - Lq, so that the last query sees all.

    Raises AttnshapeError where there are more queries than keys, since the first queries would see nothing.
    """
    if Lq > Lk:
        raise AttnshapeError(
            f"a causal mask leaves the first {Lq - Lk} of {Lq} queries no key: Lk - Lq = {Lk} - {Lq} = {Lk - Lq}",
            hint=f"choose at most {Lk} queries or at least {Lq} keys, or leave out the causal mask",
        )
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(Lk - Lq)


def padding_mask(B: int, Lk: int) -> Bool[Tensor, "B Lk"]:
    """Hide the last b + 1 keys of sequence b, counted modulo Lk, so that at least one key stays visible."""
    lengths = Lk - (torch.arange(B) + 1) % Lk
    return torch.arange(Lk) < lengths.unsqueeze(-1)


def attention_mask(
    B: int, Lq: int, Lk: int, *, causal: bool, padding: bool, heads: bool = False
) -> Bool[Tensor, "... #Lq Lk"] | None:
    """Return the mask for scores of B × Lq × Lk, or with `heads` of B × H × Lq × Lk; None where nothing is hidden.

    Causal alone is Lq × Lk; padding alone is B × 1 × Lk, with `heads` B × 1 × 1 × Lk; both are combined.
    """
    earlier = causal_mask(Lq, Lk) if causal else None
    if not padding:
        return earlier
    tokens = padding_mask(B, Lk).unsqueeze(1)
    if heads:
        tokens = tokens.unsqueeze(2)
    return tokens if earlier is None else tokens & earlier
