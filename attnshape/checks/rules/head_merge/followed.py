"""Follows contexts through layout operations to what reads them: are the features of all heads of a query together?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, product
from attnshape.checks.attention.layouts import (
    ARITHMETIC,
    Factor,
    Followed,
    combined,
    factors,
    feature_axes,
    layouts,
    moves_only,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing import operations as ops

MergeState = Literal["in order", "in another order", "scattered"]


@dataclass(frozen=True)
class Merged:
    """What becomes of the contexts of one attention where only layout operations have moved them."""

    state: MergeState
    at: OutputRef
    """The last call that moved them; the context if none did."""


def follow_contexts(subject: Subject, core: Core | FusedCore) -> Iterator[Merged | None]:
    """Yield for each call that reads a context after layout operations only, what it reads; None if that is unknown.

    The end of the code is such a call too. Nothing is yielded for heads that nothing merges.
    """
    reached = {core.context: core.context}
    """Each tensor that holds the context, with the last call that moved it."""
    read: set[OutputRef] = set()
    for event in subject.base.events[core.context.order :]:
        for place, sources in enumerate(event.sources):
            source = next((one for one in sources if isinstance(one, OutputRef) and one in reached), None)
            if source is None:
                continue
            read.add(source)
            if moves_only(event):
                moved = event.name in ops.RESHAPES and event.refs[0]
                reached.update(dict.fromkeys(event.refs, moved or reached[source]))
            elif event.name in ARITHMETIC and layouts(subject).followed(core.context, event.refs[0]) is not None:
                reached[event.refs[0]] = reached[source]
            elif event.name not in ops.CREATED_LIKE:
                yield from _judged(subject, core, reached[source], (event, place))
    for ref in [ref for ref in reached if ref not in read and ref != core.context]:
        yield from _judged(subject, core, reached[ref], ref)


def _judged(
    subject: Subject, core: Core | FusedCore, at: OutputRef, tensor: OutputRef | tuple[ReplayedCall, int]
) -> Iterator[Merged | None]:
    followed = layouts(subject).followed(core.context, tensor)
    if followed is None:
        yield None
        return
    own, rest = _axes_of_context(subject, core)
    heads = list(factors(followed.start, rest, {subject.numbers.get("H", 0)}))
    together = _read_together(subject, *tensor) if not isinstance(tensor, OutputRef) else None
    if together is None and _is_unmerged(followed, own, rest):
        return
    groups_of_one: list[bool] = []
    orders: list[bool] = []
    # in attention over channels, the queries are features, and what the values carry are tokens
    queries = [axis for axis in rest if axis in _query_axes(subject, core)]
    readings = [(own, rest), (queries, [axis for axis in range(len(followed.start)) if axis not in queries])]
    for (features, others), factor in itertools.product(readings, heads):
        if factor.axis not in others:
            continue
        vector, feature = _vectors(followed.start, features, others, factor)
        for axes in [together] if together is not None else _choices(len(followed.shape)):
            groups = [axis for axis in range(len(followed.shape)) if axis not in axes]
            found = followed.grouping(vector, feature, groups)
            groups_of_one.append(found.single and features is own)
            if found.whole and (found.single or len(axes) == 1 or together is not None):
                orders.append(len(axes) > 1 or _is_ascending(followed, feature, axes[0]))
    if orders:
        yield Merged("in order" if any(orders) else "in another order", at)
    elif heads and not any(groups_of_one) and at != core.context:
        yield Merged("scattered", at)
    else:
        yield None


def _axes_of_context(subject: Subject, core: Core | FusedCore) -> tuple[list[int], list[int]]:
    """Return the axes of a context that hold a head's features, and the other ones."""
    dimensions = range(subject.base.value(core.context).ndim)
    own = {len(dimensions) - 1} if isinstance(core, FusedCore) else core.value.free(core.values_place)
    return [axis for axis in dimensions if axis in own], [axis for axis in dimensions if axis not in own]


def _query_axes(subject: Subject, core: Core | FusedCore) -> frozenset[int]:
    """Return the axes of a context that count the queries."""
    if isinstance(core, FusedCore):
        return frozenset({subject.base.value(core.context).ndim - 2})
    return core.value.free(core.weights_place)


def _vectors(shape: tuple[int, ...], own: Sequence[int], rest: Sequence[int], heads: Factor) -> tuple[Tensor, Tensor]:
    """Return for each element of a context which query's it is, and which feature of all heads."""
    width = combined(shape, own)
    head = heads.of(combined(shape, [heads.axis]))
    return combined(shape, rest, [heads]), head * (int(width.max()) + 1) + width


def _read_together(subject: Subject, event: ReplayedCall, place: int) -> tuple[int, ...] | None:
    """Return the axes over which a projection or a convolution sums; None for another call."""
    if event.name in ops.CONVOLUTIONS:
        return (event.operand_values[place].ndim - event.operand_values[1].ndim + 1,) if place == 0 else None
    found = product(event, subject.graph)
    if found is None or place not in found.places or feature_axes(subject, event) is None:
        return None
    return found.contracted(place) or None


def _choices(count: int) -> list[tuple[int, ...]]:
    """Return the axes, and pairs of them, that may hold the features of merged heads."""
    return [(axis,) for axis in reversed(range(count))] + list(itertools.combinations(range(count), 2))


def _is_unmerged(followed: Followed, own: Sequence[int], rest: Sequence[int]) -> bool:
    """Return whether an axis of a tensor holds the features of one head of one query, and no others."""
    vector, feature = combined(followed.start, rest), combined(followed.start, own)
    for axis in range(len(followed.shape)):
        found = followed.grouping(vector, feature, [other for other in range(len(followed.shape)) if other != axis])
        if found.whole and found.single:
            return True
    return False


def _is_ascending(followed: Followed, feature: Tensor, axis: int) -> bool:
    """Return whether the features along an axis are those of head 0, then those of head 1, and so on."""
    count = int(feature.max()) + 1
    return bool((followed.at([axis]) % count == followed.of(feature)).all())
