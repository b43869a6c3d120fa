"""What flows where in a run: who made an operand, who reads a result, and what depends on the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from attnshape.replaying.bench import Run
from attnshape.replaying.replay import Address, Event, Source

_SHAPE_ONLY = {
    *("new_ones", "new_zeros", "new_full", "new_empty", "new_tensor"),
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
}
"""What takes only the shape or the type of its operand."""


class Flow:
    """One run's calls as a graph."""

    def __init__(self, run: Run, data: set[str]) -> None:
        """`data` are the inputs that carry what is attended over."""
        self.run = run
        self.data = data

    @cached_property
    def consumers(self) -> dict[Source, list[tuple[Event, int]]]:
        """Who reads each result, input and parameter, and as which operand."""
        found: dict[Source, list[tuple[Event, int]]] = {}
        for event in self.run.events:
            for place, sources in enumerate(event.sources):
                for source in sources:
                    found.setdefault(source, []).append((event, place))
        return found

    @cached_property
    def depends_on_data(self) -> set[Address]:
        """The results that depend on the data."""
        return self.downstream(self.data)

    def carries_data(self, sources: tuple[Source, ...]) -> bool:
        """Say whether a tensor that has these sources depends on the data."""
        return any(s in self.depends_on_data if isinstance(s, Address) else s in self.data for s in sources)

    def downstream(self, start: set[str]) -> set[Address]:
        """Return the results that depend on any of the named tensors."""
        reached: set[Source] = set(start)
        for event in self.run.events:
            if _reads(event, reached):
                reached.update(event.addresses)
        return {source for source in reached if isinstance(source, Address)}

    def behind(self, address: Address) -> set[Address]:
        """Return the results that depend on one, itself included."""
        reached: set[Source] = {address}
        for event in self.run.events[address.order :]:
            if _reads(event, reached):
                reached.update(event.addresses)
        return {source for source in reached if isinstance(source, Address)}

    def upstream(self, sources: tuple[Source, ...]) -> Iterator[Event]:
        """Yield the calls that a tensor depends on, the latest first."""
        wanted = {source.order for source in sources if isinstance(source, Address)}
        while wanted:
            order = max(wanted)
            wanted.discard(order)
            event = self.run.events[order - 1]
            yield event
            if takes_shape_only(event):
                continue
            wanted |= {s.order for every in event.sources for s in every if isinstance(s, Address)}

    def origins(self, sources: tuple[Source, ...]) -> set[str]:
        """Return the inputs, parameters and constants that a tensor depends on."""
        found = {source for source in sources if isinstance(source, str)}
        for event in self.upstream(sources):
            found |= {s for every in event.sources for s in every if isinstance(s, str)}
        return found


def _reads(event: Event, reached: set[Source]) -> bool:
    """Say whether a call takes numbers from any of these."""
    return not takes_shape_only(event) and any(s in reached for sources in event.sources for s in sources)


def takes_shape_only(event: Event) -> bool:
    """Say whether a call takes no numbers from its operand."""
    return event.name in _SHAPE_ONLY
