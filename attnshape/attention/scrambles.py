"""Whether a layout operation scrambles tokens, or only moves them as a whole."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.attention.chain import between
from attnshape.attention.following import Moved, Parting, along
from attnshape.attention.kinds import JOINS, MOVES
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import PARTS
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Event


def scrambles(subject: Subject, parting: Parting, letter: str, index: int, change: Callable[[int], Change]) -> bool:
    """Say whether one token is found at several places behind a call, or two of them at one.

    A token that is found alone at another place was moved as a whole, as by a shift.
    """
    if parting.event.name in JOINS or _is_chosen_by_data(subject, parting.event):
        return False
    if parting.summary is not None and not _by_moves_only(subject, parting.summary, parting):
        return False
    if len(parting.found) > 1:
        return True
    size = parting.event.values[parting.address.output].shape[parting.axis]
    for beside in (index - 1, index + 1):
        if not 0 <= beside < min(size, subject.numbers[letter]):
            continue
        moved: Moved = subject.moved(change(beside))
        if moved.comparable and along(moved.mask(parting.address), parting.axis) & set(parting.found):
            return True
    return False


def _is_chosen_by_data(subject: Subject, event: Event) -> bool:
    """Say whether what is taken depends on numbers, as where tokens are sorted or sent to experts."""
    data = subject.flow.depends_on_data
    return event.name in PARTS and any(source in data for sources in event.sources[1:] for source in sources)


def _by_moves_only(subject: Subject, summary: Event, parting: Parting) -> bool:
    """Say whether nothing but layout operations lie from one call to another, themselves included."""
    sources = tuple(source for every in parting.event.sources for source in every)
    way = [event for start in summary.addresses for event in between(subject.flow, start, sources)]
    return all(event.name in MOVES for event in (summary, *way))
