"""Follows contexts through layout operations to what reads them: are the features of all heads of a query together?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, moves_only, product
from attnshape.checks.attention.layouts import (
    ARITHMETIC,
    Factor,
    Followed,
    combined,
    factors,
    feature_axes,
    layouts,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.written_contexts import feature_axes_of, written_context
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing import operations as ops

MergeState = Literal["in order", "in another order", "scattered"]


@dataclass(frozen=True)
class Merged:
    """What becomes of the contexts of one attention where only layout operations have moved them."""

    state: MergeState
    at: OutputRef
    """The last call that moved them; the context if none did."""


@dataclass(frozen=True)
class _Start:
    """A tensor that holds contexts: what attention returns, or what that is written to."""

    ref: OutputRef
    features: list[int]
    """The axes of one head's features."""
    others: list[int]
    queries: list[int]
    """Those of the others that count queries, if that is known."""


@dataclass(frozen=True)
class _Read:
    """A call that reads contexts which only layout operations have moved; or the end of the code."""

    tensor: OutputRef | tuple[ReplayedCall, int]
    """What is read at the end, or the call and the place of its operand."""
    reshaped: OutputRef
    """The last call that reshaped them; the start if none did."""
    torn: OutputRef | None
    """The first call after which the features of one head of a query are no box."""


def follow_contexts(subject: Subject, core: Core | FusedCore) -> Iterator[Merged | None]:
    """Yield for each call that reads a context after layout operations only, what it reads; None if that is unknown.

    The end of the code is such a call too. Nothing is yielded for heads that nothing merges.
    """
    for start in _starts(subject, core):
        for read in _reads(subject, core, start):
            yield from _judged(subject, start, read)


def torn_context(subject: Subject, core: Core | FusedCore) -> OutputRef | None:
    """Return the call that tears the features of one head of a query apart, and puts them among other queries'.

    What reads them then has other features of one query than of another. This needs no axis of heads.
    """
    for start in _starts(subject, core):
        shape = tuple(subject.base.value(start.ref).shape)
        vector, feature = combined(shape, start.others), combined(shape, start.features)
        for read in _reads(subject, core, start):
            if read.torn is None or subject.base.event(read.torn).name not in ops.RESHAPES:
                continue
            followed = layouts(subject).followed(start.ref, read.tensor)
            together = _read_together(subject, read.tensor)
            if followed is None:
                continue
            axes = [axis for axis in range(len(followed.shape)) if axis not in (together or ())]
            if together is not None:
                is_wrong = followed.is_torn(vector, feature, axes)
            else:
                is_wrong = isinstance(read.tensor, OutputRef) and not _is_unmerged(followed, start)
            if is_wrong:
                return read.torn
    return None


def _starts(subject: Subject, core: Core | FusedCore) -> Iterator[_Start]:
    """Yield what attention returns, and the tensor that it is written to, if there is one."""
    features, queries = feature_axes_of(subject, core), sorted(_query_axes(subject, core))
    yield _Start(core.context, features, _others(subject, core.context, features), queries)
    written = written_context(subject, core)
    if written is not None:
        features = list(written.features)
        yield _Start(written.ref, features, _others(subject, written.ref, features), [])


def _others(subject: Subject, ref: OutputRef, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(subject.base.value(ref).ndim) if axis not in axes]


def _reads(subject: Subject, core: Core | FusedCore, start: _Start) -> Iterator[_Read]:
    written = written_context(subject, core)
    writes = written.writes if written is not None else frozenset[int]()
    reached: dict[OutputRef, _Read] = {start.ref: _Read(start.ref, start.ref, None)}
    """Each tensor that holds the contexts."""
    seen: set[OutputRef] = set()
    for event in subject.base.events[start.ref.order :]:
        for place, sources in enumerate(event.sources):
            source = next((one for one in sources if isinstance(one, OutputRef) and one in reached), None)
            if source is None:
                continue
            seen.add(source)
            if moves_only(event):
                for ref in event.refs:
                    reached[ref] = _moved(subject, start, reached[source], ref)
            elif event.name in ARITHMETIC and layouts(subject).followed(start.ref, event.refs[0]) is not None:
                reached[event.refs[0]] = replace(reached[source], tensor=event.refs[0])
            elif event.name not in ops.CREATED_LIKE and event.order not in writes:
                yield replace(reached[source], tensor=(event, place))
    yield from (read for ref, read in reached.items() if ref not in seen and ref != start.ref)


