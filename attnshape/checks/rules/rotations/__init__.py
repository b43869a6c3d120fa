"""Are queries and keys rotated by their positions, in one layout, and is nothing else rotated?

Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 15).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.decoding import DecodingLoop, loops
from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import AttentionOperand, by_attention, of_distinct_code, projections
from attnshape.checks.attention.rotated_parts import HeadPart, RotatedParts, is_joined, rotated_parts
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import MIXED, UniformRun, depends_on_distance, uniform_run
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.rotations.steps import (
    Misplaced,
    UndecidableRotationError,
    layout,
    misplaced,
    turns_nothing,
)
from attnshape.options.claims import Rope
from attnshape.tracing.operations import COMPLEX_FROM_PAIRS, DATA_MOVEMENT, JOINS, REPEATS

CODES: tuple[str, ...] = ("AS701", "AS702", "AS703", "AS704", "AS705", "AS708", "AS709")
TOPIC = "rotary position embeddings"
_CLAIM = ("rope",)
_PAIRED: dict[Rope, str] = {"half": "pair feature i with i + Dk/2", "interleaved": "pair feature 2i with 2i + 1"}
_ROTATED_VALUE = "the value is rotated: the same vector differs between positions"
_SAME_VECTOR = "gave every token, head and batch element the same vector"


def check(subject: Subject) -> Iterator[Outcome]:
    """Give all tokens and heads of queries, keys and values the same vector, and look at how positions change it."""
    of_loops = list(_of_loops(subject))
    yield from of_loops
    if any(isinstance(outcome, Violation) for outcome in of_loops):
        return
    if subject.claims.rope is None:
        yield from _unclaimed(subject)
        return
    judged: list[AttentionOperand] = []
    unrotated: list[AttentionOperand] = []
    rotating: set[int] = set()
    rotated = skipped = paired = False
    for own in by_attention(subject):
        found = _judged_together(subject, own)
        if found is None:
            skipped = True
            continue
        judged.append(own[0])
        same, violations = found
        varying = [operand for operand in same.own[:2] if same.varies(operand, same.tokens(operand))] if same else []
        rotated = rotated or bool(varying)
        if varying:
            rotating |= {id(weight) for operand in own[:2] for weight in _weights(subject, operand)}
        elif same is not None:
            unrotated.append(own[1])
        paired = paired or any(same.pair(operand) is not None for operand in varying if same)
        violation = next(violations, None)
        if violation is not None:
            yield violation
            return
    violation = _cached(subject)
    again = next((key for key in unrotated if rotating & {id(one) for one in _weights(subject, key)}), None)
    if violation is not None:
        yield violation
    elif again is not None:
        message = "neither queries nor keys are rotated here, though the same layer rotates them in another call"
        hint = "rotate by the positions of all tokens, cached ones included, also where there is one new token"
        yield Violation("AS708", message, OutputRef(again.event.order), hint, _SAME_VECTOR, claims=_CLAIM)
    elif judged and not rotated and not skipped:
        message = "neither queries nor keys are rotated: the same vector is equal at every position"
        hint = "rotate both by their positions before their product"
        yield Violation("AS708", message, OutputRef(judged[0].event.order), hint, _SAME_VECTOR, claims=_CLAIM)
    elif judged and rotated and not paired:
        yield Undecided(TOPIC, "which features are rotated together can't be told", _CLAIM)
    elif (judged and rotated) or any(outcome.claims for outcome in of_loops):
        verified = f"queries and keys are rotated by their positions, in the {subject.claims.rope} layout"
        yield Verification(verified, _CLAIM)
    else:
        yield Undecided(TOPIC, "queries and keys can't be given the same vector", _CLAIM)


def _weights(subject: Subject, operand: AttentionOperand) -> list[Tensor]:
    """Return the parameters of the projections from which an operand comes."""
    events = (subject.base.event(ref) for ref in projections(subject, operand.sources))
    return [one for event in events for one in event.operands if isinstance(one, nn.Parameter)]


def _judged_together(
    subject: Subject, own: tuple[AttentionOperand, AttentionOperand, AttentionOperand]
) -> tuple[UniformRun | None, Iterator[Violation]] | None:
    """Return the run in which queries and keys are the same vector, with what is wrong; None if there is no such run.

    There is no run, and nothing wrong with it, if parts of heads may be rotated and none is.
    """
    query, key, value = own
    parts = rotated_parts(subject, own) if is_joined(subject, own) else None
    if parts is not None and (parts.same is None or not _is_one_token(parts.same, *parts.same.own)):
        return parts.same, _of_parts(subject, parts, value)
    if isinstance(query.core, Core) and query.core.more_scores:
        return None
    same = uniform_run(subject, own)
    if same is None or same.tokens(query) is None or same.tokens(key) is None or _is_one_token(same, query, key):
        return None
    return same, _violations(same, query, key, value)


def _of_parts(subject: Subject, parts: RotatedParts, value: AttentionOperand) -> Iterator[Violation]:
    if parts.value_varies:
        at = OutputRef(value.event.order)
        evidence = "gave every token the same projections"
        yield Violation("AS702", _ROTATED_VALUE, at, "rotate only the query and the key", evidence, claims=_CLAIM)
    if parts.same is not None:
        query, key = parts.same.own
        yield from _of_queries_and_keys(parts.same, query, key)


def _is_one_token(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> bool:
    """Return whether there is one query with its key, beside those of a cache, which says nothing of positions."""
    rows = same.rows(query)
    return rows is not None and rows.shape[0] < 2 and same.new_rows(key) < 2


def _of_loops(subject: Subject) -> Iterator[Outcome]:
    """Yield whether tokens keep the positions by which they are rotated where one call decodes step by step."""
    every = loops(subject)
    decided = 0
    for loop in every:
        try:
            wrong = misplaced(loop)
            violation = (
                _misplaced(loop.at(subject, wrong.step), wrong) if wrong is not None else _in_steps(subject, loop)
            )
        except UndecidableRotationError:
            violation = _unrotated_in_steps(subject, loop)
            if violation is None:
                continue
        decided += 1
        if violation is not None:
            yield violation
            return
    if every and decided == len(every):
        text = "where a loop decodes with a cache, tokens are rotated by the same positions in every step"
        yield Verification(text, _CLAIM if _are_all_steps(subject, every) else ())


def _are_all_steps(subject: Subject, every: Sequence[DecodingLoop]) -> bool:
    """Return whether a rotation is claimed, and each attention is a step of a loop."""
    steps = {step.own[0].core.context for loop in every for step in loop.steps}
    return subject.claims.rope is not None and steps == {core.context for core in subject.attentions}


def _in_steps(subject: Subject, loop: DecodingLoop) -> Violation | None:
    """Compare the features that are rotated together in a loop with the claimed layout."""
    claimed, found = subject.claims.rope, layout(loop)
    if claimed is None or found == claimed:
        return None
    same = loop.at(subject, loop.steps[-1])
    message = f"in a loop with a cache, the layout of the rotation is {found}, expected {claimed}"
    return _violation(same, same.own[1], "AS704", message, _PAIRED[claimed])


def _unrotated_in_steps(subject: Subject, loop: DecodingLoop) -> Violation | None:
    """Return that the tokens of a loop aren't rotated, if that is claimed."""
    if subject.claims.rope is None or not turns_nothing(loop):
        return None
    key = loop.steps[-1].own[1]
    message = (
        "in a loop with a cache, every token is rotated alike, or not at all: the same vector is equal in each step"
    )
    hint = "rotate queries and new keys by their positions, from the number of cached keys on"
    return Violation("AS708", message, OutputRef(key.event.order), hint, _SAME_VECTOR, claims=_CLAIM)


