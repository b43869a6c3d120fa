"""How much longer queries and keys are than the projections, states or inputs from which they come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType

import torch
from torch import Tensor

from attnshape.checks.attention.cores import between
from attnshape.checks.attention.operands import AttentionOperand, operands, projection
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.token_positions import token_axes
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.scale.spelled_norms import spelled_norm
from attnshape.tracing.operations import (
    ADDITIONS,
    CONVOLUTIONS,
    DATA_MOVEMENT,
    GATHERS,
    JOINS,
    SCALINGS,
    SUMS,
    TOKEN_NORMS,
)

_OF_A_PAIR = 2
"""How many entries of a query or key a rotation makes of one."""
_BAGS = SUMS | {"mean"}
"""Calls that make one vector of the words of a token, for which a table has an entry each."""


def stretch(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a query or key and the projection, norm or input from which it comes.

    None if there is no such factor.
    """
    ways = (_stretch, _stretch_behind_norm, _stretch_behind_call)
    return next(filter(None, (way(subject, operand) for way in ways)), None)


def _features(subject: Subject, operand: AttentionOperand, ref: OutputRef) -> list[int]:
    """Return the features of a projection to change, one after the other, until the query or key changes."""
    width = subject.base.value(ref).shape[_feature_axis(subject, ref)]
    # a head may have fewer features in one of several products than in all of them
    head = min(subject.numbers.get("Dk", operand.width), operand.width)
    # the keys of a fused projection are mostly its second third; in a loop over heads each of them has its own features
    starts = (0, width // 3, head, width // 3 * 2, width - 2 * head, width - head, *range(2 * head, width, head))
    return list(dict.fromkeys(feature for feature in starts if 0 <= feature < width))


def _projection(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return the last product or convolution with parameters from which a query or key comes, or its norm after it.

    Of several products that are added, as with low-rank updates (Hu et al. 2021, https://arxiv.org/abs/2106.09685),
    it is their sum.
    """
    ref = projection(subject, operand.sources)
    upstream = subject.graph.upstream(operand.sources)
    last = next((call for call in upstream if call.name in CONVOLUTIONS | TOKEN_NORMS), None)
    if last is not None and (ref is None or last.order > ref.order):
        ref = last.refs[0]
    ref = ref if ref is not None else _looked_up(subject, operand)
    if ref is None:
        return None
    others = subject.graph.depends_on_data - subject.graph.downstream_of(ref)
    sums = (
        call.refs[0]
        for call in between(subject.graph, ref, operand.sources)
        if call.name in ADDITIONS and any(not others.isdisjoint(sources) for sources in call.sources)
    )
    return next(sums, ref)


def _looked_up(subject: Subject, operand: AttentionOperand) -> OutputRef | None:
    """Return what a query or key is that comes from a table alone: the entry of its token, or the sum over its words.

    None if an entry is multiplied on its way, since that may be the scale of the table.
    """
    is_multiplied = False
    for call in subject.graph.upstream(operand.sources):
        if not call.values[0].is_floating_point() or call.refs[0] not in subject.graph.depends_on_data:
            continue
        if call.name in _BAGS:
            return call.refs[0]
        if call.name in GATHERS and not call.operand_values[-1].is_floating_point():
            return None if is_multiplied else call.refs[0]
        is_multiplied |= call.name in SCALINGS
    return None


def _feature_axis(subject: Subject, ref: OutputRef) -> int:
    """Return the axis of a projection's features, counted from the end; convolutions have them after the batch."""
    is_convolution = subject.base.event(ref).name in CONVOLUTIONS
    return 1 - subject.base.value(ref).ndim if is_convolution else -1


def _at_feature(subject: Subject, ref: OutputRef, feature: int) -> tuple[slice | int | EllipsisType, ...]:
    """Return the index of one feature of a projection, of all tokens."""
    return (..., feature, *[slice(None)] * (-1 - _feature_axis(subject, ref)))


@dataclass(frozen=True)
class _Together:
    """A run in which a feature of the projections of all queries and keys is changed."""

    run: SimultaneousRun
    features: Mapping[OutputRef, int]
    """The feature that is changed of each projection."""

    def has(self, ref: OutputRef, feature: int) -> bool:
        """Return whether what follows from a feature of a projection can be read from the run."""
        return self.features.get(ref) == feature and self.run.is_apart(ref)


@once
def _runs_together(subject: Subject) -> dict[int, _Together]:
    """Return the runs made so far, by the attempt."""
    return {}


def _changed_together(subject: Subject, attempt: int) -> _Together:
    """Return the run of an attempt, in which the projections of all queries and keys are changed together."""
    runs = _runs_together(subject)
    if attempt not in runs:
        chosen: dict[OutputRef, int] = {}
        for operand in operands(subject):
            ref = _projection(subject, operand) if operand.role != "value" else None
            features = _features(subject, operand, ref) if ref is not None else []
            if ref is not None and attempt < len(features):
                chosen[ref] = features[attempt]
        results = {ref: _longer(*_at_feature(subject, ref, feature)) for ref, feature in chosen.items()}
        runs[attempt] = _Together(subject.perturb_each(Intervention(results=results)), chosen)
    return runs[attempt]


def _stretch(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a projection and the query or key that enters the product; None if there isn't one."""
    ref = _projection(subject, operand)
    if ref is None:
        origins = subject.graph.origins(operand.sources)
        names = sorted(origins & set(subject.inputs)) or sorted(origins & subject.base.state.keys())
        if not names:
            return 1.0
        names = [name for name in names if name not in subject.inputs or subject.inputs[name].is_floating_point()]
        return _stretch_from(subject, operand, names) if names else None
    for attempt, feature in enumerate(_features(subject, operand, ref)):
        together = _changed_together(subject, attempt)
        if together.has(ref, feature):
            run = together.run.run
        else:
            run = subject.experiment.run(Intervention(results={ref: _longer(*_at_feature(subject, ref, feature))}))
        difference = _difference(subject, operand, run)
        if difference is None:
            return None
        lengths = _lengths(subject, operand, difference)
        if not lengths.numel():
            continue
        changed = difference.abs().gt(subject.experiment.tolerance)
        entries = changed.sum(operand.contracted)
        every = bool((changed.all(operand.contracted) == (entries > 0)).all())
        if every or int(entries.max()) > _OF_A_PAIR or _are_repeated(difference.abs(), changed, operand.contracted):
            # the product sums over tokens, by themselves or beside features: the changes of all of them would add up
            shape = subject.base.value(ref).shape
            summed = {operand.value.shape[axis] for axis in operand.contracted}
            index: list[slice | int] = [0 if shape[0] in summed else slice(None), *[0] * (len(shape) - 1)]
            index[_feature_axis(subject, ref)] = feature
            return _stretch_of_one(subject, operand, partial(_of_result, ref), *index)
        return float(lengths[0]) if _are_close(lengths) else None
    return None


def _are_repeated(lengths: Tensor, changed: Tensor, axes: tuple[int, ...]) -> bool:
    """Return whether vectors change at several entries, all alike: those of other tokens, and no rotated pair's."""
    longest, shortest = lengths.amax(axes), lengths.where(changed, math.inf).amin(axes)
    several = changed.sum(axes) > 1
    return bool(several.any()) and bool(torch.isclose(longest, shortest)[several].all())


def _stretch_behind_norm(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between a norm that is spelled out and the query or key, if a scale is claimed."""
    ref = spelled_norm(subject, operand) if subject.claims.scale is not None else None
    if ref is None:
        return None
    for feature in _features(subject, operand, ref):
        run = subject.experiment.run(Intervention(results={ref: _longer(..., feature)}))
        difference = _difference(subject, operand, run)
        lengths = _lengths(subject, operand, difference) if difference is not None else torch.empty(0)
        if lengths.numel():
            return float(lengths[0]) if _are_close(lengths) else None
    return None


def _stretch_behind_call(subject: Subject, operand: AttentionOperand) -> float | None:
    """Return the factor between the last call that does more than move and scale its numbers, and the query or key.

    So of the states of a recurrent network, if a scale is claimed: without a claim they needn't have one.
    """
    sources = operand.sources if subject.claims.scale is not None else ()
    while len(sources) == 1 and isinstance(ref := sources[0], OutputRef):
        event = subject.base.event(ref)
        if event.name not in DATA_MOVEMENT | SCALINGS or event.name in JOINS:
            return _stretch_of_one(subject, operand, partial(_of_result, ref))
        data = [one for one in event.sources if subject.graph.carries_data(one)]
        sources = data[0] if len(data) == 1 else ()
    return None


def _stretch_from(subject: Subject, operand: AttentionOperand, names: Sequence[str]) -> float | None:
    """Return the factor between inputs, or parameters and buffers, and the query or key that enters the product."""
    first = _stretch_of_one(subject, operand, lambda change: _named(subject, names, change))
    if first is not None or names[0] not in subject.inputs:
        return first
    # a chunk of the tokens may not have the first one
    values = [subject.inputs[name] for name in names]
    axes = next((found for value in values if (found := token_axes(subject, value)) is not None), None)
    if axes is None or any(value.shape != axes.shape for value in values) or operand.width in axes.sizes:
        return None
    index = [slice(None) if axis in axes.axes else 0 for axis in range(len(axes.shape))]
    return _stretch_of_one(subject, operand, lambda change: _named(subject, names, change), *index)


def _stretch_of_one(
    subject: Subject,
    operand: AttentionOperand,
    intervention: Callable[[Replace], Intervention],
    *index: slice | int,
) -> float | None:
    """Return the factor on one vector, in which one number is changed; None if it depends on the number."""
    found = []
    for amount in (1.0, 2.0):
        run = subject.experiment.run(intervention(_longer(*index, amount=amount)))
        difference = _difference(subject, operand, run)
        if difference is None:
            return None
        found.append(_lengths(subject, operand, difference) / amount)
    lengths = torch.cat(found)
    return float(lengths[0]) if lengths.numel() and _are_close(lengths) else None


def _of_result(ref: OutputRef, change: Replace) -> Intervention:
    """Return an intervention on one result."""
    return Intervention(results={ref: change})


def _named(subject: Subject, names: Sequence[str], change: Replace) -> Intervention:
    """Return an intervention on inputs, or on parameters and buffers."""
    changes = dict.fromkeys(names, change)
    return Intervention(inputs=changes) if names[0] in subject.inputs else Intervention(parameters=changes)


def _difference(subject: Subject, operand: AttentionOperand, run: ReplayRun) -> Tensor | None:
    """Return by how much an operand differs in a run; None if the code takes another path in it."""
    return (operand.of(run) - operand.value).double() if run.follows(subject.base) else None


def _lengths(subject: Subject, operand: AttentionOperand, difference: Tensor) -> Tensor:
    """Return the lengths of an operand's vectors, those of zero left out."""
    lengths = difference.square().sum(operand.contracted).sqrt().flatten()
    return lengths[lengths > subject.experiment.tolerance]


def _are_close(numbers: Tensor) -> bool:
    return bool(torch.isclose(numbers, numbers[0], rtol=1e-4).all())


def _longer(*index: slice | int | EllipsisType, amount: float = 1.0) -> Replace:
    """Return a replacement that adds an amount at an index, by default at the first number."""

    def change(value: Tensor) -> Tensor:
        value[index or (0,) * value.ndim] += amount
        return value

    return change
