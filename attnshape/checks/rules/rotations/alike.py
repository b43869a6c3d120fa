"""Are a query and the key at its position rotated alike, so that scores depend on the distance of their tokens?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnshape.checks.attention.operands import AttentionOperand, projections
from attnshape.checks.attention.rotated_parts import HeadPart
from attnshape.checks.attention.uniform import MIXED, UniformRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.position_tables.frequencies import FREQUENCIES_HINT
from attnshape.checks.rules.protocol import Violation
from attnshape.checks.rules.rotations.apart import SAME_ORDER, describe_apart
from attnshape.checks.rules.rotations.features import joined_after_rotation, paired_features, rotated_features
from attnshape.checks.rules.rotations.findings import (
    PAIRED,
    doubled_angles,
    first_rotation,
    is_judged,
    pairing_call,
    violation_of,
)

_FEWEST_PAIRS = 3
_LEAST_STEP = 1e-6
"""Smaller angles between adjacent positions are rounding errors."""
_WHOLE = 0.02
"""How far a position that is worked out from angles may be from a whole number."""


def judge_queries_and_keys(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Look for what is wrong with the rotation of queries, of keys, and of both together."""
    claimed = same.subject.claims.rope is not None
    rescaled = all(map(same.changes_length, (query, key))) and _is_relative(same, same.precision) is True
    for operand in (query, key):
        for symbol, axis in same.others(operand) if not same.varies(operand, same.tokens(operand)) else ():
            if same.varies(operand, axis) and (claimed or symbol in ("B", "H", "Hkv")) and is_judged(same, operand):
                differs = "the same vector differs there, not between positions"
                message = f"the {operand.role} is rotated along {symbol}: {differs}"
                yield violation_of(same, operand, "AS701", message, "take the positions from the token axis")
    for operand in (query, key):
        has_cache = same.new_rows(operand) < operand.value.shape[same.tokens(operand) or 0]
        is_wrong = not rescaled if claimed else _is_distorted(same, operand)
        if same.changes_length(operand) and not has_cache and is_wrong:
            message = (
                f"the {operand.role}'s norm changes with its position, as with mixed layouts: it is not just rotated"
            )
            hint = "repeat the angles as features are paired: cat for halves, repeat_interleave for adjacent features"
            doubled = same.rejoined(operand) or doubled_angles(same, operand)
            at = pairing_call(same.subject, doubled) if doubled is not None else None
            yield violation_of(same, operand, "AS704", message, hint, at)
    if (alike := _turned_alike(same, key)) is not None:
        yield alike
        return
    apart = _rotated_apart(same, query, key)
    if apart is not None:
        yield apart
        return
    if claimed:
        yield from _layouts(same, query, key)
        if not rescaled:  # else the same position has another factor in queries than in keys
            yield from _offsets(same, query, key)
    else:
        yield from _differences(same, query, key)


