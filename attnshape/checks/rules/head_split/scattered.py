"""Looks for projections of which the features of one token are scattered over several queries, keys or values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from attnshape.checks.attention.cores import FusedCore, between, moves_only
from attnshape.checks.attention.layouts import (
    ARITHMETIC,
    Followed,
    combined,
    factors,
    feature_axes,
    layouts,
    projection_of,
)
from attnshape.checks.attention.operands import AttentionOperand, AttentionOperands, operands
from attnshape.checks.attention.perturbation import differs
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.tracing import operations as ops


@dataclass(frozen=True)
class Scattered:
    """A projection of which one token's features end up in several slots, with other tokens' features."""

    operand: AttentionOperand
    projection: OutputRef
    at: OutputRef
    """The call that scatters them."""
    token: int
    """A token whose features are scattered, counted over all tokens of the batch."""
    axis: int
    indices: tuple[int, ...]
    """Where its features end up along the axis."""
    cut: bool
    """Whether each of several operands that share a projection gets all of its features."""


def keeps_all_vectors(subject: Subject, attention: AttentionOperands) -> list[Scattered | bool | None]:
    """Return whether the features of each token stay together, for the query, the key and the value of an attention.

    True if they do, None if that can't be told, else what is scattered. Where there are as many tokens as a head has
    features, keys that are features look like keys that are tokens: queries and the tokens of the inputs tell.
    """
    query, *others = attention
    found = keeps_vectors(subject, query)
    results: list[Scattered | bool | None] = [found]
    for operand in others:
        result = keeps_vectors(subject, operand)
        if result is None and found is True and _comes_from_several_tokens(subject, operand):
            result = keeps_vectors(subject, operand, over_tokens=True)
        results.append(result)
    return results


@once
def _with_one_token(subject: Subject) -> list[ReplayRun]:
    """Return a run for each length with one token of the inputs changed; what attention returns is put back."""
    changes = [subject.at_index(symbol, subject.numbers[symbol] // 2) for symbol in subject.lengths]
    runs = [subject.perturb_each(Intervention(inputs=change)).run for change in changes if change]
    return [run for run in runs if run.follows(subject.base)]


def _comes_from_several_tokens(subject: Subject, operand: AttentionOperand) -> bool:
    """Return whether a token of the inputs reaches some of the numbers of a key's or a value's vector, but not all."""
    own = vector_axes(operand)
    for run in _with_one_token(subject) if own else ():
        changed = differs(operand.value, operand.of(run), subject.experiment.tolerance)
        if bool((changed.amax(own) & ~changed.amin(own)).any()):
            return True
    return False


def keeps_vectors(subject: Subject, operand: AttentionOperand, over_tokens: bool = False) -> Scattered | bool | None:
    """Return whether the features of each token stay together between a projection and attention.

    `over_tokens` says that keys are known to be tokens, though each may hold one feature of many of them.
    """
    start = projection_of(subject, operand.sources)
    if start is None:
        return None
    calls = between(subject.graph, start, operand.sources)
    prefix = list(itertools.takewhile(lambda call: moves_only(call) or call.name in ARITHMETIC, calls))
    found = _at_operand(subject, operand, start, prefix, len(prefix) == len(calls))
    own = vector_axes(operand)
    features = feature_axes(subject, subject.base.event(start))
    if found is None or not own or features is None:
        return None
    followed, axes = found
    own = tuple(axes.index(axis) for axis in own)
    slots = [axis for axis in range(len(followed.shape)) if axis not in own]
    vector, feature = _numbered(followed, features)
    if not over_tokens and followed.grouping(feature, feature, slots).single:
        return None  # the slots are features, as in attention over channels
    if _is_whole(subject, followed, vector, feature, slots):
        return True
    if _is_part_of_heads(subject, start, prefix, followed, own, features):
        return True
    if not all(map(moves_only, prefix)):
        return None
    return _describe(subject, operand, start, prefix, followed, vector, feature, slots)


def _numbered(followed: Followed, features: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the number of its vector, and that of its feature, for each element of a projection."""
    others = [axis for axis in range(len(followed.start)) if axis not in features]
    return combined(followed.start, others), combined(followed.start, features)


def vector_axes(operand: AttentionOperand) -> tuple[int, ...]:
    """Return the axes of an operand that hold the features of one token and head."""
    if operand.role != "value":
        return operand.contracted
    if isinstance(operand.core, FusedCore):
        return (operand.value.ndim - 1,)
    values = operand.core.value
    free = values.free(operand.place)
    return tuple(axis for axis, stays in enumerate(values.axes[operand.place]) if stays & free)


def _at_operand(
    subject: Subject, operand: AttentionOperand, start: OutputRef, prefix: Sequence[ReplayedCall], to_the_end: bool
) -> tuple[Followed, list[int]] | None:
    """Return the operand followed from a projection, or the last earlier tensor with the same axes.

    Each axis of the tensor comes with the operand's axis that it is.
    """
    if to_the_end:
        followed = layouts(subject).followed(start, (operand.event, operand.place))
        return (followed, list(range(len(followed.shape)))) if followed is not None else None
    shape = list(operand.value.shape)
    for call in reversed(prefix):
        for ref, value in zip(call.refs, call.values, strict=True):
            sizes = list(value.shape)
            if len(sizes) == len(shape) and sum(a != b for a, b in zip(sizes, shape, strict=True)) <= 1:
                axes = list(range(len(shape)))
            elif sorted(sizes) == sorted(shape) and len(set(sizes)) == len(sizes):
                axes = [shape.index(size) for size in sizes]
            else:
                continue
            followed = layouts(subject).followed(start, ref)
            return (followed, axes) if followed is not None else None
    return None


