"""What of two outlines is returned otherwise."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.comparing.align import Alignment
from attnshape.comparing.difference import ResultChange
from attnshape.comparing.outline import Outline, Result
from attnshape.model import Reference

Pair = tuple[Result | None, Result | None]


def changed_results(old: Outline, new: Outline, alignment: Alignment) -> tuple[ResultChange, ...]:
    """Return what is returned otherwise; nothing where a side fails, which returns nothing at all.

    What is returned in the same place belongs together, and then what is the same tensor in another place.
    """
    if old.failure is not None or new.failure is not None:
        return ()

    def same(one: Result, other: Result) -> bool:
        return _moved(one.of, alignment) == other.of

    pairs = _paired(list(old.results), list(new.results), same)
    return tuple(
        ResultChange(one, other)
        for one, other in pairs
        if one is None or other is None or one.name != other.name or not same(one, other)
    )


def _moved(old: Reference, alignment: Alignment) -> Reference | None:
    """Return where the tensor of an old reference is on the new side; None where it isn't there any more."""
    if old.step is not None:
        step = alignment.to_new.get(old.step)
        return Reference(step=step, output=old.output) if step is not None else None
    if old.input is not None:
        return Reference(input=alignment.inputs_to_new.get(old.input, old.input))
    return old


def _paired(old: list[Result], new: list[Result], same: Callable[[Result, Result], bool]) -> list[Pair]:
    places = {one.name: one for one in new}
    found: list[Pair] = [(one, places.pop(one.name)) for one in old if one.name in places]
    kept = {one.name for one, _ in found if one is not None}
    for one in (one for one in old if one.name not in kept):
        other = next((other for other in places.values() if same(one, other)), None)
        found.append((one, places.pop(other.name) if other is not None else None))
    return [*found, *((None, other) for other in places.values())]
