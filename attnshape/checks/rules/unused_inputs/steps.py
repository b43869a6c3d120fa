"""Does each step of a loop with a cache attend with a query of its own?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from attnshape.checks.attention.operands import AttentionOperands, by_attention, projection
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.model.trace import Source

_FEWEST = 3
"""How many steps are enough to tell that one query is meant to change."""


def check_steps(subject: Subject) -> Iterator[Violation]:
    """Yield a notice for each line that attends with one query of the data again and again, while its keys grow.

    A class token may attend so to more and more tokens on purpose.
    """
    by_line: dict[Source | None, list[AttentionOperands]] = {}
    for own in sorted(by_attention(subject), key=lambda own: own[0].event.order):
        by_line.setdefault(subject.source(OutputRef(own[0].event.order)), []).append(own)
    for steps in by_line.values():
        if len(steps) >= _FEWEST and _share_a_query(subject, steps) and _keep_keys(steps):
            message = f"{len(steps)} steps attend with one and the same query, while each has more keys than the last"
            hint = "compute the query of each step from its own token"
            evidence = "compared the queries and keys of all steps"
            query = steps[1][0]
            at = projection(subject, query.sources) or OutputRef(query.event.order)
            yield Violation("AS801", message, at, hint, evidence, "measured", level="notice")


def _share_a_query(subject: Subject, steps: Sequence[AttentionOperands]) -> bool:
    """Return whether all steps have the numbers of one query, which comes from the same tokens as the keys."""
    first, key, _ = steps[0]
    graph, inputs = subject.graph, subject.inputs
    of_query, of_key = ([inputs[name] for name in graph.origins(one.sources) & set(inputs)] for one in (first, key))
    # queries and keys that are given apart may come from the same tokens
    are_alike = any(one is other or one.shape == other.shape for one in of_query for other in of_key)
    return are_alike and all(torch.equal(query.value, first.value) for query, _, _ in steps[1:])


def _keep_keys(steps: Sequence[AttentionOperands]) -> bool:
    """Return whether each step has all keys of the one before it, and as many more as the next one."""
    keys = [key.value for _, key, _ in steps]
    added = {after.numel() - before.numel() for before, after in itertools.pairwise(keys)}
    return (
        len(added) == 1
        and min(added) > 0
        and all(bool(torch.isin(before, after).all()) for before, after in itertools.pairwise(keys))
    )
