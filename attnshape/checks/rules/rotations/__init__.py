"""Are queries and keys rotated by their positions, in one layout, and is nothing else rotated?

Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 15).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.decoding import DecodingLoop, loops
from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import (
    AttentionOperand,
    AttentionOperands,
    by_attention,
    of_distinct_code,
    projections,
)
from attnshape.checks.attention.perturbation import differs, other_numbers
from attnshape.checks.attention.rotated_parts import RotatedParts, is_joined, rotated_apart, rotated_parts
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, depends_on_distance, uniform_run
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.rotations.alike import are_alike_at_each_position, judge_queries_and_keys
from attnshape.checks.rules.rotations.apart import multiplied_apart
from attnshape.checks.rules.rotations.features import certain_layout
from attnshape.checks.rules.rotations.findings import (
    CLAIM,
    PAIRED,
    SAME_VECTOR,
    first_rotation,
    is_judged,
    violation_of,
)
from attnshape.checks.rules.rotations.steps import (
    Misplaced,
    UndecidableRotationError,
    layout,
    misplaced,
    turns_nothing,
)
from attnshape.tracing.operations import DATA_MOVEMENT, JOINS

CODES: tuple[str, ...] = ("AS701", "AS702", "AS703", "AS704", "AS705", "AS708", "AS709", "AS719")
TOPIC = "rotary position embeddings"
_ROTATED_VALUE = "the value is rotated: the same vector differs between positions"
_SINGLE_STEP = "one attention, such as a single step, tells nothing by itself"


def check(subject: Subject) -> Iterator[Outcome]:
    """Give all tokens and heads of queries, keys and values the same vector, and look at how positions change it."""
    every = loops(subject)
    of_loops = list(_of_loops(subject, every))
    yield from of_loops
    if any(isinstance(outcome, Violation) for outcome in of_loops):
        return
    if subject.claims.rope is None:
        yield from _unclaimed(subject)
        return
    judged: list[AttentionOperand] = []
    unrotated: list[AttentionOperand] = []
    rotating: set[int] = set()
    rotated = paired = False
    skipped: set[OutputRef] = set()
    for own in by_attention(subject):
        found = _judged_together(subject, own)
        if found is None:
            skipped.add(own[0].core.context)
            continue
        judged.append(own[0])
        same, violations = found
        varying = [operand for operand in same.own[:2] if same.varies(operand, same.tokens(operand))] if same else []
        rotated = rotated or bool(varying)
        if varying and same is not None and _has_one_query(same, own[0]):
            skipped.add(own[0].core.context)
        if varying:
            rotating |= {id(weight) for operand in own[:2] for weight in _weights(subject, operand)}
        elif same is not None:
            unrotated.append(own[1])
        paired = paired or any(certain_layout(same, one) is not None or one.width == 2 for one in varying if same)
        violation = next(violations, None)
        if violation is not None:
            yield violation
            return
    violation = _cached(subject) or next(
        filter(None, (_crossed(subject, own) for own in of_distinct_code(subject))), None
    )
    again = next((key for key in unrotated if rotating & {id(one) for one in _weights(subject, key)}), None)
    if violation is not None:
        yield violation
    elif again is not None:
        message = "neither queries nor keys are rotated here, though the same layer rotates them in another call"
        hint = "rotate by the positions of all tokens, cached ones included, also where there is one new token"
        yield Violation("AS708", message, OutputRef(again.event.order), hint, SAME_VECTOR, claims=CLAIM)
    elif judged and not rotated and not skipped:
        message = "neither queries nor keys are rotated: the same vector is equal at every position"
        hint = "rotate both by their positions before their product"
        yield Violation("AS708", message, OutputRef(judged[0].event.order), hint, SAME_VECTOR, claims=CLAIM)
    elif judged and rotated and not paired:
        yield Undecided(TOPIC, "which features are rotated together can't be told", CLAIM)
    elif rotated and skipped - (_steps_of(every) if of_loops else set()):
        yield Undecided(TOPIC, _SINGLE_STEP, CLAIM)
    elif (judged and rotated) or any(outcome.claims for outcome in of_loops):
        verified = f"queries and keys are rotated by their positions, in the {subject.claims.rope} layout"
        yield Verification(verified, CLAIM)
    else:
        steps = all(_is_single_step(subject, own) for own in by_attention(subject))
        yield Undecided(TOPIC, _SINGLE_STEP if steps else "queries and keys can't be given the same vector", CLAIM)


def _weights(subject: Subject, operand: AttentionOperand) -> list[Tensor]:
    """Return the parameters of the projections from which an operand comes."""
    events = (subject.base.event(ref) for ref in projections(subject, operand.sources))
    return [one for event in events for one in event.operands if isinstance(one, nn.Parameter)]


def _judged_together(subject: Subject, own: AttentionOperands) -> tuple[UniformRun | None, Iterator[Violation]] | None:
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
        yield Violation("AS702", _ROTATED_VALUE, at, "rotate only the query and the key", evidence, claims=CLAIM)
    if parts.apart is not None:
        yield multiplied_apart(subject, parts.apart)
    if parts.same is not None:
        query, key = parts.same.own
        yield from judge_queries_and_keys(parts.same, query, key)


def _is_single_step(subject: Subject, own: AttentionOperands) -> bool:
    """Return whether queries and keys can be the same vector, and there is one query."""
    same = uniform_run(subject, own)
    return same is not None and (same.tokens(own[0]) is None or _has_one_query(same, own[0]))


def _is_one_token(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> bool:
    """Return whether there is one query with its key, beside those of a cache, which says nothing of positions."""
    return _has_one_query(same, query) and same.new_rows(key) < 2


def _has_one_query(same: UniformRun, query: AttentionOperand) -> bool:
    rows = same.rows(query)
    return rows is not None and rows.shape[0] < 2


def _of_loops(subject: Subject, every: Sequence[DecodingLoop]) -> Iterator[Outcome]:
    """Yield whether tokens keep the positions by which they are rotated where one call decodes step by step."""
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
        yield Verification(text, CLAIM if _are_all_steps(subject, every) else ())


def _are_all_steps(subject: Subject, every: Sequence[DecodingLoop]) -> bool:
    """Return whether a rotation is claimed, and each attention is a step of a loop."""
    return subject.claims.rope is not None and _steps_of(every) == {core.context for core in subject.attentions}


def _steps_of(every: Sequence[DecodingLoop]) -> set[OutputRef]:
    """Return the contexts of the attentions that are steps of loops."""
    return {step.own[0].core.context for loop in every for step in loop.steps}


def _in_steps(subject: Subject, loop: DecodingLoop) -> Violation | None:
    """Compare the features that are rotated together in a loop with the claimed layout."""
    claimed, found = subject.claims.rope, layout(loop)
    if claimed is None or found == claimed:
        return None
    same = loop.at(subject, loop.steps[-1])
    message = f"in a loop with a cache, the layout of the rotation is {found}, expected {claimed}"
    return violation_of(same, same.own[1], "AS704", message, PAIRED[claimed])


def _unrotated_in_steps(subject: Subject, loop: DecodingLoop) -> Violation | None:
    """Return that the tokens of a loop aren't rotated, if that is claimed."""
    if subject.claims.rope is None or not turns_nothing(loop):
        return None
    key = loop.steps[-1].own[1]
    message = (
        "in a loop with a cache, every token is rotated alike, or not at all: the same vector is equal in each step"
    )
    hint = "rotate queries and new keys by their positions, from the number of cached keys on"
    return Violation("AS708", message, OutputRef(key.event.order), hint, SAME_VECTOR, claims=CLAIM)


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
        if wrong.step.dropped:
            hint = "number the tokens of a step from the number of tokens before it, those no longer cached included"
    message = f"in step {wrong.number} of a loop with a cache, {message}"
    code = "AS703"
    if wrong.is_rotated_again:
        code, message = "AS705", f"cached keys are rotated again: {message}"
        hint = "rotate a key once, when it enters the cache, or cache keys that aren't rotated"
    at = at or OutputRef(key.event.order)
    return replace(violation_of(same, key, code, message, hint, at), place=helper_call(same.subject, at))


