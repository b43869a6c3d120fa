"""Finds dead ends: results that depend on the inputs and on which no result of the target depends."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnshape.checks.attention.cores import RunGraph
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.variables import CONTAINERS, Function, Loop, returned, scope, stores
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.interventions.uses import kept_results
from attnshape.inference.dataflow import reads_numbers
from attnshape.model.trace import Reference
from attnshape.tracing.operations import INDEXED_WRITES, MASKS
from attnshape.tracing.raw import RawStep, SourceLocation
from attnshape.tracing.source_locations import SourceLocator, assignment_targets
from attnshape.tracing.storage import memory_of
from attnshape.tracing.syntax_nodes import enclosing

Fate = Literal["discarded", "overwritten", "unread", "ignored"]
"""What the code does with a result: an expression statement discards it, its variable is bound again before it is read,
nothing reads its variable, or it is passed to something that ignores it, as far as the source can be read."""

_MAKERS = {"list", "tuple", "dict"}
"""Functions that make a container of what a comprehension yields."""


@dataclass(frozen=True)
class DeadEnd:
    """A result that no call reads, and that is gone after the run."""

    ref: OutputRef
    fate: Fate
    place: SourceLocation | None
    """The statement that discards or binds it: in the function that gets it, if others return it."""
    variable: str = ""
    """The name to which it is bound."""
    is_leftover: bool = False
    """Whether it comes along with a result that is used: one of several values, or a loop's last state."""


@once
def live_results(subject: Subject) -> frozenset[Producer]:
    """Return the results, inputs, parameters and constants on which the target's results or its state depend."""
    events = subject.base.events
    named = {
        memory_of(operand)
        for event in events
        for operand, sources in zip(event.operands, event.sources, strict=True)
        if isinstance(sources[0], str)
    }
    kept = kept_results(subject.experiment)
    outputs = {ref: event.outputs[ref.output] for event in events for ref in event.refs}
    ends = [ref for ref in kept if ref in outputs]
    memories = (named | {memory_of(outputs[ref]) for ref in ends}) - {None}
    ends += [event.refs[0] for event in events if event.in_place and memory_of(event.outputs[0]) in memories]
    live: set[Producer] = set(ends)
    for event in subject.graph.upstream(tuple(ends)):
        live |= event.producers if reads_numbers(event) else set()
    return frozenset(live)


_WRITES = INDEXED_WRITES | MASKS
"""Calls that return their first operand with other numbers at some places, of masks and indices too."""


@once
def dead_ends(subject: Subject) -> list[DeadEnd]:
    """Return the results at which a path from inputs or parameters ends, in order.

    Those that a library drops itself are left out.
    """
    live, graph = live_results(subject), subject.graph
    learned = graph.downstream(set(subject.experiment.parameters)) | graph.depends_on_data
    found = []
    for event in subject.base.events:
        for ref in event.refs:
            is_float = event.values[ref.output].is_floating_point()
            dead = ref not in live and not event.in_place and (is_float or event.name in _WRITES)
            if not dead or ref not in learned or _is_read(graph, ref):
                continue
            end = _DeadEnds(subject, event).of(ref)
            if end is not None and (is_float or end.fate == "discarded"):
                found.append(end)
    return found


def is_dropped(subject: Subject, ref: OutputRef) -> bool:
    """Return whether a statement discards, overwrites or never reads everything that is computed from a result."""
    downstream = subject.graph.downstream_of(ref)
    ends = [end for end in dead_ends(subject) if end.ref in downstream]
    return bool(ends) and not any(end.is_leftover or end.fate == "ignored" for end in ends)


def holds_attention(subject: Subject, end: DeadEnd) -> bool:
    """Return whether a result contains an attention on which nothing else depends."""
    live, graph = live_results(subject), subject.graph
    contexts = [core.context for core in subject.attentions if core.context not in live]
    return any(end.ref in graph.downstream_of(context) for context in contexts)


def _is_read(graph: RunGraph, ref: OutputRef) -> bool:
    return any(reads_numbers(reader) for reader, _ in graph.consumers.get(ref, ()))