def _misplaced(same: UniformRun, wrong: Misplaced) -> Violation:
    query, key, _ = same.own
    rotated = f"rotated like one at position {wrong.position}"
    if wrong.is_query:
        message = f"the query of token {wrong.token} is {rotated}, its key by its own position"
        hint = "rotate queries and new keys by the same positions, from the number of cached keys on"
        at = same.first_varying(query) or same.first_varying(key)
    else:
        message, at = f"the key of token {wrong.token} is {rotated}", same.first_varying(key)
        hint = "number the tokens of a step from the number of cached keys on"
    message = f"in step {wrong.number} of a loop with a cache, {message}"
    code = "AS703"
    if wrong.is_rotated_again:
        code, message = "AS705", f"cached keys are rotated again: {message}"
        hint = "rotate a key once, when it enters the cache, or cache keys that aren't rotated"
    at = at or OutputRef(key.event.order)
    return replace(_violation(same, key, code, message, hint, at), place=helper_call(same.subject, at))


def _unclaimed(subject: Subject) -> Iterator[Outcome]:
    """Yield what is wrong with rotations whatever is meant; else a notice of the first attention's rotation."""
    alone: list[bool] = []
    for query, key, value in of_distinct_code(subject):
        same = uniform_run(subject, (query, key, value))
        if same is None or same.tokens(query) is None or same.tokens(key) is None:
            alone.append(False)
            continue
        found = list(_violations(same, query, key, value))
        errors = [violation for violation in found if violation.level == "error"]
        yield from [violation for violation in found if violation.level != "error"] if not errors else errors[:1]
        if errors:
            return
        if not alone:
            yield from _rotated(same, query, key)
        alone.append(depends_on_distance(same))
    if alone and all(alone):
        yield Verification("where all queries and keys are equal, their scores depend on their distance alone")


