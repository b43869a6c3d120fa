"""Says whether a measured shape is as it is written, where the letters stand for certain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnshape.axis import AxisExpression
from attnshape.errors import AttnshapeError
from attnshape.written.calls import Shape
from attnshape.written.measured import Occurrences
from attnshape.written.notation import PRIME, Group, Token

Vector = tuple[int | None, ...]
"""A letter's number in each call, None where nothing says it."""


@dataclass(frozen=True)
class Demand:
    """Shapes that were written, of which any will do, and what was measured there in each call."""

    groups: tuple[Group, ...]
    measured: tuple[tuple[tuple[Shape, ...], ...], ...]
    """In each call, each time that the place was reached: the shapes of which any will do."""
    weight: float = 1.0

    @cached_property
    def sole(self) -> Group | None:
        """The one shape of those written that has as many axes as what was measured, one shape each time."""
        if any(len(options) != 1 for call in self.measured for options in call):
            return None
        ranks = {len(options[0]) for call in self.measured for options in call}
        fitting = [group for group in self.groups if len(self.groups) == 1 or {len(group.tokens)} == ranks]
        return fitting[0] if len(fitting) == 1 else None


def demand(groups: Sequence[Group], occurrences: Occurrences, weight: float = 1.0) -> Demand:
    """Return a demand; numbers of the author's own configuration, `(B, 12, T)` where the 12 varies, are left open."""
    measured = tuple(tuple(tuple(options) for options in call) for call in occurrences)
    return Demand(tuple(_opened(group, measured) for group in groups), measured, weight)


def _opened(group: Group, measured: Sequence[Sequence[Sequence[Shape]]]) -> Group:
    shapes = [shape for call in measured for options in call for shape in options]
    rank = len(group.tokens)
    fitting = [shape for shape in shapes if len(shape) == rank]

    def opened(place: int, token: Token) -> Token:
        if token.kind != "number" or token.text in ("0", "1"):
            return token
        several = len({shape[place] for shape in fitting}) > 1
        return Token(token.text, "any") if several or not fitting else token

    tokens = tuple(opened(place, token) for place, token in enumerate(group.tokens))
    return Group(tokens, group.text, group.start, group.end, group.bracketed)


def holds(one: Demand, chosen: Mapping[str, Vector]) -> bool:
    """Say whether a claim holds in every call, each time."""
    return all(
        any(fits(group.tokens, shape, chosen, place) for group in one.groups for shape in options)
        for place, call in enumerate(one.measured)
        for options in call
    )


def fits(tokens: Sequence[Token], shape: Shape, chosen: Mapping[str, Vector], call: int) -> bool:
    """Say whether a shape is as written, where the letters stand for these numbers in the call."""
    variadic = [place for place, token in enumerate(tokens) if token.kind == "variadic"]
    if len(variadic) > 1:
        return True
    if len(tokens) - len(variadic) > len(shape) or (not variadic and len(tokens) != len(shape)):
        return False
    for place, token in enumerate(tokens):
        at = axis_of(tokens, place, shape)
        if token.kind not in ("variadic", "any") and at is not None:
            wanted = size(token, chosen, call)
            if wanted is not None and shape[at] != wanted and not (token.broadcast and shape[at] == 1):
                return False
    return True


def size(token: Token, chosen: Mapping[str, Vector], call: int) -> int | None:
    """Return the number that an axis is written as in a call, None where nothing says it."""
    if token.kind == "number":
        return int(token.text)
    if token.kind in ("any", "variadic"):
        return None
    numbers = {name: chosen[name][call] for name in token.letters if name in chosen}
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) < len(token.letters):
        return None
    if token.tree is None:
        return known[token.text]
    try:
        plain = {name.replace("'", PRIME): number for name, number in known.items()}
        return AxisExpression(token.text, token.tree).evaluate(plain)
    except AttnshapeError:  # it divides by 0
        return None


def axis_of(tokens: Sequence[Token], place: int, shape: Shape) -> int | None:
    """Return which axis of a shape a token stands for, None where the shape has too few or too many."""
    open_at = next((at for at, token in enumerate(tokens) if token.kind == "variadic"), None)
    if open_at is None:
        return place if len(tokens) == len(shape) else None
    if len(tokens) - 1 > len(shape):
        return None
    return place if place < open_at else len(shape) - len(tokens) + place
