"""Finds the line of a mistake: where a mask is built, laid out or applied, and where a helper is called."""

from __future__ import annotations

from types import CodeType

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing.operations import (
    ADDITIONS,
    CREATED_LIKE,
    DATA_MOVEMENT,
    DIVISIONS,
    EXPANSIONS,
    EXPONENTIALS,
    FILLS,
    JOINS,
    LOGICAL,
    MULTIPLICATIONS,
    ORDER_COMPARISONS,
    POWERS,
    PRODUCTS_WITH_ADDEND,
    REPEATS,
    REVERSED_DIVISIONS,
    REVERSED_SUBTRACTIONS,
    ROTATION_ARITHMETIC,
    SAME_VALUES,
    SUBTRACTIONS,
    TRANSPOSES,
    TRIANGLES,
)
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

_ROTATES = (
    (SAME_VALUES | JOINS | ROTATION_ARITHMETIC | POWERS | EXPONENTIALS | CREATED_LIKE | FILLS)
    | (ADDITIONS | SUBTRACTIONS | REVERSED_SUBTRACTIONS | MULTIPLICATIONS | DIVISIONS | REVERSED_DIVISIONS)
    | {"einsum"}
)
"""The operations of which helper functions of rotary embeddings consist."""


def helper_call(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the function around a call was called, if it only does the arithmetic of a rotation.

    None if the function does more than that.
    """
    calls = subject.base.event(ref).calls
    if len(calls) < 2 or not _is_helper(subject, calls[0].f_code):
        return None
    return SourceLocator().find(calls[1])[0]


def _is_helper(subject: Subject, code: CodeType) -> bool:
    own = [event for event in subject.base.events if any(moment.f_code is code for moment in event.calls)]
    return all(event.name in _ROTATES for event in own)


class MaskLines:
    """The calls that make and apply the masks of one attention."""

    def __init__(self, subject: Subject, core: Core | FusedCore) -> None:
        self._subject = subject
        self._core = core
        self._flow = subject.graph
        if isinstance(core, FusedCore):
            self.applying = [core.event]
            self._scores: set[OutputRef] = set()
        else:
            ways = [
                *between(self._flow, core.scores.ref, core.softmax.sources),
                *between(self._flow, core.softmax.ref, core.value.sources(core.weights_place)),
            ]
            # baddbmm adds within the product itself
            adding = [core.scores.last] if core.scores.last.name in PRODUCTS_WITH_ADDEND else []
            self.applying = [*adding, *ways]
            factors = {s for place in (core.scores.left, core.scores.right) for s in core.scores.sources(place)}
            self._scores = {core.scores.ref, *(a for event in ways for a in event.refs)}
            if adding:
                self._scores |= {source for source in factors if isinstance(source, OutputRef)}

    @property
    def softmax(self) -> OutputRef:
        """The softmax, or the fused attention."""
        return self._core.context if isinstance(self._core, FusedCore) else self._core.softmax.ref

    def applied(self, name: str) -> ReplayedCall | None:
        """Return the call that applies a mask to the scores or to the weights."""
        for event in self.applying:
            if any(name in self._origins(sources) for sources in self._given(event)):
                return event
        return None

    def changed(self, name: str) -> OutputRef:
        """Return the last call that changes the mask's own numbers, else the one that applies it."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        changes = [one for one in self._chain(event, name) if one.name not in SAME_VALUES | JOINS | LOGICAL]
        return changes[-1].refs[0] if changes else event.refs[0]

    def laid_out(self, name: str) -> OutputRef:
        """Return the first call that lays the mask out along the axes of the scores."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        moves = [one for one in self._chain(event, name) if one.name in DATA_MOVEMENT]
        return moves[0].refs[0] if moves else event.refs[0]

    def transposed(self, name: str) -> OutputRef:
        """Return the last call that transposes the mask, else the one that lays it out."""
        event = self.applied(name)
        chain = [one for one in self._chain(event, name) if one.name in TRANSPOSES] if event is not None else []
        return chain[-1].refs[0] if chain else self.laid_out(name)

    def repeated(self, name: str) -> OutputRef:
        """Return the call that repeats the mask for the heads."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        chain = self._chain(event, name)
        repeats = [one for one in chain if one.name in REPEATS] or [one for one in chain if one.name in EXPANSIONS]
        return repeats[0].refs[0] if repeats else self.laid_out(name)

    def first_difference(self, name: str) -> OutputRef:
        """Return the difference of positions by which a table is read, else the call that applies it."""
        event = self.applied(name)
        chain = list(self._flow.upstream(tuple(s for sources in self._given(event) for s in sources))) if event else []
        found = [one for one in chain if one.name in SUBTRACTIONS | REVERSED_SUBTRACTIONS]
        return found[-1].refs[0] if found else self.laid_out(name)

    def constant(self) -> OutputRef:
        """Return the last product in a constant that is added to the scores, else the call that adds it."""
        data = self._flow.depends_on_data
        for event in self.applying:
            for sources in self._given(event):
                made = [one for one in self._flow.upstream(sources) if one.refs[0] not in data]
                products = [one for one in made if one.name in MULTIPLICATIONS | {"einsum"}]
                if products:
                    return products[0].refs[0]
        return self.triangle()

    def triangle(self) -> OutputRef:
        """Return the call that builds the causal mask, else the one that reads it, else the softmax."""
        data = self._flow.depends_on_data
        read: OutputRef | None = None
        for event in self.applying:
            for sources in self._given(event):
                made = [one for one in self._flow.upstream(sources) if one.refs[0] not in data]
                triangles = [one for one in made if one.name in TRIANGLES | ORDER_COMPARISONS]
                if triangles:
                    return triangles[0].refs[0]
                if made and read is None:
                    read = made[0].refs[0]
            if event.name in TRIANGLES | ORDER_COMPARISONS:
                return event.refs[0]
        return read or self.softmax

    def _given(self, event: ReplayedCall) -> list[tuple[Producer, ...]]:
        """Return the operands of a call that aren't scores."""
        if isinstance(self._core, FusedCore):
            mask = self._core.sources("attn_mask")
            return [mask] if mask else []
        return [sources for sources in event.sources if not self._scores & set(sources)]

    def _origins(self, sources: tuple[Producer, ...]) -> set[str]:
        return self._flow.origins(sources)

    def _chain(self, event: ReplayedCall, name: str) -> list[ReplayedCall]:
        """Return the calls between a mask and the call that applies it, in order."""
        found: dict[int, ReplayedCall] = {}
        for sources in self._given(event):
            for one in self._flow.upstream(sources):
                if any(name in self._origins(every) for every in one.sources):
                    found[one.order] = one
        return [found[order] for order in sorted(found)]
