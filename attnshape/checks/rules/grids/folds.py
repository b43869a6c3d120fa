"""Are tokens folded into the map from which they come, with its rows and columns as they were?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnshape.checks.attention.grids import Lines, TokenGrid
from attnshape.checks.attention.operands import AttentionOperands
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Verification, Violation


def check_folds(
    subject: Subject, grid: TokenGrid, attentions: Sequence[tuple[AttentionOperands, VisibleKeys]]
) -> Iterator[Violation | Verification]:
    """Look at the tokens that each key is made of, and at those that each query attends to.

    Where a map is pooled, convolved or cut into windows, these fill a rectangle of it. Tokens that were folded into
    another map fill a rectangle of that one, and lie scattered on their own.
    """
    lie_together = False
    for own, visible in attentions:
        lines = grid.of_pairs(visible)
        if lines is None:
            return
        sets = (*lines, _attended(lines[1], visible))
        if all(bool(((one.area <= 1) | (one.area >= grid.count)).all()) for one in sets):
            continue
        folded = grid.of_pairs(visible, swapped=True)
        if folded is None:
            return
        pairs = list(zip(sets, (*folded, _attended(folded[1], visible)), strict=True))
        if any(_lie_closer(other, one) for one, other in pairs):
            yield _violation(subject, grid, own)
            return
        if not all(_lie_as_close(one, other) for one, other in pairs):
            return
        lie_together = lie_together or any(_lie_closer(one, other) for one, other in pairs)
    if lie_together:
        yield Verification("tokens that are pooled, or attend to each other, lie together on the map they come from")


def _attended(keys: Lines, visible: VisibleKeys) -> Lines:
    """Return the lines of the tokens to which each query attends, in the batch elements that the keys are given for."""
    batch = keys.rows.shape[1]
    seen = visible.keys[:batch]

    def of_queries(lines: Tensor) -> Tensor:
        return torch.stack([(line[..., None, :] & seen).any(-1) for line in lines])

    return Lines(of_queries(keys.rows), of_queries(keys.columns))


def _lie_as_close(lines: Lines, other: Lines) -> bool:
    """Return whether each set of tokens lies as close together as on another map: in as few lines, and as near."""
    return bool((lines.area <= other.area).all()) and bool((lines.extent <= other.extent).all())


def _lie_closer(lines: Lines, other: Lines) -> bool:
    """Return whether sets of tokens lie closer together than on another map, and none less close."""
    return _lie_as_close(lines, other) and not _lie_as_close(other, lines)


def _violation(subject: Subject, grid: TokenGrid, own: AttentionOperands) -> Violation:
    rows, columns = grid.sizes
    message = (
        f"tokens of a map of {rows} rows and {columns} columns are folded into one of {columns} rows and {rows} "
        "columns, so that neighbours there come from different places"
    )
    hint = "fold tokens with the height and the width in the order in which they were flattened"
    at = _first_torn(subject, grid, own) or own[0].core.context
    return Violation("AS120", message, at, hint, "changed each row and each column of the map")


def _first_torn(subject: Subject, grid: TokenGrid, own: AttentionOperands) -> OutputRef | None:
    """Return the first call in whose result the indices of an axis hold scattered tokens."""
    sources = tuple(source for operand in own for source in operand.sources)
    after = subject.graph.downstream({grid.source})
    for event in sorted(subject.graph.upstream(sources), key=lambda event: event.order):
        if event.refs[0] not in after:
            continue
        lines, folded = (grid.of_result(event.refs[0], swapped) for swapped in (False, True))
        if lines is None or folded is None:
            return None
        for axis in range(event.values[0].ndim):
            own_lines, other = (Lines(_along(one.rows, axis), _along(one.columns, axis)) for one in (lines, folded))
            if _lie_closer(other, own_lines):
                return event.refs[0]
    return None


def _along(masks: Tensor, axis: int) -> Tensor:
    """Return which indices of an axis have a true element in each mask of a stack."""
    return torch.stack([mask.movedim(axis, 0).flatten(1).any(1) if mask.ndim > 1 else mask for mask in masks])
