"""The building blocks of the catalog's cases: what a case returns, masks, and the width of a head."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from attnshape.errors import AttnshapeError

Case: TypeAlias = (
    tuple[Callable[..., Any], tuple[Any, ...]]
    | tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
    | tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[str, ...]]
)
"""A callable, its arguments, its keyword arguments, and its claims. A function that returns this is a case."""

_DIVISORS_SHOWN = 6
_DIVISORS_SEARCHED = 1024


def causal_mask(Lq: int, Lk: int) -> Bool[Tensor, "Lq Lk"]:
    """Return the mask in which query i sees the keys up to i + Lk - Lq, so that the last query sees all keys.

    Masks are True where a query may attend to a key. Raises AttnshapeError if there are more queries than keys,
    since the first queries would see no key.
    """
    if Lq > Lk:
        raise AttnshapeError(
            f"a causal mask leaves the first {Lq - Lk} of {Lq} queries no key: Lk - Lq = {Lk} - {Lq} = {Lk - Lq}",
            hint=f"choose at most {Lk} queries or at least {Lq} keys, or leave out the causal mask",
        )
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(Lk - Lq)


def padding_mask(B: int, Lk: int) -> Bool[Tensor, "B Lk"]:
    """Return the mask that hides the last b + 1 keys of sequence b, modulo Lk so that one key stays visible."""
    lengths = Lk - (torch.arange(B) + 1) % Lk
    return torch.arange(Lk) < lengths.unsqueeze(-1)


def attention_mask(
    B: int, Lq: int, Lk: int, *, causal: bool, padding: bool, heads: bool = False
) -> Bool[Tensor, "... #Lq Lk"] | None:
    """Return the mask for scores of shape (B, Lq, Lk), or (B, H, Lq, Lk) with heads; None if nothing is hidden.

    A causal mask alone is (Lq, Lk); a padding mask alone is (B, 1, Lk), with heads (B, 1, 1, Lk).
    """
    earlier = causal_mask(Lq, Lk) if causal else None
    if not padding:
        return earlier
    tokens = padding_mask(B, Lk).unsqueeze(1)
    if heads:
        tokens = tokens.unsqueeze(2)
    return tokens if earlier is None else tokens & earlier


def shift_mask(W: int, Nh: int, Nw: int) -> Bool[Tensor, "Nh Nw W*W W*W"]:
    """Return the mask within windows that are shifted by W//2: tokens from opposite edges of the map are hidden."""
    wrapped_row = torch.arange(Nh * W) >= Nh * W - W // 2
    wrapped_column = torch.arange(Nw * W) >= Nw * W - W // 2
    edge = (2 * wrapped_row.view(Nh, 1, W, 1) + wrapped_column.view(Nw, 1, W)).flatten(2)
    return edge.unsqueeze(-1) == edge.unsqueeze(-2)


def head_width(D: int, H: int) -> int:
    """Return Dk = D/H. Raises AttnshapeError if H doesn't divide D.

    >>> head_width(200, 5)
    40
    """
    Dk, rest = divmod(D, H)
    if rest == 0:
        return Dk
    # limited, since a width can be huge
    divisors = [heads for heads in range(1, min(D, _DIVISORS_SEARCHED) + 1) if D % heads == 0]
    shown = divisors[:_DIVISORS_SHOWN]
    choices = ", ".join(map(str, shown)) + ("" if shown[-1] == D else ", …")
    raise AttnshapeError(
        f"{H} heads don't divide the width: D/H = {D}/{H} leaves {rest}",
        hint=f"choose heads among {choices}, or a width that is a multiple of {H}",
    )