def _is_whole(subject: Subject, followed: Followed, vector: Tensor, feature: Tensor, slots: Sequence[int]) -> bool:
    """Return whether slots hold whole vectors, if those that differ in the head only are taken together."""
    sizes = {subject.numbers.get(symbol, 0) for symbol in ("H", "Hkv", "G")} | _own_heads(subject, feature)
    heads = [axis for axis in slots if followed.shape[axis] in sizes]
    for count in range(3):
        for without in itertools.combinations(heads, count):
            others = [axis for axis in slots if axis not in without]
            if followed.grouping(vector, feature, others).whole:
                return True
            # one more part of the features, such as the heads of a group, may be folded into the axis of tokens
            for factor in factors(followed.shape, others, sizes) if count else ():
                found = followed.grouping(vector, feature, others, [factor])
                if found.whole and found.single:
                    return True
    if any(
        followed.grouping(vector, feature, slots, [factor]).whole
        for factor in factors(followed.shape, slots, sizes)
        if factor.size != followed.shape[factor.axis]
    ):
        return True
    return _has_an_index_for_each(subject, followed, vector, feature, slots)


def _is_part_of_heads(
    subject: Subject,
    start: OutputRef,
    prefix: Sequence[ReplayedCall],
    part: Followed,
    own: tuple[int, ...],
    features: Sequence[int],
) -> bool:
    """Return whether an operand has some indices of an axis of heads, and slots hold whole vectors where it has all."""
    others = [size for axis, size in enumerate(part.shape) if axis not in own]
    for ref in (ref for call in reversed(prefix) for ref in call.refs):
        sizes = subject.base.value(ref).shape
        whole = [size for size in sizes if size not in part.shape]
        if len(sizes) != len(part.shape) or len(set(sizes)) < len(sizes) or len(whole) != 1:
            continue
        taken = [size for size in part.shape if size not in sizes]
        if whole[0] in subject.head_sizes and len(taken) == 1 and taken[0] in others and taken[0] < whole[0]:
            followed = layouts(subject).followed(start, ref)
            if followed is None:
                return False
            of_vectors = {sizes.index(part.shape[axis]) for axis in own}
            slots = [axis for axis in range(len(sizes)) if axis not in of_vectors]
            return _is_whole(subject, followed, *_numbered(followed, features), slots)
    return False


def _own_heads(subject: Subject, feature: Tensor) -> set[int]:
    """Return the sizes of the user's own symbols that may count heads: they divide the features of a projection."""
    count = int(feature.max()) + 1
    own = subject.numbers.keys() - SYMBOLS_BY_NAME.keys() - set(subject.lengths)
    return {size for symbol in own if 1 < (size := subject.numbers[symbol]) < count and count % size == 0}


def _has_an_index_for_each(
    subject: Subject, followed: Followed, vector: Tensor, feature: Tensor, slots: Sequence[int]
) -> bool:
    """Return whether some of the slots' axes number the vectors, one index for each.

    The others then divide up the features, in however many steps: into heads, their halves, or parts of each.
    """
    batch = subject.batch_size
    # an axis that folds the batch with such parts
    folded = {followed.shape[axis] // batch for axis in slots if batch > 1 and followed.shape[axis] % batch == 0}
    parts = [factor for factor in factors(followed.shape, slots, folded) if factor.size != followed.shape[factor.axis]]
    for count in range(len(slots) + 1):
        for kept in itertools.combinations(slots, count):
            for without in ([], *([factor] for factor in parts if factor.axis in kept)):
                found = followed.grouping(vector, feature, kept, without)
                if found.whole and found.single:
                    return True
    return False


def _describe(
    subject: Subject,
    operand: AttentionOperand,
    start: OutputRef,
    prefix: Sequence[ReplayedCall],
    followed: Followed,
    vector: Tensor,
    feature: Tensor,
    slots: Sequence[int],
) -> Scattered | None:
    vectors = followed.of(vector)
    token = int(vectors.median())
    places = {axis: tuple(sorted(set(followed.at([axis])[vectors == token].tolist()))) for axis in slots}
    heads = subject.head_sizes
    axis = max(slots, key=lambda axis: (followed.shape[axis] not in heads, len(places[axis])))
    at = next((call.refs[0] for call in prefix if _scatters(subject, start, call, vector, feature)), None)
    shared = [other for other in operands(subject) if projection_of(subject, other.sources) == start]
    cut = len(shared) > 1 and len(set(followed.of(feature).tolist())) == int(feature.max()) + 1
    reshapes = [call.refs[0] for call in prefix if call.name in ops.RESHAPES]
    at = at or next(iter(reshapes), None)
    return Scattered(operand, start, at, token, axis, places[axis], cut) if at is not None else None


def _scatters(subject: Subject, start: OutputRef, call: ReplayedCall, vector: Tensor, feature: Tensor) -> bool:
    """Return whether no axes of a call's result hold the features of one vector any more."""
    if call.name not in ops.RESHAPES:
        return False
    followed = layouts(subject).followed(start, call.refs[0])
    if followed is None:
        return False
    sizes = {subject.numbers.get("H", 0), subject.numbers.get("Hkv", 0)} | _own_heads(subject, feature)
    every = range(len(followed.shape))
    for count in range(len(followed.shape)):
        for groups in itertools.combinations(every, count):
            found = followed.grouping(vector, feature, groups)
            if found.whole and found.single:
                return False
            for factor in factors(followed.shape, groups, sizes):
                found = followed.grouping(vector, feature, groups, [factor])
                if found.whole and found.single:
                    return False
    return True