@dataclass(frozen=True)
class _Binding:
    """Where a result ends up in the traced code."""

    fate: Fate
    place: SourceLocation | None
    variable: str
    level: int
    """Which of the frames of its call binds it, 0 being the innermost."""
    part: int | None
    """Which of several values it is."""


class _DeadEnds:
    """Looks up what becomes of the results of one call."""

    def __init__(self, subject: Subject, event: ReplayedCall) -> None:
        self._subject = subject
        self._event = event
        self._own = [
            other for other in subject.base.events if other.calls == event.calls and other.operation == event.operation
        ]
        """All calls of the same expression."""
        self._earlier = [other for other in self._own if other.order < event.order]

    def of(self, ref: OutputRef) -> DeadEnd | None:
        """Return the dead end that a result is; None if a library drops it."""
        found = _part_of_call(self._subject, ref)
        if found is None:
            return None
        bound = _binding(self._event, found.part, len(self._earlier))
        if bound is None or (bound.fate == "discarded" and self._is_called_for_its_effect(bound)):
            return DeadEnd(ref, "ignored", None)
        leftover = self._is_leftover(bound)
        return DeadEnd(ref, bound.fate, bound.place, bound.variable, leftover)

    def _is_called_for_its_effect(self, bound: _Binding) -> bool:
        """Return whether the results depend on something else that the call computes: it fills a cache."""
        live = live_results(self._subject)
        return any(ref in live for event in self._within(bound) for ref in event.refs)

    def _within(self, bound: _Binding) -> list[ReplayedCall]:
        """Return the calls that the same statement makes, in every iteration."""
        outer = self._event.calls[bound.level :]
        return [event for event in self._subject.base.events if event.calls[-len(outer) :] == outer]

    def _is_leftover(self, bound: _Binding) -> bool:
        """Return whether the same values of an unpacked tuple, or earlier iterations of a loop, have been used."""
        live = live_results(self._subject)
        same, own, earlier = self._within(bound), self._own, self._earlier
        is_last = own[-1] is self._event
        in_loop = bound.place is not None and not bound.place.targets_per_iteration
        if is_last and in_loop and any(ref in live for event in earlier for ref in event.refs):
            return True
        if bound.part is None:
            return False
        # the other values of the same call: those since the last iteration, and up to the next
        begin = earlier[-1].order if earlier else 0
        end = next((event.order for event in own if event.order > self._event.order), self._event.order + len(same) + 1)
        around = [event for event in same if begin < event.order < end]
        return any(ref in live for event in around for ref in event.refs)


@dataclass(frozen=True)
class _Returned:
    """That a call of the traced code returns a tensor."""

    part: int | None
    """Which of several tensors it is; None if it is the only one."""


def _part_of_call(subject: Subject, ref: OutputRef) -> _Returned | None:
    """Return which result of the traced code's own call a tensor is; None if a library made it for itself."""
    steps = subject.experiment.raw.steps
    inner, outer = subject.experiment.steps.get(ref.order), subject.step(ref)
    if inner is None or outer is None or outer.library:
        return None
    position = next(place for place, step in enumerate(steps, 1) if step is inner)
    for place, output in enumerate(outer.outputs):
        if place == ref.output if outer is inner else _innermost(steps, output.inner) == (position, ref.output):
            return _Returned(place if len(outer.outputs) > 1 else None)
    return None


def _innermost(steps: Sequence[RawStep], reference: Reference | None) -> tuple[int, int] | None:
    while reference is not None and reference.step is not None:
        inner = steps[reference.step - 1].outputs[reference.output].inner
        if inner is None:
            return reference.step, reference.output
        reference = inner
    return None


