"""Do the rows of a table for both directions belong to distances with their sign?

A table of relative positions has 2*n - 1 rows for n positions (Shaw et al. 2018, https://arxiv.org/abs/1803.02155,
section 3.2; Li et al. 2022, https://arxiv.org/abs/2112.01526, section 4.1, has one for each side of a map).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_FEWEST = 3
"""How many positions there must be."""


def check_mirrored_rows(subject: Subject) -> Iterator[Violation]:
    """Compare the rows that are looked up for both directions, where half of the table is never used."""
    for event in subject.base.events:
        index = _index(subject, event)
        if index is None or not _is_mirrored(index):
            continue
        rows = event.operand_values[0].shape[0]
        message = (
            f"keys before and after a query share the rows of a table of {rows}, which has rows for both directions: "
            f"{rows // 2} of them are never used"
        )
        hint = "look the row up by the distance with its sign: i - j + n - 1"
        upstream = subject.graph.upstream(event.sources[1])
        at = next((one.refs[0] for one in upstream if one.name in ops.UNSIGNED), event.refs[0])
        yield Violation("AS718", message, at, hint, "compared the rows that are looked up", shown="measured")
        return


def _index(subject: Subject, event: ReplayedCall) -> Tensor | None:
    """Return the rows that a call looks up in a table of 2*n - 1 rows that depends on no data, (n, n)."""
    if event.name not in ops.GATHERS | ops.SELECTIONS or len(event.operand_values) != 2 or event.unread:
        return None
    table, index = event.operand_values
    is_index = index.ndim == 2 and not index.is_floating_point() and index.dtype != torch.bool
    count = index.shape[0]
    if not is_index or index.shape[1] != count or count < _FEWEST or table.shape[0] != 2 * count - 1:
        return None
    return None if subject.graph.carries_data(event.sources[0]) else index.long()


def _is_mirrored(index: Tensor) -> bool:
    """Return whether rows only depend on how far two positions are apart, and are different ones."""
    places = torch.arange(len(index))
    distance = (places[:, None] - places).abs()
    return torch.equal(index, index[:, 0][distance]) and len(torch.unique(index[:, 0])) == len(index)
