"""Judges the masks of shifted windows: a query must not see a key that only the shift brought into its window.

A map is rolled, cut into windows and attended to (Liu et al. 2021, https://arxiv.org/abs/2103.14030). Windows at the
edge then hold tokens from both sides of the map, which a mask has to keep apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import reaches_by_data_movement
from attnshape.checks.attention.definitions import constant_definition
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.perturbation import differs, is_pattern, others_where
from attnshape.checks.attention.products import recompute
from attnshape.checks.attention.slots import by_pair
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import ExplainedVisibility, VisibleKeys
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import SAME_VALUES

_SEPARATES = -20.0
"""A key is hidden where this much less is added to its score than to others: some code adds no more than -100."""
_MOST_ATTENTIONS = 2


@dataclass(frozen=True)
class _Axis:
    """An axis along which a map is rolled, or two maps alike: the one of queries and the one of keys."""

    rolls: tuple[ReplayedCall, ...]
    axis: int
    original: Tensor
    """For each position after the roll, the one before it."""

    @property
    def size(self) -> int:
        """The number of positions."""
        return len(self.original)


@dataclass(frozen=True)
class _Pairs:
    """The queries and keys of an attention, by their positions along one axis of the map; all are (B, H, Lq, Lk)."""

    axis: _Axis
    queries: Tensor
    keys: Tensor

    @property
    def distance(self) -> Tensor:
        """How far apart they are in the map."""
        return (self.queries - self.keys).abs()

    @property
    def within(self) -> Tensor:
        """How far apart they are in the rolled map."""
        rolled = self.axis.original.argsort()
        return (rolled[self.queries] - rolled[self.keys]).abs()

    @property
    def window(self) -> int:
        """The width of the windows."""
        return int(self.within.max()) + 1

    @property
    def across(self) -> Tensor:
        """Where they are further apart than any two tokens of a window are before the roll."""
        return self.distance >= self.window


def judge_rolled(subject: Subject, explained: Sequence[ExplainedVisibility]) -> Iterator[Outcome]:
    """Change half of a rolled map's positions at a time, so that each query and key tells where it comes from."""
    of_core = {operands[0].core.context: operands for operands in by_attention(subject)}
    rolled = []
    for explanation in explained:
        query, key, _ = of_core[explanation.visible.core.context]
        axes = list(_rolled_axes(subject, query, key))
        if axes:
            rolled.append((explanation, query, key, axes))
    told = []
    for explanation, query, key, axes in rolled[:_MOST_ATTENTIONS]:
        pairs = [_positions(subject, explanation.visible, query, key, axis) for axis in axes]
        known = [one for one in pairs if one is not None and 2 * one.window <= one.axis.size]
        told.append(len(known) == len(axes))
        violation = _judge(subject, explanation, known)
        if violation is not None:
            yield violation
            return
    if rolled and len(told) == len(rolled) and all(told) and len(explained) == len(subject.attentions):
        yield Verification("no query sees a key across the edge of a rolled map")


def _rolled_axes(subject: Subject, query: AttentionOperand, key: AttentionOperand) -> Iterator[_Axis]:
    """Yield the axes along which the maps of queries and of keys are both rolled, last before the products."""
    of_keys, of_queries = list(_last_rolls(subject, key)), list(_last_rolls(subject, query))
    if _have_ways_past(subject, query, of_queries) or _have_ways_past(subject, key, of_keys):
        return
    for roll in of_queries:
        for axis, original in _axes_of(roll):
            if roll in of_keys:
                yield _Axis((roll,), axis, original)
                continue
            for other in of_keys:
                if any(axis == same and torch.equal(original, moved) for same, moved in _axes_of(other)):
                    yield _Axis((roll, other), axis, original)
                    break


def _last_rolls(subject: Subject, operand: AttentionOperand) -> Iterator[ReplayedCall]:
    """Yield the last roll before an operand, and those before it along other axes."""
    last: ReplayedCall | None = None
    for event in subject.graph.upstream(operand.sources):
        if event.name != "roll" or event.refs[0] not in subject.graph.depends_on_data:
            continue
        if last is None or reaches_by_data_movement(subject.graph, event.refs, last):
            yield event
            last = event


def _have_ways_past(subject: Subject, operand: AttentionOperand, rolls: Sequence[ReplayedCall]) -> bool:
    """Return whether an operand depends on what is rolled other than through the rolls, as where tokens are mixed."""
    after, before = {ref for roll in rolls for ref in roll.refs}, {one for roll in rolls for one in roll.producers}
    wanted: set[Producer] = set(operand.sources) - after
    visited: set[Producer] = set()
    while wanted:
        producer = wanted.pop()
        visited.add(producer)
        if producer in before:
            return True
        if isinstance(producer, OutputRef) and reads_numbers(subject.base.event(producer)):
            wanted |= subject.base.event(producer).producers - after - visited
    return False


