"""Says where heads are joined of rotated and other parts in one order for queries, and in another one for keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnshape.checks.attention.rotated_parts import RotatedApart
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import JOINS

SAME_ORDER = "put the rotated features and the others together in the same order, for queries and for keys"
_MOST_LISTED = 4


def describe_apart(of_query: Collection[int], of_key: Collection[int]) -> str:
    """Return what is wrong if other features of queries are rotated than of keys."""
    which = [_format_features(sorted(features)) for features in (of_query, of_key)]
    return (
        f"features {which[0]} of the query are rotated, of the key {which[1]}: rotated features meet others, and "
        "scores depend on more than the distance"
    )


def _format_features(features: Sequence[int]) -> str:
    if len(features) > _MOST_LISTED and features[-1] - features[0] == len(features) - 1:
        return f"{features[0]} to {features[-1]}"
    return join_words([str(feature) for feature in features])


def multiplied_apart(subject: Subject, found: RotatedApart) -> Violation:
    """Return that rotated features of keys meet features of queries that aren't rotated."""
    upstream = subject.graph.upstream(found.key.sources)
    at = next((event.refs[0] for event in upstream if event.name in JOINS), OutputRef(found.key.event.order))
    message = describe_apart(found.of_queries, found.of_keys)
    evidence = "gave every token the same projections, and compared the features of different tokens"
    return Violation("AS704", message, at, SAME_ORDER, evidence, claims=("rope",))