def _rotated(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Outcome]:
    """Yield a notice if queries and keys are rotated, and what is verified without a claim."""
    subject = same.subject
    if not all(same.varies(operand, same.tokens(operand)) for operand in (query, key)):
        return
    pair = same.pair(query)
    if pair is not None and not same.changes_length(query):  # else what depends on the position is no rotation
        layout = _layout(pair)
        message = f"queries and keys are rotated by their positions, in the {layout} layout, which nothing claims"
        hint = f"if it is meant, claim it: --claim rope={layout}"
        at = _first_rotation(same, query)
        yield Violation("AS709", message, at, hint, _SAME_VECTOR, place=helper_call(subject, at), level="notice")
    if not all(_judged(same, operand) for operand in (query, key)):
        return
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return
    own = _own_keys(same, q, k, key)
    if own.numel() and _agree(same, _cosine(q, k), own, k.shape[0] - q.shape[0], 0):
        yield Verification("queries and keys at the same position are rotated alike")


def _judged(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether positions change an operand as they are meant to: by the claim, or by a map that mixes features.

    A position embedding that is added, or a gate, is none. Neither is a table of any numbers that the caller gives.
    """
    claimed = same.subject.claims.rope is not None
    return claimed or (
        same.token_axis_is_certain(operand) and same.mixes(operand) and not same.has_given_tables(operand)
    )


def _violations(
    same: UniformRun, query: AttentionOperand, key: AttentionOperand, value: AttentionOperand
) -> Iterator[Violation]:
    claimed = same.subject.claims.rope is not None
    if same.varies(value, same.tokens(value)) and _judged(same, value):
        violation = _violation(same, value, "AS702", _ROTATED_VALUE, "rotate only the query and the key")
        yield violation if claimed else replace(violation, level="notice")
    yield from _of_queries_and_keys(same, query, key)


def _of_queries_and_keys(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    claimed = same.subject.claims.rope is not None
    for operand in (query, key):
        for symbol, axis in same.others(operand) if not same.varies(operand, same.tokens(operand)) else ():
            if same.varies(operand, axis) and (claimed or symbol in ("B", "H", "Hkv")) and _judged(same, operand):
                differs = "the same vector differs there, not between positions"
                message = f"the {operand.role} is rotated along {symbol}: {differs}"
                yield _violation(same, operand, "AS701", message, "take the positions from the token axis")
    for operand in (query, key):
        has_cache = same.new_rows(operand) < operand.value.shape[same.tokens(operand) or 0]
        if same.changes_length(operand) and not has_cache and (claimed or _is_distorted(same, operand)):
            message = (
                f"the {operand.role}'s norm changes with its position, as with mixed layouts: it is not just rotated"
            )
            hint = "repeat the angles as features are paired: cat for halves, repeat_interleave for adjacent features"
            doubled = same.rejoined(operand) or _doubled(same, operand)
            at = _paired(same.subject, doubled) if doubled is not None else None
            yield _violation(same, operand, "AS704", message, hint, at)
    if claimed:
        yield from _layouts(same, query, key)
        yield from _offsets(same, query, key)
    else:
        yield from _differences(same, query, key)


def _is_distorted(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether positions change the angles between vectors, and scores depend on more than the distance.

    A rotation keeps the angles, also where it is scaled by the position. Scores depend on the distance alone where
    queries are scaled by the inverse of the keys' factor (Sun et al. 2022, https://arxiv.org/abs/2212.10554).
    """
    if not _judged(same, operand) or same.maps[operand.role].keeps_angles:
        return False
    q, k = (same.rows(other) for other in same.own[:2])
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return False
    scores = q @ k.T
    return not bool(
        torch.isclose(scores[1:, 1:], scores[:-1, :-1], rtol=0, atol=MIXED * float(scores.abs().max())).all()
    )


def _layouts(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare the features that are rotated together with the claimed layout."""
    claimed = same.subject.claims.rope
    if claimed is None or query.width == 2:  # both layouts of one pair are the same
        return
    pairs = [(operand, pair) for operand in (query, key) if (pair := same.pair(operand)) is not None]
    wrong = [(operand, pair) for operand, pair in pairs if _layout(pair) != claimed]
    for operand, (first, second) in wrong:
        of = f"{operand.role}'s rotated part" if isinstance(operand, HeadPart) else operand.role
        rotated = f"feature {first} of the {of} is rotated with feature {second}"
        message = f"{rotated}: the layout is {_layout((first, second))}, expected {claimed}"
        # if both are wrong, the mistake is in the function that both call, not in one of the calls
        inside = _paired(same.subject, _first_rotation(same, operand)) if len(wrong) == 2 else None
        yield _violation(same, operand, "AS704", message, _PAIRED[claimed], inside)


def _layout(pair: tuple[int, int]) -> Rope:
    return "interleaved" if pair[1] - pair[0] == 1 else "half"


def _offsets(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare each query with the key at its position: rotated by the same angle, they are the same vector."""
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return
    aligned = k.shape[0] - q.shape[0]
    cosine = _cosine(q, k)
    own = _own_keys(same, q, k, key)
    new = same.new_rows(key)
    if not own.numel() or bool((cosine[own, own + aligned] > 1 - same.precision).all()):
        # products of one vector with itself, rotated at two positions
        if new == k.shape[0] and bool(((cosine[1:, 1:] - cosine[:-1, :-1]).abs() > same.precision).any()):
            depends = "the score of a query and a key depends on more than their distance"
            message = f"cached keys are rotated again: {depends}"
            yield _violation(same, key, "AS705", message, "rotate a key once, when it enters the cache")
        yield from _from_zero(same, query, key)
        return
    shift = _shift(same, cosine, own, aligned, k.shape[0] - new)
    by = f"by {shift:+d} positions" if shift is not None else "by no constant number of positions"
    yield _shifted(same, query, key, by)


def _differences(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare the rotations of queries and keys, if both are made of the same tokens in this call."""
    subject = same.subject
    q, k = same.rows(query), same.rows(key)
    sources = [subject.graph.origins(operand.sources) & set(subject.inputs) for operand in (query, key)]
    has_cache = k is not None and same.new_rows(key) < k.shape[0]
    if q is None or k is None or q.shape[-1] != k.shape[-1] or (q.shape[0] != k.shape[0] and not has_cache):
        return
    rotated = [operand for operand in (query, key) if same.varies(operand, same.tokens(operand))]
    is_computed = all(projections(subject, operand.sources) for operand in (query, key)) and sources[0] == sources[1]
    if len(rotated) == 1 and is_computed and _judged(same, rotated[0]) and same.new_rows(key) > 1:
        other = key if rotated[0] is query else query
        message = f"only the {rotated[0].role} is rotated, not the {other.role}: scores depend on its position alone"
        yield _violation(same, rotated[0], "AS703", message, "rotate the query and the key by their positions")
    if len(rotated) < 2 or not all(_judged(same, operand) for operand in rotated):
        return
    pairs = [same.maps[operand.role].pairs for operand in (query, key)]
    for first, second in itertools.product(*pairs):
        if len(first & second) == 1:
            (feature,), (of_query,), (of_key,) = first & second, first - second, second - first
            message = f"feature {feature} of the query is rotated with feature {of_query}, of the key with {of_key}"
            yield _violation(same, key, "AS704", message, "pair the features of both in the same layout")
            return
    cosine, own, aligned = _cosine(q, k), _own_keys(same, q, k, key), k.shape[0] - q.shape[0]
    first_new = k.shape[0] - same.new_rows(key)
    if _agree(same, cosine, own, aligned, first_new):
        yield from _from_zero(same, query, key)
    elif (shift := _shift(same, cosine, own, aligned, first_new)) is not None:
        yield _shifted(same, query, key, f"by {shift:+d} positions")
    elif has_cache and _starts_at_zero(same, query) != _starts_at_zero(same, key):
        yield _shifted(same, query, key, "one of them from 0")


def _from_zero(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Yield that new tokens are numbered from 0 after cached keys; a notice if no claim says that these are rotated."""
    rows, past = same.rows(key), same.subject.numbers.get("Lp", 0)
    if rows is None or not past or rows.shape[0] - same.new_rows(key) != past or same.new_rows(key) < 2:
        return
    if same.varies(query, same.tokens(query)) and all(_starts_at_zero(same, operand) for operand in (query, key)):
        message = "query and key are rotated from position 0, although tokens are cached: the first isn't rotated"
        hint = "rotate both from position Lp on: torch.arange(Lp, Lp + L)"
        violation = _violation(same, query, "AS703", message, hint)
        yield violation if same.subject.claims.rope is not None else replace(violation, level="notice")


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
    shifted = query if from_zero and "Lp" in same.subject.numbers else key
    message = f"query and key are rotated by different offsets, {by}: at the same position the same vector differs"
    hint = "rotate both by the same positions: with a cache both start at Lp"
    return _violation(same, shifted, "AS703", message, hint)


def _starts_at_zero(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether the first new token isn't rotated."""
    rows = same.rows(operand)
    if rows is None:
        return False
    first = rows[rows.shape[0] - same.new_rows(operand)]
    return bool(torch.isclose(first, same.vector * (first[0] / same.vector[0]), rtol=1e-6).all())


def _agree(same: UniformRun, cosine: Tensor, own: Tensor, offset: int, first: int) -> bool:
    inside = own[(own + offset >= first) & (own + offset < cosine.shape[1])]
    return inside.numel() > 1 and bool((cosine[inside, inside + offset] > 1 - same.precision).all())


def _cached(subject: Subject) -> Violation | None:
    """Compare the cached keys that a call returns with those that it received: they must be equal."""
    past = subject.numbers.get("Lp", 0)
    for name, value in (*subject.base.inputs.items(), *subject.base.state.items()) if past > 1 else ():
        if past not in value.shape or value.ndim < 3:
            continue
        axis = list(value.shape).index(past)
        for _, returned in subject.base.returned:
            longer = returned.ndim == value.ndim and returned.shape[axis] > past
            rows = returned.narrow(axis, 0, past) if longer else value
            if rows.shape != value.shape or torch.allclose(rows, value, rtol=1e-6):
                continue
            if not torch.allclose(rows.square().sum(-1), value.square().sum(-1), rtol=1e-6):
                continue
            at = _after_concatenation(subject, name)
            place = helper_call(subject, at) if at is not None else None
            message = f"cached keys are rotated again: the call returns those of {name} rotated once more"
            hint = "rotate a key once, when it enters the cache: torch.cat((past_key, rotate(k)), dim=2)"
            evidence = f"compared {name} with the first {past} returned keys"
            return Violation("AS705", message, at, hint, evidence, place=place, claims=_CLAIM)
    return None


def _after_concatenation(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that computes with the concatenation of a cache and new keys."""
    joined = {ref for ref in subject.graph.downstream({name}) if subject.base.event(ref).name in JOINS}
    downstream = {ref for start in joined for ref in subject.graph.downstream_of(start)}
    later = (ref for ref in downstream - joined if subject.base.event(ref).name not in DATA_MOVEMENT)
    return min(later, default=None)


def _violation(
    same: UniformRun, operand: AttentionOperand, code: str, message: str, hint: str, at: OutputRef | None = None
) -> Violation:
    """Return the violation at a call inside a helper function, else where the first call that rotates is made.

    If that call is in a helper function, it is the line that calls the function.
    """
    place = None
    if at is None:
        at = _first_rotation(same, operand)
        place = helper_call(same.subject, at)
    claims = _CLAIM if same.subject.claims.rope is not None else ()
    return Violation(code, message, at, hint, _SAME_VECTOR, place=place, claims=claims)


def _first_rotation(same: UniformRun, operand: AttentionOperand) -> OutputRef:
    return same.first_varying(operand) or OutputRef(operand.event.order)


def _doubled(same: UniformRun, operand: AttentionOperand) -> OutputRef | None:
    """Return the call that repeats the angles for both features of a pair."""
    graph, at = same.subject.graph, same.first_varying(operand)
    for sources in graph.node(at).sources if at is not None else ():
        for event in graph.upstream(sources):
            if event.refs[0] not in graph.depends_on_data and event.name in REPEATS | JOINS:
                return event.refs[0]
    return None


def _paired(subject: Subject, at: OutputRef) -> OutputRef:
    """Return the call that pairs features before they are rotated, if there is one."""
    event = subject.base.event(at)
    for sources in event.sources:
        source = sources[-1]
        if isinstance(source, OutputRef) and subject.base.event(source).name in COMPLEX_FROM_PAIRS:
            return source
    return at
