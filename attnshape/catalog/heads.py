"""How the model width is shared out among the heads."""

from __future__ import annotations

from attnshape.errors import AttnshapeError

SHOWN = 6
SEARCHED = 1024


def head_width(D: int, H: int) -> int:
    """Return Dk = D/H. Raises AttnshapeError where H doesn't divide D.

    >>> head_width(200, 5)
    40
    """
    Dk, rest = divmod(D, H)
    if rest == 0:
        return Dk
    # Bounded, since a width may be huge.
    divisors = [heads for heads in range(1, min(D, SEARCHED) + 1) if D % heads == 0]
    shown = divisors[:SHOWN]
    choices = ", ".join(map(str, shown)) + ("" if shown[-1] == D else ", …")
    raise AttnshapeError(
        f"{H} heads don't divide the width: D/H = {D}/{H} leaves {rest}",
        hint=f"choose heads among {choices}, or a width that is a multiple of {H}",
    )
