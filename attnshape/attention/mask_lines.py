"""Which line a mask's mistake is on: where it is built, laid out, turned round or applied."""

from __future__ import annotations

from attnshape.attention.chain import between
from attnshape.attention.core import Core, FusedCore
from attnshape.attention.kinds import MOVES
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import CAST, TRANSPOSE
from attnshape.replaying.replay import Address, Event, Source

_TRIANGLES = {
    *("tril", "triu", "tril_", "triu_", "ge", "gt", "le", "lt", "ge_", "gt_", "le_", "lt_"),
    *("__ge__", "__gt__", "__le__", "__lt__", "greater", "less", "greater_equal", "less_equal"),
}
_COMBINES = {"__and__", "__or__", "logical_and", "logical_or", "__iand__", "__ior__", "bitwise_and", "bitwise_or"}
_REPEATS = {"repeat", "repeat_interleave", "tile"}
_EXPANDS = {"expand", "expand_as", "broadcast_to"}


class MaskLines:
    """The calls that make and apply the masks of one attention."""

    def __init__(self, subject: Subject, core: Core | FusedCore) -> None:
        self._subject = subject
        self._core = core
        self._flow = subject.flow
        if isinstance(core, FusedCore):
            self.applying = [core.event]
            self._scores: set[Address] = set()
        else:
            ways = [
                *between(self._flow, core.scores.address, core.softmax.sources),
                *between(self._flow, core.softmax.address, core.value.sources(core.weights_place)),
            ]
            # baddbmm adds within the product itself
            adding = [core.scores.last] if core.scores.last.name in ("baddbmm", "addmm") else []
            self.applying = [*adding, *ways]
            factors = {s for place in (core.scores.left, core.scores.right) for s in core.scores.sources(place)}
            self._scores = {core.scores.address, *(a for event in ways for a in event.addresses)}
            if adding:
                self._scores |= {source for source in factors if isinstance(source, Address)}

    @property
    def softmax(self) -> Address:
        """The softmax, or the fused attention."""
        return self._core.context if isinstance(self._core, FusedCore) else self._core.softmax.address

    def applied(self, name: str) -> Event | None:
        """Return the call that puts a mask to the scores or to the weights."""
        for event in self.applying:
            if any(name in self._origins(sources) for sources in self._given(event)):
                return event
        return None

    def turned(self, name: str) -> Address:
        """Return the last call that changes the mask's own numbers, else the one that applies it."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        changes = [one for one in self._chain(event, name) if one.name not in MOVES | CAST | _COMBINES]
        return changes[-1].addresses[0] if changes else event.addresses[0]

    def laid_out(self, name: str) -> Address:
        """Return the first call that lays the mask out along the axes of the scores."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        moves = [one for one in self._chain(event, name) if one.name in MOVES]
        return moves[0].addresses[0] if moves else event.addresses[0]

    def transposed(self, name: str) -> Address:
        """Return the last call that transposes the mask, else the one that lays it out."""
        event = self.applied(name)
        chain = [one for one in self._chain(event, name) if one.name in TRANSPOSE] if event is not None else []
        return chain[-1].addresses[0] if chain else self.laid_out(name)

    def repeated(self, name: str) -> Address:
        """Return the call that repeats the mask for the heads."""
        event = self.applied(name)
        if event is None:
            return self.softmax
        chain = self._chain(event, name)
        repeats = [one for one in chain if one.name in _REPEATS] or [one for one in chain if one.name in _EXPANDS]
        return repeats[0].addresses[0] if repeats else self.laid_out(name)

    def first_difference(self, name: str) -> Address:
        """Return the difference of positions by which a table is read, else the call that applies it."""
        event = self.applied(name)
        chain = list(self._flow.upstream(tuple(s for sources in self._given(event) for s in sources))) if event else []
        found = [one for one in chain if one.name in ("sub", "rsub", "__rsub__", "subtract")]
        return found[-1].addresses[0] if found else self.laid_out(name)

    def constant(self) -> Address:
        """Return the last product by which what is added and depends on no input is made, else what adds it."""
        data = self._flow.depends_on_data
        for event in self.applying:
            for sources in self._given(event):
                made = [one for one in self._flow.upstream(sources) if one.addresses[0] not in data]
                products = [one for one in made if one.name in ("mul", "__rmul__", "multiply", "einsum")]
                if products:
                    return products[0].addresses[0]
        return self.triangle()

    def triangle(self) -> Address:
        """Return the call that makes the causal mask; where there is none, the one that reads it, else the softmax."""
        data = self._flow.depends_on_data
        read: Address | None = None
        for event in self.applying:
            for sources in self._given(event):
                made = [one for one in self._flow.upstream(sources) if one.addresses[0] not in data]
                triangles = [one for one in made if one.name in _TRIANGLES]
                if triangles:
                    return triangles[0].addresses[0]
                if made and read is None:
                    read = made[0].addresses[0]
            if event.name in _TRIANGLES:
                return event.addresses[0]
        return read or self.softmax

    def _given(self, event: Event) -> list[tuple[Source, ...]]:
        """Return the operands of a call that aren't scores."""
        if isinstance(self._core, FusedCore):
            mask = self._core.sources("attn_mask")
            return [mask] if mask else []
        return [sources for sources in event.sources if not self._scores & set(sources)]

    def _origins(self, sources: tuple[Source, ...]) -> set[str]:
        return self._flow.origins(sources)

    def _chain(self, event: Event, name: str) -> list[Event]:
        """Return the calls that make of a mask what a call applies, in order."""
        found: dict[int, Event] = {}
        for sources in self._given(event):
            for one in self._flow.upstream(sources):
                if any(name in self._origins(every) for every in one.sources):
                    found[one.order] = one
        return [found[order] for order in sorted(found)]
