"""Do keys before and after a query get different vectors of sines for their distance from it?

Sines of a distance with its sign tell both directions apart (Dai et al. 2019, https://arxiv.org/abs/1901.02860, section
3.3): they have the other sign on the other side, and cosines don't. Code that computes the sines of both sides in turn,
without the sign, gives both the same vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_SAME = 1e-5
_FEWEST = 3
"""How many distances must be visible on both sides of queries."""


def mirrored_vectors(
    subject: Subject, visible: VisibleKeys, term: Product, place: int, columns: Tensor, axis: int
) -> Violation | None:
    """Return a violation if the vectors of keys before and after a query are the same, row by row.

    `place` is that of the vectors in their product with queries or keys, `axis` is that of the distances in its result,
    and `columns` is the index along it of each pair of a query and a key.
    """
    rows = [own for own, stays in enumerate(term.axes[place]) if axis in stays]
    pairs = _both_sides(visible, columns)
    if len(rows) != 1 or len(pairs) < _FEWEST:
        return None
    (middle, *_), size = pairs[0], term.operand(place).shape[rows[0]]
    before = [earlier for _, earlier, _ in pairs]
    after = [later for _, _, later in pairs]
    if not _is_mirrored(term.operand(place), rows[0], middle, before, after):
        return None
    calls = sorted(subject.graph.upstream(term.sources(place)), key=lambda call: call.order)
    if any(call.name in ops.UNSIGNED for call in calls):  # both directions are meant to be the same
        return None
    at, tables = None, []
    for call in calls:
        value = call.values[0]
        for along in (own for own, count in enumerate(value.shape) if count == size):
            if _is_mirrored(value, along, middle, before, after):
                at = at or call.refs[0]
                tables.append(value.movedim(along, 0).flatten(1).double())
    is_computed = any(call.name in ops.WAVES for call in calls)
    if not is_computed and not any(_are_waves(table, middle) for table in tables):
        return None
    return _violation(at or term.ref, is_computed)


def _both_sides(visible: VisibleKeys, columns: Tensor) -> list[tuple[int, int, int]]:
    """Return the rows of distance 0, and of the same distance before and after a query, for each one seen on both."""
    queries, keys = visible.keys.shape[-2:]
    distance = (torch.arange(keys) - torch.arange(queries)[:, None]).expand(columns.shape)
    found = dict(zip(distance[visible.keys].tolist(), columns[visible.keys].tolist(), strict=True))
    if 0 not in found or len(set(found.values())) != len(found):
        return []
    return [(found[0], found[-steps], found[steps]) for steps in range(1, keys) if {steps, -steps} <= found.keys()]


def _is_mirrored(value: Tensor, axis: int, middle: int, before: list[int], after: list[int]) -> bool:
    """Return whether the rows on both sides of one are the same, and differ from each other on each side."""
    rows = value.movedim(axis, 0).reshape(value.shape[axis], -1).double()
    most = float(rows.abs().max())
    if not bool(torch.isclose(rows[before], rows[after], rtol=_SAME, atol=_SAME * most).all()):
        return False
    steps = (rows[after] - rows[[middle, *after[:-1]]]).abs().amax(-1)
    return bool((steps > _SAME * most).all())


def _are_waves(rows: Tensor, middle: int) -> bool:
    """Return whether rows hold sines and cosines: zeros and ones at distance 0, and everywhere squares of one sum."""
    ones, zeros = (torch.isclose(rows[middle], torch.full_like(rows[middle], one)) for one in (1.0, 0.0))
    squares = rows.square().sum(-1)
    is_start = bool((ones | zeros).all()) and bool(ones.any()) and bool(zeros.any())
    return is_start and bool(torch.isclose(squares, squares[middle], rtol=1e-4).all())


def _violation(at: OutputRef, is_computed: bool) -> Violation:
    message = (
        "a key as far before a query as another one is after it gets the same vector of sines: the direction is lost"
    )
    hint = (
        "give sines the sign of the distance: sin(-d * f) is -sin(d * f), and only cosines are the same on both sides"
    )
    evidence = "compared the vectors that the scores of both sides come from"
    if is_computed:
        return Violation("AS718", message, at, hint, evidence, shown="measured")
    hint = f"{hint}; if direction should not matter, put # attnshape: ignore[AS718] on the line"
    return Violation("AS718", message, at, hint, evidence, shown="measured", level="notice")
