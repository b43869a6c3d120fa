"""What an explanation finds: the words, the axes that disagree, and what might help."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from attnshape.failing.scene import Party, parsed
from attnshape.tracing.raw import RawCall

Shapes = Sequence[tuple[int, ...]]
Accepts = Callable[[tuple[int, ...], Shapes], bool]
"""Whether a result of this shape, from operands of those, is what was meant."""


_SWAPS = {
    (-2, -1): (".transpose(-2, -1)", ".transpose(-1, -2)", ".mT", ".transpose(2, 3)"),
    (1, 2): (".transpose(1, 2)", ".transpose(2, 1)"),
}
"""How the source swaps two axes; 2 and 3 are the last two of scores."""


def _same_tensors(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


def _same_call(call: RawCall) -> RawCall:
    return call


def any_result(shape: tuple[int, ...], operands: Shapes) -> bool:
    """Accept whatever comes out."""
    return True


@dataclass(frozen=True)
class Candidate:
    """A change that might make the call work: it becomes a hint only once that was tried."""

    text: str
    """What to write, in place of the operand or of the whole expression."""
    tensors: Callable[[list[Tensor]], list[Tensor]] = _same_tensors
    call: Callable[[RawCall], RawCall] = _same_call
    rank: int = 0
    """The lower, the more usual; of several that work in one rank none is shown."""
    accepts: Accepts = any_result
    inner: bool = False
    """Whether what comes out isn't told: it depends on contents, or the call lies within another's expression."""


@dataclass(frozen=True)
class Finding:
    """Why a call failed."""

    explanation: str
    disagree: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Operand to the axes that disagree."""
    candidates: tuple[Candidate, ...] = ()


def on_operand(
    party: Party, suffix: str, change: Callable[[Tensor, list[Tensor]], Tensor], rank: int = 0
) -> list[Candidate]:
    """Return the candidate `operand.suffix`, none where the source doesn't write the operand."""
    if party.text is None:
        return []

    def changed(tensors: list[Tensor]) -> list[Tensor]:
        mended = list(tensors)
        mended[party.place] = change(tensors[party.place], tensors)
        return mended

    return [Candidate(receiver(party.text) + suffix if suffix else party.text, changed, rank=rank)]


def transposed(party: Party, first: int, second: int, rank: int = 0) -> list[Candidate]:
    """Return the candidate that swaps two axes of an operand; `.T` where it has only two."""
    if party.rank < 2:
        return []
    undone = next((end for end in _SWAPS.get((first, second), ()) if (party.text or "").endswith(end)), None)
    if party.text is not None and undone is not None and (undone != ".transpose(2, 3)" or party.rank == 4):
        # what swaps the axes twice is mended by swapping them not at all
        without = replace(party, text=party.text.removesuffix(undone))
        return on_operand(without, "", lambda tensor, _: tensor.transpose(first, second), rank)
    suffix = ".T" if party.rank == 2 else f".transpose({first}, {second})"
    return on_operand(party, suffix, lambda tensor, _: tensor.transpose(first, second), rank)


def on_call(text: str | None, function: Callable[..., object], rank: int = 0) -> list[Candidate]:
    """Return the candidate that calls another function with the same arguments, none without a text for it."""
    if text is None:
        return []
    return [Candidate(text, call=lambda call: replace(call, function=function), rank=rank)]


def receiver(text: str) -> str:
    """Return an expression so that a method can be called on it.

    >>> receiver("q"), receiver("q + k"), receiver("q.mT")
    ('q', '(q + k)', 'q.mT')
    """
    tree = parsed(text)
    plain = isinstance(tree, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if plain else f"({text})"