def _unclaimed(subject: Subject) -> Iterator[Outcome]:
    """Yield what is wrong with rotations whatever is meant; else a notice of the first attention's rotation."""
    alone: list[bool] = []
    for query, key, value in of_distinct_code(subject):
        apart = rotated_apart(subject, (query, key, value)) if is_joined(subject, (query, key, value)) else None
        if apart is not None:
            yield multiplied_apart(subject, apart)
            return
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
    if same.pair(query) is not None and not same.changes_length(query):  # else what varies is no rotation
        found = certain_layout(same, query)
        in_layout = f", in the {found} layout" if found is not None else ""
        message = f"queries and keys are rotated by their positions{in_layout}, which nothing claims"
        hint = f"if it is meant, claim it: --claim rope={found or 'half, or rope=interleaved'}"
        at = first_rotation(same, query)
        yield Violation("AS709", message, at, hint, SAME_VECTOR, place=helper_call(subject, at), level="notice")
    if all(is_judged(same, one) for one in (query, key)) and are_alike_at_each_position(same, query, key):
        yield Verification("queries and keys at the same position are rotated alike")


def _violations(
    same: UniformRun, query: AttentionOperand, key: AttentionOperand, value: AttentionOperand
) -> Iterator[Violation]:
    claimed = same.subject.claims.rope is not None
    if same.varies(value, same.tokens(value)) and is_judged(same, value) and not _only_padding_differs(same, value):
        violation = violation_of(same, value, "AS702", _ROTATED_VALUE, "rotate only the query and the key")
        yield violation if claimed else replace(violation, level="notice")
    yield from judge_queries_and_keys(same, query, key)


