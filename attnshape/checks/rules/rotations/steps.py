"""Do tokens keep their rotation from step to step, where one call decodes several of them with a cache?

All tokens of a loop get the same vector, so the angles of a key tell the position by which it is rotated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.decoding import DecodingLoop, DecodingStep
from attnshape.checks.attention.uniform import SAME
from attnshape.options.claims import Rope

_CLOSE = 1e-3
"""How far apart two points of the unit circle may be that count as one: angles are often made in float32."""
_FEWEST_PLANES = 2
"""With one plane, an angle doesn't tell another position from another frequency."""


class UndecidableRotationError(Exception):
    """Queries and keys aren't rotated, or not by a multiple of one angle in each plane."""


@dataclass(frozen=True)
class Misplaced:
    """A token whose query or key isn't rotated by its position in one step."""

    step: DecodingStep
    number: int
    """The number of the step, from 1."""
    token: int
    """The place of the token's key, from 0."""
    position: int
    """The position by which its key is rotated, or its query if its key is rotated by its position."""
    is_query: bool
    is_rotated_again: bool
    """Whether the step before had another key for a token."""


def misplaced(loop: DecodingLoop) -> Misplaced | None:
    """Return the first token that isn't rotated by its position; None if all are.

    Raises UndecidableRotationError if that can't be told.
    """
    keys = [step.rows(step.own[1], loop.run)[loop.given :] for step in loop.steps]
    queries = [step.rows(step.own[0], loop.run) for step in loop.steps]
    pairs = _planes(_of_every_token(loop))
    points = [_points(rows, pairs) for rows in keys]
    unit = _unit_angle(loop, points)
    for number, (step, now) in enumerate(zip(loop.steps, points, strict=True), 1):
        positions = _multiples(now / now[:1], unit, len(now) ** 2)
        wrong = next((token for token, position in enumerate(positions) if position != token), None)
        if wrong is not None:
            first = loop.given + step.dropped
            before = points[number - 2][step.dropped - loop.steps[number - 2].dropped :] if number > 1 else now
            again = not torch.allclose(now[: len(before)], before, rtol=0, atol=_CLOSE)
            return Misplaced(step, number, first + wrong, first + positions[wrong], False, again)
    apart: Tensor | None = None
    for number, (step, now, rows) in enumerate(zip(loop.steps, points, queries, strict=True), 1):
        own = _points(rows, pairs) / now[-step.queries :]
        apart = own[0] if apart is None else apart
        shifts = _multiples(own / apart, unit, 2 * step.keys)
        for token, shift in enumerate(shifts, step.dropped + step.keys - step.queries):
            if shift:
                return Misplaced(step, number, token, token + shift, True, False)
    return None


def _of_every_token(loop: DecodingLoop) -> Tensor:
    """Return the last key of each token: that of the last step, else of the one after which it is dropped."""
    keys = [step.rows(step.own[1], loop.run)[loop.given :] for step in loop.steps]
    dropped = [after.dropped - step.dropped for step, after in itertools.pairwise(loop.steps)]
    return torch.cat([*(rows[:count] for rows, count in zip(keys, dropped, strict=False)), keys[-1]])


def turns_nothing(loop: DecodingLoop) -> bool:
    """Return whether the same vector is equal at every position: all queries are, and all keys."""
    keys = _of_every_token(loop)
    queries = torch.cat([step.rows(step.own[0], loop.run) for step in loop.steps])
    return all(torch.allclose(rows, rows[:1].expand_as(rows), rtol=SAME, atol=SAME) for rows in (keys, queries))


def layout(loop: DecodingLoop) -> Rope:
    """Return which features of the keys are rotated together. Raises UndecidableRotationError if that can't be told."""
    pairs = _planes(_of_every_token(loop))
    return "interleaved" if all(second - first == 1 for first, second in pairs) else "half"


def _planes(rows: Tensor) -> list[tuple[int, int]]:
    """Return the pairs of features that are rotated together: the length of their vectors is the same everywhere."""
    for pairs in _layouts(rows.shape[-1]):
        first, second = (rows[:, list(one)] for one in zip(*pairs, strict=True))
        paired = {feature for pair in pairs for feature in pair}
        others = rows[:, [feature for feature in range(rows.shape[-1]) if feature not in paired]]
        lengths = torch.hypot(first, second)
        rotates = ((first - first[:1]).abs() > _CLOSE * lengths).any(0)
        is_constant = torch.allclose(lengths, lengths[:1].expand_as(lengths), rtol=10 * SAME, atol=0)
        if is_constant and torch.allclose(others, others[:1].expand_as(others), rtol=10 * SAME, atol=0):
            kept = [pair for pair, moves in zip(pairs, rotates.tolist(), strict=True) if moves]
            if len(kept) >= _FEWEST_PLANES:
                return kept
    raise UndecidableRotationError


def _layouts(width: int) -> Iterator[list[tuple[int, int]]]:
    """Yield how features may be paired: adjacent ones, or those of two halves of a part of the features."""
    for start in (0, 1):
        yield [(feature, feature + 1) for feature in range(start, width - 1, 2)]
    for half in range(width // 2, 0, -1):
        for start in range(width - 2 * half + 1):
            yield [(feature, feature + half) for feature in range(start, start + half)]


def _points(rows: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    """Return the directions of rows in each plane, as complex numbers of absolute value 1."""
    first, second = (rows[:, list(one)] for one in zip(*pairs, strict=True))
    length = torch.hypot(first, second)
    return torch.complex(first / length, second / length)


def _unit_angle(loop: DecodingLoop, points: list[Tensor]) -> Tensor:
    """Return the rotation from one position to the next, in each plane.

    It is that between new tokens of one step, which all are one position apart, else that between any two keys in a
    row by which all keys of all steps are rotated. Keys that are rotated in each step again may be one position apart
    in an early step only.
    """
    within: list[Tensor] = []
    for step, now in zip(loop.steps, points, strict=True):
        new = now[-step.queries :]
        within += list(new[1:] / new[:-1])
    if within:
        if any(not torch.allclose(one, within[0], rtol=0, atol=_CLOSE) for one in within):
            raise UndecidableRotationError
        return within[0]
    for unit in torch.cat([now[1:] / now[:-1] for now in reversed(points)]).unbind():
        try:
            for now in points:
                _multiples(now / now[:1], unit, len(now) ** 2)
        except UndecidableRotationError:
            continue
        return unit
    raise UndecidableRotationError


def _multiples(turns: Tensor, unit: Tensor, furthest: int) -> list[int]:
    """Return how many unit angles each rotation is. Raises UndecidableRotationError if one is no whole number."""
    if bool(((unit - 1).abs() < _CLOSE).all()):
        raise UndecidableRotationError
    multiples = torch.arange(-furthest, furthest + 1)
    expected = torch.exp(1j * multiples[:, None] * unit.angle()[None, :])
    found: list[int] = []
    for turn in turns:
        fits = multiples[((expected - turn).abs() < _CLOSE).all(-1)]
        if not len(fits):
            raise UndecidableRotationError
        found.append(int(fits[fits.abs().argmin()]))
    return found