def are_alike_at_each_position(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> bool:
    """Return whether every query is rotated like the key at its position, counted so that the last ones agree."""
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return False
    own = _own_keys(same, q, k, key)
    return bool(own.numel()) and _agree(same, _cosine(q, k), own, k.shape[0] - q.shape[0], 0)


def _rotated_apart(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Violation | None:
    """Return that queries and keys are rotated, each by its positions, in other features."""
    both = (query, key)
    if any(same.tokens(one) is None or not same.varies(one, same.tokens(one)) for one in both):
        return None
    if not all(is_judged(same, one) for one in both) or any(same.changes_length(one) for one in both):
        return None
    of_query, of_key = (rotated_features(same, one) for one in both)
    if of_query == of_key or len(of_query) != len(of_key):
        return None
    return violation_of(
        same, key, "AS704", describe_apart(of_query, of_key), SAME_ORDER, joined_after_rotation(same, query, key)
    )


def _turned_alike(same: UniformRun, key: AttentionOperand) -> Violation | None:
    """Return that all pairs of features are rotated by the same angle at each position."""
    rows, mapping = same.rows(key), same.maps.get(key.role)
    if rows is None or mapping is None or len(mapping.pairs) < _FEWEST_PAIRS or same.changes_length(key):
        return None
    if not same.varies(key, same.tokens(key)) or not is_judged(same, key):
        return None
    first, second = (list(one) for one in zip(*map(sorted, mapping.pairs), strict=True))
    vector = same.repeated(rows.shape[-1]).to(rows)
    new = rows[rows.shape[0] - same.new_rows(key) :]
    turns = torch.atan2(new[:, second], new[:, first]) - torch.atan2(vector[second], vector[first])
    cosines = turns.cos()  # whichever feature of a pair is the first
    if bool((cosines - cosines[:, :1]).abs().max() > MIXED * MIXED):
        return None
    if _has_learned_angles(same, first_rotation(same, key)):
        return None
    message = f"all {len(mapping.pairs)} pairs of features are rotated by the same angle at each position"
    found = violation_of(same, key, "AS719", message, FREQUENCIES_HINT)
    return found if same.subject.claims.rope is not None else replace(found, level="notice")


def _has_learned_angles(same: UniformRun, rotation: OutputRef) -> bool:
    """Return whether parameters make what a rotation reads beside the data."""
    subject = same.subject
    tables = [one for one in subject.base.event(rotation).sources if not subject.graph.carries_data(one)]
    return any(not subject.graph.origins(one).isdisjoint(subject.parameters) for one in tables)


def _is_distorted(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether positions change the angles between vectors, and scores depend on more than the distance.

    A rotation keeps the angles, also where it is scaled by the position.
    """
    return is_judged(same, operand) and not same.maps[operand.role].keeps_angles and _is_relative(same, MIXED) is False


def _is_relative(same: UniformRun, tolerance: float) -> bool | None:
    """Return whether products of queries and keys depend on the distance alone; None if that can't be told.

    They do where queries are scaled by the inverse of the keys' factor (Sun et al. 2022,
    https://arxiv.org/abs/2212.10554).
    """
    q, k = (same.rows(operand) for operand in same.own[:2])
    if q is None or k is None or q.shape[-1] != k.shape[-1] or min(q.shape[0], k.shape[0]) < 2:
        return None
    scores = q @ k.T
    return torch.allclose(scores[1:, 1:], scores[:-1, :-1], rtol=0, atol=tolerance * float(scores.abs().max()))


def _layouts(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare the features that are rotated together with the claimed layout."""
    claimed = same.subject.claims.rope
    if claimed is None or query.width == 2:  # both layouts of one pair are the same
        return
    found = [(operand, own, pair) for operand in (query, key) for own, pair in paired_features(same, operand)]
    wrong = [(operand, own, pair) for operand, own, pair in found if own != claimed]
    for operand, own, (first, second) in wrong:
        of = f"{operand.role}'s rotated part" if isinstance(operand, HeadPart) else operand.role
        rotated = f"feature {first} of the {of} is rotated with feature {second}"
        message = f"{rotated}: the layout is {own}, expected {claimed}"
        # if both are wrong, the mistake is in the function that both call, not in one of the calls
        inside = pairing_call(same.subject, first_rotation(same, operand)) if len(wrong) == 2 else None
        yield violation_of(same, operand, "AS704", message, PAIRED[claimed], inside)


def _offsets(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare each query with the key at its position: rotated by the same angle, they are the same vector."""
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return
    aligned = k.shape[0] - q.shape[0]
    cosine = _cosine(q, k)
    own = _own_keys(same, q, k, key)
    new = same.new_rows(key)
    if aligned > 1 and new == k.shape[0] and same.subject.claims.causal and _restart(same, k, aligned):
        again = f"tokens {aligned} and {aligned + 1} were tokens 0 and 1"
        message = f"keys are rotated as if {again}: positions start again"
        hint = "rotate the tokens behind a memory from the number of its tokens on"
        yield violation_of(same, key, "AS703", message, hint)
        return
    if aligned and new == k.shape[0] and not _are_of_same_tokens(same, query, key):
        return  # cross-attention: no query is at the position of a certain key
    if not own.numel() or bool((cosine[own, own + aligned] > 1 - same.precision).all()):
        if new == k.shape[0] and (left_out := _unrotated_tokens(same, k)) is not None:
            yield left_out
            return
        yield from _from_elsewhere(same, query, key)
        return
    if aligned and not _are_in_order(same, k[k.shape[0] - new :]):
        return  # as in a ring buffer, where a query's own key is in any slot
    shift = _shift(same, cosine, own, aligned, k.shape[0] - new)
    by = f"by {shift:+d} positions" if shift is not None else "by no constant number of positions"
    yield _shifted(same, query, key, by)


def _restart(same: UniformRun, keys: Tensor, token: int) -> bool:
    """Return whether a token and the next one are rotated as the first two are, though they are the queries' own."""
    if token + 1 >= len(keys):
        return False
    cosine = _cosine(keys[[0, 1]], keys[[0, 1, token, token + 1]])
    alike = cosine > 1 - same.precision
    return bool(alike[0, 2] and alike[1, 3] and not alike[0, 1])


def _differences(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare the rotations of queries and keys, if both are made of the same tokens in this call."""
    subject = same.subject
    q, k = same.rows(query), same.rows(key)
    of_same_tokens = _are_of_same_tokens(same, query, key)
    has_cache = k is not None and same.new_rows(key) < k.shape[0]
    if q is None or k is None or q.shape[-1] != k.shape[-1] or (q.shape[0] != k.shape[0] and not has_cache):
        return
    rotated = [operand for operand in (query, key) if same.varies(operand, same.tokens(operand))]
    is_computed = all(projections(subject, operand.sources) for operand in (query, key)) and of_same_tokens
    if len(rotated) == 1 and is_computed and is_judged(same, rotated[0]) and same.new_rows(key) > 1:
        other = key if rotated[0] is query else query
        message = f"only the {rotated[0].role} is rotated, not the {other.role}: scores depend on its position alone"
        yield violation_of(same, rotated[0], "AS703", message, "rotate the query and the key by their positions")
    if len(rotated) < 2 or not all(is_judged(same, operand) for operand in rotated):
        return
    pairs = [same.maps[operand.role].pairs for operand in (query, key)]
    for first, second in itertools.product(*pairs):
        if len(first & second) == 1:
            (feature,), (of_query,), (of_key,) = first & second, first - second, second - first
            message = f"feature {feature} of the query is rotated with feature {of_query}, of the key with {of_key}"
            yield violation_of(same, key, "AS704", message, "pair the features of both in the same layout")
            return
    cosine, own, aligned = _cosine(q, k), _own_keys(same, q, k, key), k.shape[0] - q.shape[0]
    first_new = k.shape[0] - same.new_rows(key)
    if _agree(same, cosine, own, aligned, first_new):
        yield from _from_elsewhere(same, query, key)
    elif (shift := _shift(same, cosine, own, aligned, first_new)) is not None:
        yield _shifted(same, query, key, f"by {shift:+d} positions")
    elif has_cache and _starts_at_zero(same, query) != _starts_at_zero(same, key):
        yield _shifted(same, query, key, "one of them from 0")
    elif is_computed and not has_cache and _turn_apart(same, cosine):
        message = "query and key are rotated by different angles: the same vector differs at the same position"
        hint = "rotate both in the same direction, with the same frequencies, so that scores depend on the distance"
        yield violation_of(same, key, "AS703", message, hint)


def _are_of_same_tokens(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> bool:
    """Return whether queries and keys come from the same inputs."""
    subject = same.subject
    of_query, of_key = (subject.graph.origins(operand.sources) & set(subject.inputs) for operand in (query, key))
    return of_query == of_key


def _turn_apart(same: UniformRun, cosine: Tensor) -> bool:
    """Return whether the angle between a query and its own key depends on the position, and keys aren't reordered."""
    if any(same.changes_length(operand) for operand in same.own[:2]):
        return False
    own = cosine.diagonal()
    has_equal = (cosine > 1 - MIXED).any(-1)
    return bool(own.max() - own.min() > MIXED) and not bool(has_equal.all())


def _are_in_order(same: UniformRun, keys: Tensor) -> bool:
    """Return whether the keys are rotated by positions at equal distances, one after the other."""
    cosine = _cosine(keys, keys)
    return not bool(((cosine[1:, 1:] - cosine[:-1, :-1]).abs() > same.precision).any())


def _unrotated_tokens(same: UniformRun, keys: Tensor) -> Violation | None:
    """Return that adjacent tokens between rotated ones aren't rotated.

    Tokens in front of the others or after them may be meant to have no position: class tokens, or text beside an image.
    """
    first = (_cosine(keys, keys[:1])[:, 0] > 1 - same.precision).tolist()
    alike = [token for token in range(2, len(keys)) if first[token - 1] and first[token]]
    if not alike or first[1] or first[-1] or not _starts_at_zero(same, same.own[1]):
        return None
    between = f"queries and keys of tokens {alike[0] - 1} to {alike[-1]}"
    message = f"{between} aren't rotated: the same vector is as at position 0 there"
    return violation_of(same, same.own[1], "AS708", message, "rotate every part of the tokens by their positions")


def _from_elsewhere(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Yield that new tokens aren't numbered from the number of cached keys on, but from 0, or from another number.

    Without a claim that they are rotated, 0 is a notice, and any other number isn't judged.
    """
    rows, claimed = same.rows(key), same.subject.claims.rope is not None
    if rows is None or same.new_rows(key) < 2 or not same.varies(query, same.tokens(query)):
        return
    past, expected = rows.shape[0] - same.new_rows(key), same.subject.past_size
    if past and past == expected and all(_starts_at_zero(same, operand) for operand in (query, key)):
        message = "query and key are rotated from position 0, although tokens are cached: the first isn't rotated"
        of_cache = same.subject.past
        hint = f"rotate both from position {of_cache} on: torch.arange({of_cache}, {of_cache} + L)"
        violation = violation_of(same, query, "AS703", message, hint)
        yield violation if claimed else replace(violation, level="notice")
    elif past and claimed and not _has_given_positions(same, query):
        start = _first_position(same, key)
        if start is not None and start == _first_position(same, query) and start not in (0, past, past + 1):
            message = f"query and key are rotated from position {start} on, although {past} keys are cached"
            hint = "number new tokens from the number of cached keys on: the size of the cache's token axis"
            yield violation_of(same, query, "AS703", message, hint)


def _has_given_positions(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether an operand depends on whole numbers that are given, which may be positions."""
    inputs = same.subject.base.inputs
    given = (inputs[str(name)] for name in same.subject.graph.origins(operand.sources) if name in inputs)
    return any(not (value.is_floating_point() or value.is_complex()) for value in given)


def _first_position(same: UniformRun, operand: AttentionOperand) -> int | None:
    """Return the position by which the first new token is rotated, if each token turns by the same angles.

    The pair that turns most slowly tells it: its angle grows by the same step from position 0 on.
    """
    rows, mapping = same.rows(operand), same.maps.get(operand.role)
    if rows is None or mapping is None:
        return None
    new = rows[rows.shape[0] - same.new_rows(operand) :]
    slowest: tuple[float, float] | None = None
    for first, second in mapping.pairs:
        angles = torch.atan2(new[:2, second], new[:2, first])
        step, turned = (
            float(torch.remainder(one + torch.pi, 2 * torch.pi) - torch.pi)
            for one in (angles[1] - angles[0], angles[0] - torch.atan2(same.vector[second], same.vector[first]))
        )
        if abs(step) > _LEAST_STEP and (slowest is None or abs(step) < abs(slowest[0])):
            slowest = step, turned
    if slowest is None:
        return None
    position = slowest[1] / slowest[0]
    is_certain = 0 <= position < torch.pi / (2 * abs(slowest[0])) and abs(position - round(position)) < _WHOLE
    return round(position) if is_certain else None


def _own_keys(same: UniformRun, q: Tensor, k: Tensor, key: AttentionOperand) -> Tensor:
    """Return the queries at whose position there is a key that isn't from a cache."""
    rows = torch.arange(q.shape[0])
    return rows[rows + k.shape[0] - q.shape[0] >= k.shape[0] - same.new_rows(key)]


def _cosine(q: Tensor, k: Tensor) -> Tensor:
    return torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).T


def _shift(same: UniformRun, cosine: Tensor, own: Tensor, aligned: int, first: int) -> int | None:
    """Return by how many positions the keys at which queries are rotated alike are away from their own."""
    shifts = (shift for shift in range(-cosine.shape[1], cosine.shape[1]) if shift)
    return next((shift for shift in shifts if _agree(same, cosine, own, aligned + shift, first)), None)


def _shifted(same: UniformRun, query: AttentionOperand, key: AttentionOperand, by: str) -> Violation:
    from_zero = _starts_at_zero(same, query) and not _starts_at_zero(same, key)
    shifted = query if from_zero and same.subject.past else key
    message = f"query and key are rotated by different offsets, {by}: at the same position the same vector differs"
    hint = f"rotate both by the same positions: with a cache both start at {same.subject.past or 'Lp'}"
    return violation_of(same, shifted, "AS703", message, hint)


def _starts_at_zero(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether the first new token isn't rotated."""
    rows = same.rows(operand)
    if rows is None:
        return False
    first = rows[rows.shape[0] - same.new_rows(operand)]
    vector = same.repeated(first.numel())
    return bool(torch.isclose(first, vector * (first[0] / vector[0]), rtol=1e-6).all())


def _agree(same: UniformRun, cosine: Tensor, own: Tensor, offset: int, first: int) -> bool:
    inside = own[(own + offset >= first) & (own + offset < cosine.shape[1])]
    return inside.numel() > 1 and bool((cosine[inside, inside + offset] > 1 - same.precision).all())