def _axes_of(roll: ReplayedCall) -> Iterator[tuple[int, Tensor]]:
    """Yield each axis that a call rolls, with the position before the roll for each one after it."""
    shape = roll.values[0].shape
    for axis, size in enumerate(shape):
        index = torch.arange(size).reshape([-1 if one == axis else 1 for one in range(len(shape))]).expand(shape)
        moved = recompute(roll, {0: index.contiguous()})
        original = moved.movedim(axis, 0).reshape(size, -1)[:, 0]
        if not torch.equal(original, torch.arange(size)) and len(set(original.tolist())) == size:
            yield axis, original


def _positions(
    subject: Subject, visible: VisibleKeys, query: AttentionOperand, key: AttentionOperand, axis: _Axis
) -> _Pairs | None:
    """Return where queries and keys come from; None if one of them doesn't come from a single position."""
    shape = [-1 if one == axis.axis else 1 for one in range(axis.rolls[0].values[0].ndim)]
    found = [torch.zeros(visible.keys.shape, dtype=torch.int64) for _ in range(2)]
    for bit in range((axis.size - 1).bit_length()):
        of_half: list[list[Tensor]] = []
        for half in (0, 1):
            change = others_where((axis.original >> bit & 1 == half).reshape(shape))
            moved = subject.perturb(Intervention(results={roll.refs[0]: change for roll in axis.rolls}))
            if not moved.comparable:
                return None
            changed = []
            for operand in (query, key):
                mask = differs(operand.value, operand.of(moved.changed), subject.experiment.tolerance)
                pairs = by_pair(subject, operand, mask)
                arranged = visible.arranged(pairs) if pairs is not None else None
                if arranged is None:
                    return None
                changed.append(arranged)
            of_half.append(changed)
        for which, (zero, one) in enumerate(zip(*of_half, strict=True)):
            if not bool((zero ^ one).all()):
                return None
            found[which] += one.long() << bit
    return _Pairs(axis, *found) if all(bool((one < axis.size).all()) for one in found) else None


def _judge(subject: Subject, explanation: ExplainedVisibility, known: Sequence[_Pairs]) -> Violation | None:
    visible = explanation.visible
    added = visible.added.nan_to_num(posinf=1e300, neginf=-1e300)
    seen = (added - added.amax(-1, keepdim=True) > _SEPARATES) & ~visible.dropped
    leaking = [pairs for pairs in known if bool((seen & pairs.across).any())]
    if not leaking:
        return None
    pairs = leaking[0]
    first = tuple((seen & pairs.across).nonzero()[0])
    query, key = (int(one[first]) for one in (pairs.queries, pairs.keys))
    message = (
        f"queries see keys across the edge of a rolled map: along axis {pairs.axis.axis}, position {query} sees "
        f"position {key}, {abs(query - key)} away, in windows of {pairs.window}"
    )
    is_masked = not bool(seen.all())
    is_open = all(_is_open(one, known, seen) for one in leaking)
    given = bool(explanation.right.masks) or any(map(is_pattern, subject.base.inputs.values()))
    at = _line(subject, visible, known, is_open) if is_masked else pairs.axis.rolls[0].refs[0]
    hint = "hide the keys that the roll brought into a window: tell the mask's regions apart along each axis, as rolled"
    if is_open:  # as along the longitude of the globe
        hint = "hide the keys that the roll brought into a window, unless the map is meant to be round along this axis"
    return Violation(
        "AS410",
        message,
        at,
        hint,
        "changed half of the map's positions at a time, which tells where each query and key comes from",
        made=constant_definition(subject, at),
        level="notice" if is_open or given else "error",
    )


def _line(subject: Subject, visible: VisibleKeys, known: Sequence[_Pairs], is_open: bool) -> OutputRef:
    """Return the call that makes the mask, or its regions in the map if they differ along other axes only."""
    at = MaskLines(subject, visible.core).first_constant(partial(_hides_some, visible=visible))
    sizes = {pairs.axis.size for pairs in known}
    for event in subject.graph.upstream((at,)) if is_open else ():
        if event.refs[0] in subject.graph.depends_on_data:
            break
        if event.name not in SAME_VALUES and sizes <= set(event.values[0].shape):
            return event.refs[0]
    return at


def _hides_some(value: Tensor, visible: VisibleKeys) -> bool:
    """Return whether a tensor is a mask of queries and keys: of two numbers, of which one hides keys if it is added."""
    if value.shape[-2:] != visible.keys.shape[-2:] or not is_pattern(value):
        return False
    least, most = value.double().min(), value.double().max()
    return bool(least < most if value.dtype == torch.bool else least - most < _SEPARATES)


def _is_open(pairs: _Pairs, known: Sequence[_Pairs], seen: Tensor) -> bool:
    """Return whether every query sees the keys that are across this edge and no other one."""
    others = torch.zeros_like(seen)
    for other in known:
        if other is not pairs:
            others |= other.across
    return bool(seen[pairs.across & ~others].all())
