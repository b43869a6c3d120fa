"""Do positions that are looked up in a table go on from step to step, where one call decodes with a cache?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.decoding import loops
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ADDITIONS, GATHERS, SELECTIONS


def restarted_positions(subject: Subject) -> Iterator[Violation]:
    """Yield a violation if the tokens of a later step get the rows of a table that the first tokens got."""
    groups: dict[tuple[str, object], list[tuple[ReplayedCall, Tensor]]] = {}
    for event in subject.base.events:
        found = _looked_up(subject, event)
        if found is not None:
            table, rows = found
            groups.setdefault((table, subject.source(event.refs[0])), []).append((event, rows))
    restarted = [group for group in groups.values() if _restarts(group)]
    if not restarted or not loops(subject):
        return
    event, _ = restarted[0][1]
    message = (
        "positions start again at 0 in a later step of a loop with a cache: its tokens get those of the first ones"
    )
    hint = "number the tokens of a step from the number of cached keys on"
    evidence = "compared the rows of the table that each step looks up"
    yield Violation("AS908", message, event.refs[0], hint, evidence, "measured")


def _looked_up(subject: Subject, event: ReplayedCall) -> tuple[str, Tensor] | None:
    """Return the parameter or buffer from which a call takes rows, and the rows if they don't depend on the data."""
    if event.name not in GATHERS | SELECTIONS or len(event.operand_values) != 2:
        return None
    # tables of rotations are multiplied with queries and keys, and have findings of their own
    if not any(reader.name in ADDITIONS for reader, _ in subject.graph.consumers.get(event.refs[0], ())):
        return None
    tables = [(source, place) for place in (0, 1) for source in event.sources[place] if source in subject.base.state]
    if len(tables) != 1 or not isinstance(tables[0][0], str):
        return None
    table, place = tables[0]
    rows = event.operand_values[1 - place]
    if rows.is_floating_point() or rows.dtype == torch.bool or subject.graph.carries_data(event.sources[1 - place]):
        return None
    return table, rows


def _restarts(group: list[tuple[ReplayedCall, Tensor]]) -> bool:
    """Return whether the first lookup takes several rows in order, and each later one begins with the same row."""
    (_, first), *later = group
    is_in_order = first.ndim > 0 and first.shape[-1] > 1 and bool((first.diff(dim=-1) == 1).all())
    return is_in_order and bool(later) and all(_is_beginning(rows, first) for _, rows in later)


def _is_beginning(rows: Tensor, first: Tensor) -> bool:
    count = rows.shape[-1] if rows.ndim else 0
    return 0 < count <= first.shape[-1] and torch.equal(
        rows.reshape(-1, count)[0], first.reshape(-1, first.shape[-1])[0, :count]
    )
