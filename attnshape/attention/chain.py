"""The calls that lie between two results, where each is made of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnshape.attention.flow import Flow, takes_shape_only
from attnshape.attention.kinds import MOVES
from attnshape.replaying.replay import Address, Event, Source


def between(flow: Flow, start: Address, sources: tuple[Source, ...]) -> list[Event]:
    """Return the calls through which a result becomes what has these sources, in order, those at its ends left out."""
    behind = flow.behind(start)
    return [
        event
        for event in reversed(list(flow.upstream(sources)))
        if event.order > start.order and any(address in behind for address in event.addresses)
    ]


def dead_ends(flow: Flow, start: Source, returned: set[int]) -> Iterator[Event]:
    """Yield the calls that make something of a result which nobody reads and which isn't returned.

    `returned` are the memory addresses of what the target returned.
    """
    for event, _ in flow.consumers.get(start, []):
        read = any(not takes_shape_only(reader) for a in event.addresses for reader, _ in flow.consumers.get(a, []))
        kept = returned & {output.untyped_storage()._cdata for output in event.outputs}
        if not event.in_place and not read and not kept:
            yield event


def by_moves_only(flow: Flow, starts: Iterable[Source], event: Event) -> bool:
    """Say whether a call is given one of these results with nothing but layout operations between."""
    reached = set(starts)
    for one in flow.run.events[: event.order - 1]:
        if one.name in MOVES and any(source in reached for every in one.sources for source in every):
            reached.update(one.addresses)
    return any(source in reached for every in event.sources for source in every)
