"""What differs between two tensors that belong together."""

from __future__ import annotations

from collections.abc import Mapping

from attnshape import axis
from attnshape.comparing.difference import Fact
from attnshape.comparing.kinds import Kind
from attnshape.comparing.origins import Origins
from attnshape.comparing.outline import UNEXPLAINED, Tensor
from attnshape.errors import AttnshapeError

Sizes = Mapping[str, int]
_KIND_OF: dict[Fact, Kind] = {
    "signature": "signature",
    "shape": "size",
    "stride": "stride",
    "storage": "storage",
    "dtype": "dtype",
}
"""What follows from other facts, bytes and a shape beside a signature, counts for nothing of its own."""


def changed(old: Tensor, new: Tensor, origins: Origins, sizes: tuple[Sizes, Sizes]) -> tuple[Fact, ...]:
    """Return which facts differ; `sizes` are those of the old side and of the new one."""
    seen = _unexplained(old) & _unexplained(new)
    found: dict[Fact, bool] = {
        "signature": old.signature != new.signature,
        "shape": _without(old.shape, seen) != _without(new.shape, seen),
        "stride": not same_strides(old, new, sizes),
        "storage": old.kind != new.kind or not origins.same(old.of, new.of),
        "dtype": old.dtype != new.dtype,
        "bytes": old.bytes != new.bytes and not (seen and old.signature == new.signature and old.dtype == new.dtype),
    }
    return tuple(fact for fact, differs in found.items() if differs)


def _unexplained(tensor: Tensor) -> frozenset[int]:
    """Return the axes whose sizes depend on the data, and differ from seed to seed."""
    words = tensor.signature.split()
    if len(words) != len(tensor.shape):
        return frozenset()
    return frozenset(place for place, word in enumerate(words) if word == UNEXPLAINED)


def _without(shape: tuple[int, ...], places: frozenset[int]) -> list[int | None]:
    return [None if place in places else size for place, size in enumerate(shape)]


def kinds(facts: tuple[Fact, ...]) -> frozenset[Kind]:
    """Return the kinds that changed facts count as; a shape that goes with another signature is no other size."""
    counting = [fact for fact in facts if fact in _KIND_OF and not (fact == "shape" and "signature" in facts)]
    return frozenset(_KIND_OF[fact] for fact in counting)


def same_strides(old: Tensor, new: Tensor, sizes: tuple[Sizes, Sizes]) -> bool:
    """Say whether two tensors lie in memory in the same way.

    They do where both are contiguous, or fill their memory with the axes in the same order. Else the numbers must be
    the same, or those that one side's formulas give at the other's sizes, or unexplained on both sides; an axis of one
    element has a stride that nothing reads.
    """
    if old.contiguous != new.contiguous or len(old.stride) != len(new.stride):
        return False
    if old.contiguous:
        return True
    order = _dense_order(old)
    if order is not None and order == _dense_order(new):
        return True
    if _unexplained(old) & _unexplained(new) and _order(old) == _order(new):
        return True
    read = [place for place in range(len(new.stride)) if not old.shape[place] == new.shape[place] == 1]
    if all(old.stride[place] == new.stride[place] for place in read):
        return True
    return all(_follows(old, new, place, sizes) for place in read)


def _follows(old: Tensor, new: Tensor, place: int, sizes: tuple[Sizes, Sizes]) -> bool:
    """Say whether the stride of an axis is another only because the sizes are."""
    if old.formulas and _at(old.formulas[place], sizes[1]) == new.stride[place]:
        return True
    if new.formulas and _at(new.formulas[place], sizes[0]) == old.stride[place]:
        return True
    # a number that isn't the same at other sizes is no constant: nobody knows its formula
    unknown = (
        bool(old.formulas and new.formulas) and old.formulas[place].isdecimal() and new.formulas[place].isdecimal()
    )
    return unknown and sizes[0] != sizes[1] and _order(old) == _order(new)


def _order(tensor: Tensor) -> list[int]:
    """Return the axes from the outermost in memory to the innermost."""
    return sorted(range(len(tensor.stride)), key=lambda place: -tensor.stride[place])


def _dense_order(tensor: Tensor) -> list[int] | None:
    """Return the axes from the outermost in memory to the innermost; None where they leave gaps or overlap."""
    if len(tensor.shape) != len(tensor.stride):
        return None
    order = sorted((place for place, size in enumerate(tensor.shape) if size != 1), key=lambda one: -tensor.stride[one])
    step = 1
    for place in reversed(order):
        if tensor.stride[place] != step:
            return None
        step *= tensor.shape[place]
    return order


def _at(formula: str, sizes: Sizes) -> int | None:
    try:
        return axis.parse(formula).evaluate(sizes)
    except (AttnshapeError, KeyError):
        return None
