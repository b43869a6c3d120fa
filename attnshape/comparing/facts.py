"""What differs between two tensors that belong together."""

from __future__ import annotations

from collections.abc import Mapping

from attnshape import axis
from attnshape.comparing.difference import Fact, Kind
from attnshape.comparing.origins import Origins
from attnshape.comparing.outline import Tensor
from attnshape.errors import AttnshapeError

_KIND_OF: dict[Fact, Kind] = {
    "signature": "signature",
    "shape": "size",
    "stride": "stride",
    "storage": "storage",
    "dtype": "dtype",
}
"""What follows from other facts, bytes and a shape beside a signature, counts for nothing of its own."""


def changed(old: Tensor, new: Tensor, origins: Origins, sizes: Mapping[str, int]) -> tuple[Fact, ...]:
    """Return which facts differ; `sizes` are the new side's, at which the old strides' formulas are read."""
    found: dict[Fact, bool] = {
        "signature": old.signature != new.signature,
        "shape": old.shape != new.shape,
        "stride": not same_strides(old, new, sizes),
        "storage": old.kind != new.kind or not origins.same(old.of, new.of),
        "dtype": old.dtype != new.dtype,
        "bytes": old.bytes != new.bytes,
    }
    return tuple(fact for fact, differs in found.items() if differs)


def kinds(facts: tuple[Fact, ...]) -> frozenset[Kind]:
    """Return the kinds that changed facts count as; a shape that goes with another signature is no other size."""
    counting = [fact for fact in facts if fact in _KIND_OF and not (fact == "shape" and "signature" in facts)]
    return frozenset(_KIND_OF[fact] for fact in counting)


def same_strides(old: Tensor, new: Tensor, sizes: Mapping[str, int]) -> bool:
    """Say whether two tensors lie in memory in the same way.

    Both do that are contiguous. At other sizes the old formulas must give the new numbers; an axis of one element
    has a stride that nothing reads.
    """
    if old.contiguous and new.contiguous:
        return True
    if old.contiguous != new.contiguous or len(old.stride) != len(new.stride):
        return False
    places = range(len(new.stride))
    single = {place for place in places if new.shape[place : place + 1] == old.shape[place : place + 1] == (1,)}
    if all(old.stride[place] == new.stride[place] for place in places if place not in single):
        return True
    if len(old.formulas) != len(new.stride):
        return False
    return old.shape != new.shape and all(
        _at(old.formulas[place], sizes) == new.stride[place] for place in places if place not in single
    )


def _at(formula: str, sizes: Mapping[str, int]) -> int | None:
    try:
        return axis.parse(formula).evaluate(sizes)
    except (AttnshapeError, KeyError):
        return None
