"""All rules, in the order in which they run."""

from __future__ import annotations

from attnshape.checks.rules import (
    attention_weights,
    batch,
    biases,
    caches,
    causality,
    grouped_heads,
    head_merge,
    head_mixing,
    head_split,
    masks,
    numbers,
    parameters,
    projections,
    reference,
    rotations,
    scale,
    state,
    token_order,
    tokens,
    unused_inputs,
    unused_results,
    unused_scores,
)
from attnshape.checks.rules.protocol import Rule

RULES: tuple[Rule, ...] = (
    batch,
    tokens,
    head_split,
    head_mixing,
    head_merge,
    token_order,
    grouped_heads,
    scale,
    unused_scores,
    attention_weights,
    masks,
    causality,
    numbers,
    reference,
    rotations,
    biases,
    unused_inputs,
    projections,
    parameters,
    unused_results,
    caches,
    state,
)
