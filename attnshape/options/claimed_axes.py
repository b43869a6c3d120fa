"""The axes of a mask or a bias, as the user writes them behind its meaning: `mask=keep: (B H) Lq Lk`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnshape.dims.expressions import AxisExpression, parse_expression
from attnshape.errors import AttnshapeError

_WORD = re.compile(r"\((?P<folded>[^()]*)\)|(?P<single>[^()\s]+)|(?P<other>\S)")
_ROLES = {"1": "", "B": "b", "H": "h", "Lq": "q", "Lk": "k", "B*H": "bh", "H*B": "hb"}
_LENGTH = "length"
"""The role of an axis that holds queries or keys; which of them depends on the other axes."""
_HINT = "write each axis as B, H, Lq, Lk, L or 1, and folded ones as (B H): mask=keep: (B H) Lq Lk"


@dataclass(frozen=True)
class ClaimedAxis:
    """One axis of an argument."""

    text: str
    role: str
    """`b` for the batch, `h` for heads, `q` for queries, `k` for keys, `bh` or `hb` if folded, "" for an axis of 1."""
    factors: tuple[AxisExpression, ...]

    def size_at(self, sizes: Mapping[str, int]) -> int:
        """Return how many indices it has at these sizes; KeyError if a symbol has no size."""
        return math.prod(factor.evaluate(sizes) for factor in self.factors)


def parse_claimed_axes(text: str) -> tuple[ClaimedAxis, ...]:
    """Parse the axes of a mask or a bias. Raises AttnshapeError if they are invalid.

    Of two axes `L` the last one holds keys, and so does a single one.

    >>> [axis.role for axis in parse_claimed_axes("(B H) 1 Lk")], [axis.role for axis in parse_claimed_axes("B L L")]
    (['bh', '', 'k'], ['b', 'q', 'k'])
    """
    axes = [_axis(found) for found in _WORD.finditer(text)]
    if not axes:
        raise AttnshapeError("no axes are written behind the colon", _HINT)
    lengths = [place for place, axis in enumerate(axes) if axis.role == _LENGTH]
    free = [role for role in "qk" if all(axis.role != role for axis in axes)]
    if len(lengths) > len(free):
        raise AttnshapeError(f"{text.strip()[:60]!r} has more axes of lengths than queries and keys", _HINT)
    for place, role in zip(reversed(lengths), reversed(free), strict=False):
        axes[place] = ClaimedAxis(axes[place].text, role, axes[place].factors)
    roles = "".join(axis.role for axis in axes)
    if len(set(roles)) < len(roles):
        raise AttnshapeError(f"{text.strip()[:60]!r} has two axes for the same", _HINT)
    return tuple(axes)


def _axis(found: re.Match[str]) -> ClaimedAxis:
    if found["other"]:
        raise AttnshapeError(f"{found['other']!r} isn't expected in axes", _HINT)
    words = [found["single"]] if found["single"] else found["folded"].split()
    factors = tuple(parse_expression(word) for word in words)
    role = _ROLES.get("*".join(words))
    if role is None and (found["single"] is None or not factors[0].symbols or factors[0].symbols[0] in ("B", "H")):
        raise AttnshapeError(f"{found[0]} is no axis of a mask or a bias", _HINT)
    return ClaimedAxis(found[0], _LENGTH if role is None else role, factors)


def require_shape(axes: Sequence[ClaimedAxis], shape: Sequence[int], sizes: Mapping[str, int]) -> None:
    """Raise AttnshapeError, with the predicate of a sentence, if a tensor of this shape doesn't have these axes."""
    written = " ".join(axis.text for axis in axes)
    if len(axes) != len(shape):
        raise AttnshapeError(f"has {len(shape)} axes, and {len(axes)} are written: {written}", "write one for each")
    for place, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        names = {name for factor in axis.factors for name in factor.symbols}
        if names <= sizes.keys() and size not in (1, axis.size_at(sizes)):
            raise AttnshapeError(
                f"has {size} indices along axis {place}, and {axis.text} is {axis.size_at(sizes)}",
                "write the axes in the order in which the tensor has them",
            )