def _only_padding_differs(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether all vectors are equal but those of one number, with which windows are padded."""
    width = same.width(operand)
    vectors = operand.of(same.run).movedim(width, -1).flatten(0, -2)
    own = vectors[(vectors != vectors[:, :1]).any(-1)]
    return bool(((own - own[:1]).abs() <= same.precision * own.abs().max()).all()) if own.numel() else True


def _cached(subject: Subject) -> Violation | None:
    """Compare the cached keys that a call returns with those that it received: they must be equal."""
    past = subject.past_size
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
            return Violation("AS705", message, at, hint, evidence, place=place, claims=CLAIM)
    return None


def _crossed(subject: Subject, own: AttentionOperands) -> Violation | None:
    """Change each projection by itself: that of the queries may change no key, nor that of the keys a query.

    A rotation of both in one call may take a feature of the one for that of the other, which the same vector hides.
    """
    query, key, _ = own
    refs = [projections(subject, operand.sources) for operand in (query, key)]
    reached = {ref: _changed_by(subject, ref, (query, key)) for ref in sorted(refs[0] | refs[1])}
    of_both = [ref for ref, changes in reached.items() if all(changes)]
    apart = all(any(changes[place] for ref, changes in reached.items() if ref in refs[place]) for place in (0, 1))
    if len(reached) < 2 or not of_both or not apart:
        return None
    others = [ref for ref in reached if ref != of_both[0] and any(reached[ref])]
    if not others or subject.graph.downstream_of(of_both[0]) & set(others):
        return None
    message = "queries and keys both change with the projection of one of them: their rotated features are mixed up"
    hint = "rotate queries by queries' features alone, and keys by keys'"
    evidence = "changed each projection by itself, and looked at queries and keys"
    joined = (event for event in subject.graph.upstream(query.sources) if event.name in JOINS)
    at = next((event.refs[0] for event in joined), OutputRef(query.event.order))
    return Violation("AS704", message, at, hint, evidence, claims=CLAIM)


def _changed_by(subject: Subject, ref: OutputRef, operands: Sequence[AttentionOperand]) -> list[bool]:
    run = subject.experiment.run(Intervention(results={ref: other_numbers}))
    if not run.follows(subject.base):
        return [False] * len(operands)
    return [bool(differs(one.value, one.of(run), subject.experiment.tolerance).any()) for one in operands]


def _after_concatenation(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that computes with the concatenation of a cache and new keys."""
    joined = {ref for ref in subject.graph.downstream({name}) if subject.base.event(ref).name in JOINS}
    downstream = {ref for start in joined for ref in subject.graph.downstream_of(start)}
    later = (ref for ref in downstream - joined if subject.base.event(ref).name not in DATA_MOVEMENT)
    return min(later, default=None)
