"""All rules, in the order in which they run."""

from __future__ import annotations

from attnshape.checks.rules import (
    attention_weights,
    batch,
    biases,
    causality,
    grouped_heads,
    head_merge,
    head_split,
    masks,
    projections,
    reference,
    rotations,
    scale,
    state,
    tokens,
    unused_inputs,
    unused_scores,
)
from attnshape.checks.rules.protocol import Rule

RULES: tuple[Rule, ...] = (
    batch,
    tokens,
    head_split,
    head_merge,
    grouped_heads,
    scale,
    unused_scores,
    attention_weights,
    masks,
    causality,
    reference,
    rotations,
    biases,
    unused_inputs,
    projections,
    state,
)
