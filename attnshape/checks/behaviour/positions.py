"""States what positions do to queries and keys: whether they are rotated, by which pairs of features and how fast."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, OperandRole, of_distinct_code
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, uniform_run
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided
from attnshape.model.formatting import join_words

_CLOSE = 1e-3
_SMALL = 1e-6
_PLURALS: dict[OperandRole, str] = {"query": "queries", "key": "keys", "value": "values"}


def positions(subject: Subject) -> Iterator[Outcome]:
    """Yield what positions do to equal queries, keys and values of each attention."""
    for own in of_distinct_code(subject):
        same = uniform_run(subject, own)
        of_effects: dict[str, list[str]] = {}
        for operand in own:
            if same is None or same.tokens(operand) is None or same.new_rows(operand) < 2:
                yield Undecided("positions", f"{operand.role} tokens can't be given the same vector")
            else:
                of_effects.setdefault(_effect(same, operand), []).append(_PLURALS[operand.role])
        for effect, roles in of_effects.items():
            yield Observation(f"positions {effect.format(join_words(roles))}", attention=own[0].core.context)


def _effect(same: UniformRun, operand: AttentionOperand) -> str:
    """Return what positions do to an operand, with `{}` in place of its name."""
    if not same.varies(operand, same.tokens(operand)):
        return "don't change {}"
    rows, pair = same.rows(operand), same.pair(operand)
    if rows is None or pair is None or same.changes_length(operand):
        return "change {}"
    first, distance = rows.shape[0] - same.new_rows(operand), pair[1] - pair[0]
    layout = "adjacent features" if distance == 1 else f"features i and i + {distance}"
    return f"rotate {{}}: {layout}, {_speed(_angles(rows[first], rows[first + 1], distance))}"


def _angles(row: Tensor, following: Tensor, distance: int) -> Tensor:
    """Return the angle in radians by which each pair of features turns from one position to the next."""
    if distance == 1:
        one, two = (vector[: len(vector) // 2 * 2].reshape(-1, 2).T for vector in (row, following))
    else:
        one, two = (vector[: 2 * distance].reshape(2, distance) for vector in (row, following))
    cross, dot = one[0] * two[1] - one[1] * two[0], one[0] * two[0] + one[1] * two[1]
    return torch.atan2(cross, dot)


def _speed(angles: Tensor) -> str:
    """Return the base of the angles if they are those of rotary embeddings, else the angles themselves."""
    turned = angles.abs()
    pairs = len(turned)
    if pairs > 1 and math.isclose(float(turned[0]), 1.0, rel_tol=_CLOSE) and float(turned[1]) > _SMALL:
        base = float(turned[1]) ** -pairs
        expected = base ** -(torch.arange(pairs, dtype=turned.dtype) / pairs)
        if bool(torch.isclose(turned, expected, rtol=_CLOSE).all()):
            return f"base {float(f'{base:.4g}'):.0f}"
    shown = [f"{angle:.3g}" for angle in turned[:6].tolist()]
    return f"by {' '.join(shown)}{' …' if pairs > 6 else ''} radians a position"