def _binding(event: ReplayedCall, part: int | None, iteration: int = 0) -> _Binding | None:
    """Follow a result through the functions that return it, to the statement that drops it; None without source.

    `part` is which of several results it is, and `iteration` how often the same expression was evaluated before.
    """
    locator = SourceLocator()
    for level, frame in enumerate(event.calls):
        place, found = locator.find(frame)
        node: Any = found
        if node is None:
            return None
        while isinstance(node.parent, (ast.Await, ast.IfExp, ast.BoolOp)):
            node = node.parent
        parent = node.parent
        if place.targets_per_iteration:
            name = place.targets_per_iteration[iteration % len(place.targets_per_iteration)]
            fate = _fate(parent.parent, name) if name is not None else "ignored"
            return _Binding(fate, place, name or "", level, None)
        if isinstance(parent, ast.Expr):
            return _Binding("discarded", place, "", level, part)
        names, unpacked, _ = assignment_targets(node)
        name = (
            (names[part] if part is not None and part < len(names) else None) if unpacked else next(iter(names), None)
        )
        if name is not None:
            places = list(_places_returned(scope(node), name))
            is_bound_later = any(other.lineno > node.lineno for other in stores(scope(node), name))
            if places and not is_bound_later:
                part = places[0] if part is None or unpacked else part
                continue
            holds_all = part is not None and not unpacked
            return _Binding("ignored" if holds_all else _fate(node, name), place, name, level, part)
        if isinstance(parent, ast.Return):
            continue
        container = _container(node)
        name = next(iter(assignment_targets(container)[0]), None) if container is not node else None
        if name is not None:
            return _Binding(_fate(container, name), place, name, level, part)
        if isinstance(parent, ast.Tuple) and isinstance(parent.parent, ast.Return):  # type: ignore[attr-defined]  # executing sets it
            part = parent.elts.index(node)
            continue
        return _Binding("ignored", place, "", level, part)
    return None


def _container(node: Any) -> Any:
    """Return the outermost list, tuple or dictionary that an expression is an element of, or the expression itself."""
    while True:
        parent = node.parent
        is_element = isinstance(parent, (*CONTAINERS, ast.ListComp, ast.GeneratorExp, ast.DictComp))
        makes = isinstance(parent, ast.Call) and node in parent.args and getattr(parent.func, "id", None) in _MAKERS
        if not is_element and not makes:
            return node
        node = parent


def _places_returned(function: ast.AST, name: str) -> Iterator[int | None]:
    """Yield for each return of a variable which of the returned values it is, or None where it is the only one."""
    for node in returned(function, name):
        around, outer = node.parent, node.parent.parent
        if isinstance(around, ast.Return):
            yield None
        elif isinstance(around, ast.Tuple) and isinstance(outer, ast.Return):
            yield around.elts.index(node)


def _fate(node: Any, name: str) -> Fate:
    """Return what becomes of the value of a variable that an expression is assigned to, by the order of the lines."""
    begin, end = node.lineno, node.end_lineno
    loop = enclosing(node, Loop | Function | ast.Module)
    named = [other for other in ast.walk(scope(node)) if isinstance(other, ast.Name) and other.id == name]
    loads = [other.lineno for other in named if isinstance(other.ctx, ast.Load)]
    later = [other.lineno for other in named if isinstance(other.ctx, ast.Store) and other.lineno > end]
    if later:
        return "ignored" if any(end < line <= min(later) for line in loads) else "overwritten"
    if any(line > end for line in loads) and not isinstance(loop, Loop):
        return "ignored"
    if isinstance(loop, ast.For) and any(
        isinstance(other, ast.Name) and other.id == name for other in ast.walk(loop.target)
    ):
        # the next iteration binds it again, so that only what follows in this one reads it
        return "ignored" if any(line > end for line in loads) else "overwritten"
    if isinstance(loop, Loop):
        again = any(loop.lineno <= line <= (loop.end_lineno or begin) for line in loads)
        return "ignored" if again else "overwritten" if loads else "unread"
    return "unread"


def discarded_identities(subject: Subject) -> Iterator[DeadEnd]:
    """Yield the discarded results of calls that returned their operand itself, as dropout does in eval mode."""
    for event in subject.base.events:
        if event.operands and event.outputs[0] is event.operands[0] and not event.in_place:
            bound = _binding(event, None) if not event.short_name.endswith("_") else None
            if bound is not None and bound.fate == "discarded":
                yield DeadEnd(event.refs[0], bound.fate, bound.place)
