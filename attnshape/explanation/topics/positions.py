"""Positions: whether queries and keys are turned by where their tokens stand, and what the scores gain by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, by_attention
from attnshape.checks.attention.rotated_parts import is_joined, rotated_parts
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, depends_on_distance, equal_tokens_run
from attnshape.checks.interventions.replay import OutputRef
from attnshape.explanation.attention import Attention
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step


def positions(attention: Attention) -> Section | None:
    """Explain the rotation of queries and keys, if a run with the same vector at every token shows one."""
    values, core = attention.values, attention.core
    if values is None or core is None:
        return None
    own = next((one for one in by_attention(values.subject) if one[0].core is core), None)
    if own is None:
        return None
    found = _of_whole(values.subject, own) or _of_parts(values.subject, own)
    if found is None:
        return None
    query, operand = found
    text = SectionWriter("positions", "Turn queries and keys by their positions", _steps(attention, operand))
    angles = query.angles()
    fast, slow = (
        text.observed(
            f"{which} angle", angle, "radians by which a pair of features turns from the first token to the second"
        )
        for which, angle in (("largest", float(angles.max())), ("smallest", float(angles.min())))
    )
    width = attention.scores.width if attention.scores is not None else 0
    kept = max(width, query.rows.shape[-1]) - 2 * len(query.first)
    between = int(query.second[0] - query.first[0])
    if between == 1:
        pairs = f"The {'turned ' if kept else ''}features of a query or a key are taken two by two"
    else:
        how = "of two features that differ from token to token and together keep their length"
        distance = text.observed("distance of paired features", between, how)
        pairs = f"Features i and i + {distance} of a query or a key are taken together"
    if kept:
        how = "features of a query that are the same at each token, where each token has the same vector"
        still = text.observed("features that aren't turned", kept, how)
        turned = text.observed("turned features", 2 * len(query.first), "the other features")
        text.what(
            f"Only {turned} features of a query or a key are turned. The other {still} are the same at each position: "
            "they compare what tokens are, wherever these stand."
        )
    text.what(
        f"{pairs}, like the coordinates of a point, and each pair is turned by an angle that depends on the token's "
        f"position. In radians, from the first token to the second the fastest pair turns by {fast}, the slowest by "
        f"{slow}."
    )
    dependent = "what the turned features add to a score depends" if kept else "the scores of this code depend"
    text.why(
        "The dot product of two vectors that are turned depends on the difference of their angles. With the same "
        f"vector at every token, {dependent} on the distance between query and key alone."
    )
    text.without(
        "Equal vectors would have equal scores wherever they stand. Apart from a mask, nothing in the products tells "
        "one order of the keys from another."
    )
    return text.section()


def _of_whole(subject: Subject, own: Sequence[AttentionOperand]) -> tuple[_Turned, AttentionOperand] | None:
    """Return the queries of a run with equal tokens, and where they are read.

    None unless both they and the keys are turned, and the scores show it.
    """
    same = equal_tokens_run(subject, own)
    turned = [_turned(same, operand) for operand in own[:2]] if same is not None else [None]
    if turned[0] is None or None in turned or same is None or not depends_on_distance(same):
        return None
    return turned[0], own[0]


def _of_parts(subject: Subject, own: Sequence[AttentionOperand]) -> tuple[_Turned, AttentionOperand] | None:
    """Return the same where only a part of queries and keys is turned, whose products are added to the others."""
    parts = rotated_parts(subject, own) if is_joined(subject, own) else None
    same = parts.same if parts is not None else None
    query, key = [_turned(same, operand) for operand in same.own] if same is not None else (None, None)
    if same is None or query is None or key is None:
        return None
    products = query.rows.double() @ key.rows.double().mT
    least = same.precision * float(products.abs().max())
    along = [products.diagonal(offset) for offset in range(1 - len(query.rows), len(key.rows))]
    is_by_distance = all(bool(((one - one[0]).abs() <= least).all()) for one in along)
    return (query, same.own[0]) if is_by_distance else None


def _steps(attention: Attention, query: AttentionOperand) -> list[Step]:
    """Return the steps from which the queries come, and those of the same lines, which the keys take as well."""
    values, producer = attention.values, query.sources[-1]
    made = values.step(producer.order) if values is not None and isinstance(producer, OutputRef) else None
    upstream = attention.links.upstream(made) if made is not None else {}
    lines = {(step.source.file, step.source.line) for step in upstream.values() if step.source is not None}
    return [
        step
        for step in attention.of("operands")
        if step.index in upstream or (step.source is not None and (step.source.file, step.source.line) in lines)
    ]


@dataclass(frozen=True)
class _Turned:
    """Equal vectors after positions have turned pairs of their features."""

    rows: Tensor
    """The vectors, (tokens, width)."""
    first: Tensor
    """The first feature of each pair."""
    second: Tensor

    def angles(self) -> Tensor:
        """Return the angle in radians by which each pair turns from the first token to the second."""
        one, other = (torch.complex(row[self.first], row[self.second]) for row in self.rows[:2].double())
        return (other / one).angle().abs()

    def keeps_lengths(self, precision: float) -> bool:
        """Return whether each pair has the same length at each token, which only a rotation does to random numbers."""
        lengths = torch.hypot(self.rows[:, self.first], self.rows[:, self.second])
        return bool(((lengths - lengths[0]).abs() <= precision * lengths[0]).all())


def _turned(same: UniformRun, operand: AttentionOperand) -> _Turned | None:
    """Return the vectors of an operand if positions only rotate pairs of their features, neighbours or halves."""
    rows = same.rows(operand)
    tokens = same.tokens(operand)
    if rows is None or tokens is None or same.new_rows(operand) < 2 or not same.varies(operand, tokens):
        return None
    features = ((rows - rows[0]).abs() > same.precision * rows[0].abs()).any(0).nonzero().flatten()
    half = len(features) // 2
    if len(features) % 2:
        return None
    every = [_Turned(rows, features[0::2], features[1::2]), _Turned(rows, features[:half], features[half:])]
    return next((one for one in every if one.keeps_lengths(same.precision)), None)
