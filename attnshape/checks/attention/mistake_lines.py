"""Finds the line of a mistake: the call that builds, reshapes or applies a mask, or the call of a helper function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import CodeType

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.elementwise import HIDES
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

_ROTATION_OPERATIONS = (
    (ops.SAME_VALUES | ops.JOINS | ops.ROTATION_ARITHMETIC | ops.POWERS | ops.EXPONENTIALS | ops.CREATED_LIKE)
    | (ops.FILLS | ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS | ops.MULTIPLICATIONS)
    | (ops.DIVISIONS | ops.REVERSED_DIVISIONS | {"einsum"})
)
"""The operations that helper functions of rotary embeddings use."""


def helper_call(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the function that contains a call was called, if it only computes a rotation, else None."""
    calls = subject.base.event(ref).calls
    if len(calls) < 2 or not _is_helper(subject, calls[0].f_code):
        return None
    return SourceLocator().find(calls[1])[0]


def _is_helper(subject: Subject, code: CodeType) -> bool:
    events = [event for event in subject.base.events if any(frame.f_code is code for frame in event.calls)]
    return all(event.name in _ROTATION_OPERATIONS for event in events)


class MaskLines:
    """The calls that build and apply the masks of one attention."""

    def __init__(self, subject: Subject, core: Core | FusedCore) -> None:
        self._flow = subject.graph
        self._fused = core if isinstance(core, FusedCore) else None
        self.softmax: OutputRef
        """The softmax, or the fused attention."""
        self._scores: set[Producer] = set()
        if isinstance(core, FusedCore):
            self.softmax, self.applications = core.context, [core.event]
            return
        self.softmax = core.softmax.ref
        self.applications = [
            *between(self._flow, core.scores.ref, core.softmax.sources),
            *between(self._flow, core.softmax.ref, core.value.sources(core.weights_place)),
        ]
        self._scores = {core.scores.ref, core.softmax.ref, *(ref for event in self.applications for ref in event.refs)}
        if core.scores.last.name in ops.PRODUCTS_WITH_ADDEND:
            # baddbmm adds within the product itself
            self.applications.insert(0, core.scores.last)
            factors = {source for place in core.scores.places for source in core.scores.sources(place)}
            self._scores |= {source for source in factors if isinstance(source, OutputRef)}

    def reads(self, name: str) -> bool:
        """Return whether what is done to the scores or the weights depends on the mask."""
        return bool(self._path(name))

    def inputs_that_hide(self) -> set[str]:
        """Return the inputs on whose numbers it depends what is done to the scores or weights that may hide keys.

        Where the scores themselves decide, as where only the largest are kept, these are all inputs behind the scores.
        """
        hiding = [event for event in self.applications if not self._hides_nothing(event)]
        given = [sources for event in hiding for sources in self._other_operands(event)]
        if self._fused is None:  # all of these calls read the scores, and make a mask or indices of them
            given += [
                (event.refs[0],) for event in hiding if not all(value.is_floating_point() for value in event.values)
            ]
        return {name for sources in given for name in self._flow.origins(sources)}

    def last_change(self, name: str) -> OutputRef:
        """Return the last call that changes the mask's values, else the call that applies it."""
        path = self._path(name)
        changes = [event for event in path[:-1] if event.name not in ops.SAME_VALUES | ops.JOINS | ops.LOGICAL]
        return self._ref((changes or path)[-1:])

    def first_hiding(self) -> OutputRef:
        """Return the first call after which scores are so low that their keys get no weight, else the softmax."""
        return self._ref(list(itertools.islice(self._hiding(), 1)))

    def last_hiding(self) -> OutputRef:
        """Return the last call that gives scores so low a number that their keys get no weight, else the softmax."""
        return self._ref(list(self._hiding())[-1:])

    def _hiding(self) -> Iterator[ReplayedCall]:
        """Yield the calls after which some scores are so low."""
        return (event for event in self.applications for value in event.values[:1] if bool((value < HIDES).any()))

    def first_wrong(self, name: str, is_right: Callable[[Tensor], bool | None]) -> OutputRef:
        """Return the first call on the mask's path that returns something wrong, else the result of `last_change`.

        `is_right` returns None for what it can't judge.
        """
        wrong = [event for event in self._path(name)[:-1] if is_right(event.values[0]) is False]
        return wrong[0].refs[0] if wrong else self.last_change(name)

    def first_rearrangement(self, name: str) -> OutputRef:
        """Return the first call that moves the mask's values to other axes, else the call that applies it."""
        path = self._path(name)
        return self._ref([event for event in path[:-1] if event.name in ops.DATA_MOVEMENT] or path[-1:])

    def last_transpose(self, name: str) -> OutputRef:
        """Return the last call that transposes the mask, else the result of `first_rearrangement`."""
        transposes = [event for event in self._path(name)[:-1] if event.name in ops.TRANSPOSES]
        return transposes[-1].refs[0] if transposes else self.first_rearrangement(name)

    def repetition(self, name: str) -> OutputRef:
        """Return the call that repeats the mask for the heads, else the result of `first_rearrangement`."""
        path = self._path(name)[:-1]
        repeats = [event for event in path if event.name in ops.REPEATS]
        repeats = repeats or [event for event in path if event.name in ops.EXPANSIONS]
        return repeats[0].refs[0] if repeats else self.first_rearrangement(name)

    def first_difference(self, name: str) -> OutputRef:
        """Return the call that computes the relative positions, else the result of `first_rearrangement`."""
        sources = [
            source for event in self._path(name)[-1:] for operand in self._other_operands(event) for source in operand
        ]
        subtractions = ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS
        differences = [event for event in self._flow.upstream(tuple(sources)) if event.name in subtractions]
        return differences[-1].refs[0] if differences else self.first_rearrangement(name)

    def constant(self) -> OutputRef:
        """Return the last multiplication in a constant that is added to the scores, else the result of `triangle`."""
        for event in self.applications:
            for constants in self._constants(event):
                products = [call for call in constants if call.name in ops.MULTIPLICATIONS | {"einsum"}]
                if products:
                    return products[0].refs[0]
        return self.triangle()

    def first_constant(self, matches: Callable[[Tensor], bool]) -> OutputRef:
        """Return the first call whose result matches in a constant that is added, else the result of `constant`."""
        for event in self.applications:
            for constants in self._constants(event):
                found = [call for call in constants if matches(call.values[0])]
                if found:
                    return found[-1].refs[0]
        return self.constant()

    def repeated_constant(self) -> OutputRef:
        """Return the last call that repeats a constant applied to the scores, else the result of `triangle`."""
        for event in self.applications:
            for constants in self._constants(event):
                found = [call for call in constants if call.name in ops.REPEATS]
                if found:
                    return found[0].refs[0]
        return self.triangle()

    def triangle(self) -> OutputRef:
        """Return the call that builds the causal mask, else the last one of another constant, else the softmax."""
        # what adds a bias comes before what hides keys, unless nothing else is found
        hiding = [event for event in self.applications if not self._hides_nothing(event)]
        return self._built(hiding) or self._built(self.applications) or self.softmax

    def _built(self, applications: list[ReplayedCall]) -> OutputRef | None:
        """Return the call that builds the causal mask, else the last one of another constant."""
        triangles = ops.TRIANGLES | ops.ORDER_COMPARISONS
        read: OutputRef | None = None
        for event in applications:
            for constants in self._constants(event):
                built = [call for call in constants if call.name in triangles]
                if built:
                    return built[0].refs[0]
                compared = [call for call in constants if call.name in ops.EQUALITY_COMPARISONS]
                read = read or next((call.refs[0] for call in (*compared, *constants)), None)
            if event.name in triangles:
                return event.refs[0]
        return read

    def _hides_nothing(self, event: ReplayedCall) -> bool:
        """Return whether a call only adds numbers to the scores after which every key still gets weight."""
        others = [
            value
            for value, sources in zip(event.operand_values, event.sources, strict=True)
            if not self._scores & set(sources)
        ]
        is_sum = event.name in ops.ADDITIONS | ops.SUBTRACTIONS
        return is_sum and bool(others) and all(bool((value.double().abs() < -HIDES).all()) for value in others)

    def _constants(self, event: ReplayedCall) -> Iterator[list[ReplayedCall]]:
        """Yield, for each operand other than the scores, the upstream calls that don't depend on the data."""
        data = self._flow.depends_on_data
        for sources in self._other_operands(event):
            yield [call for call in self._flow.upstream(sources) if call.refs[0] not in data]

    def _other_operands(self, event: ReplayedCall) -> list[tuple[Producer, ...]]:
        """Return the producers of each operand other than the scores."""
        if self._fused is not None:
            return [mask] if (mask := self._fused.sources("attn_mask")) else []
        return [sources for sources in event.sources if not self._scores & set(sources)]

    def _path(self, name: str) -> list[ReplayedCall]:
        """Return the calls from a mask to its application to the scores or weights, in order."""
        for event in self.applications:
            if any(name in self._flow.origins(sources) for sources in self._other_operands(event)):
                break
        else:
            return []
        calls = {call.order: call for sources in self._other_operands(event) for call in self._flow.upstream(sources)}
        path = [call for call in calls.values() if any(name in self._flow.origins(sources) for sources in call.sources)]
        return [*sorted(path, key=lambda call: call.order), event]

    def _ref(self, events: list[ReplayedCall]) -> OutputRef:
        """Return the first event's result; the softmax if there is no event."""
        return events[0].refs[0] if events else self.softmax


@once
def masks_read(subject: Subject) -> dict[OutputRef, set[str]]:
    """Return the claimed masks that change the scores or weights of each attention, by its context."""
    return {
        core.context: {name for name in subject.claims.masks if MaskLines(subject, core).reads(name)}
        for core in subject.attentions
    }


def masks_of_others(subject: Subject, core: Core | FusedCore) -> set[str]:
    """Return the claimed masks that other attentions read, and this one doesn't."""
    read = masks_read(subject)
    return set().union(*read.values()) - read[core.context]