def _moved(subject: Subject, start: _Start, read: _Read, ref: OutputRef) -> _Read:
    reshapes = subject.base.event(ref).name in ops.RESHAPES
    followed = layouts(subject).followed(start.ref, ref) if read.torn is None else None
    torn = followed is not None and not followed.are_boxes(combined(followed.start, start.others))
    return _Read(ref, ref if reshapes else read.reshaped, ref if torn else read.torn)


def _judged(subject: Subject, start: _Start, read: _Read) -> Iterator[Merged | None]:
    followed = layouts(subject).followed(start.ref, read.tensor)
    if followed is None:
        yield None
        return
    heads = list(factors(followed.start, start.others, {subject.numbers.get("H", 0)}))
    together = _read_together(subject, read.tensor)
    if together is None and _is_unmerged(followed, start):
        return
    groups_of_one: list[bool] = []
    orders: list[bool] = []
    readings = [(start.features, start.others)]
    if start.queries:
        # in attention over channels, the queries are features, and what the values carry are tokens
        readings.append((start.queries, [axis for axis in range(len(followed.start)) if axis not in start.queries]))
    for (features, others), factor in itertools.product(readings, heads):
        if factor.axis not in others:
            continue
        vector, feature = _vectors(followed.start, features, others, factor)
        for axes in [together] if together is not None else _choices(len(followed.shape)):
            groups = [axis for axis in range(len(followed.shape)) if axis not in axes]
            found = followed.grouping(vector, feature, groups)
            groups_of_one.append(found.single and features is start.features)
            if found.whole and (found.single or len(axes) == 1 or together is not None):
                orders.append(len(axes) > 1 or _is_ascending(followed, feature, axes[0]))
    if orders:
        yield Merged("in order" if any(orders) else "in another order", read.reshaped)
    elif heads and not any(groups_of_one) and read.reshaped != start.ref:
        yield Merged("scattered", read.reshaped)
    else:
        yield None


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


def _read_together(subject: Subject, tensor: OutputRef | tuple[ReplayedCall, int]) -> tuple[int, ...] | None:
    """Return the axes over which a projection or a convolution sums; None for another call, and at the end."""
    if isinstance(tensor, OutputRef):
        return None
    event, place = tensor
    if event.name in ops.CONVOLUTIONS:
        return (event.operand_values[place].ndim - event.operand_values[1].ndim + 1,) if place == 0 else None
    found = product(event, subject.graph)
    if found is None or place not in found.places or feature_axes(subject, event) is None:
        return None
    return found.contracted(place) or None


def _choices(count: int) -> list[tuple[int, ...]]:
    """Return the axes, and pairs of them, that may hold the features of merged heads."""
    return [(axis,) for axis in reversed(range(count))] + list(itertools.combinations(range(count), 2))


def _is_unmerged(followed: Followed, start: _Start) -> bool:
    """Return whether an axis of a tensor holds the features of one head of one query, and no others."""
    vector, feature = combined(followed.start, start.others), combined(followed.start, start.features)
    for axis in range(len(followed.shape)):
        found = followed.grouping(vector, feature, [other for other in range(len(followed.shape)) if other != axis])
        if found.whole and found.single:
            return True
    return False


def _is_ascending(followed: Followed, feature: Tensor, axis: int) -> bool:
    """Return whether the features along an axis are those of head 0, then those of head 1, and so on."""
    count = int(feature.max()) + 1
    return bool((followed.at([axis]) % count == followed.of(feature)).all())
