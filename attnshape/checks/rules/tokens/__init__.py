"""Do tokens keep their positions until attention mixes them?"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import product
from attnshape.checks.attention.divergences import scrambles, splits_fused_projection
from attnshape.checks.attention.perturbation import Divergence, divergences
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import (
    CONVOLUTIONS,
    DATA_MOVEMENT,
    DIVISIONS,
    MULTIPLICATIONS,
    NORMS,
    PRODUCTS,
    REVERSED_DIVISIONS,
    SPLITS,
    SUBTRACTIONS,
)

CODES: tuple[str, ...] = ("AS103", "AS104", "AS105", "AS111", "AS113", "AS602")
TOPIC = "tokens before attention"
_INVERSE = DIVISIONS | REVERSED_DIVISIONS | {"rsqrt", "reciprocal", "pow"}
_NEAR = 4
"""The most calls between subtracting the mean and dividing by the standard deviation."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Change one token of the inputs, and find the first call after which other positions change."""
    comparable, mixing = False, None
    scores = [one for core in subject.cores for one in (core.scores, *core.more_scores, *core.positional)]
    mixed_by = [*(one.ref for one in scores), *(core.context for core in subject.fused)]
    behind = {address for start in mixed_by for address in subject.graph.behind(start)}
    for symbol in subject.lengths:
        index = subject.numbers[symbol] // 2
        change = subject.at_index(symbol, index)
        if not change:
            continue
        moved = subject.perturb(Intervention(inputs=change))
        if not moved.comparable:
            yield Undecided(TOPIC, f"with different values in token {index}, the code takes a different path")
            continue
        comparable = True
        for divergence in divergences(moved, symbol, index, subject.numbers, change):
            if divergence.ref in behind:
                continue
            violation = _violation(subject, divergence, symbol, index, next(iter(change)))
            if violation is not None:
                yield violation
                return
            if _before_attention(subject, divergence.event):
                mixing = mixing or divergence
    if mixing is not None:
        what = (mixing.summary or mixing.event).short_name
        yield Observation(f"{what} mixes or moves tokens before attention", mixing.ref)
    elif comparable:
        yield Verification("tokens keep their positions up to the scores")
    else:
        yield Undecided(TOPIC, "no input has a token axis")


def _violation(subject: Subject, divergence: Divergence, symbol: str, index: int, name: str) -> Violation | None:
    event = divergence.event
    evidence = f"changed token {index} of {name}"
    if event.name in DATA_MOVEMENT:
        if not scrambles(
            subject, divergence, symbol, index, lambda i: Intervention(inputs=subject.at_index(symbol, i))
        ):
            return None
        return _scrambled(subject, divergence, symbol, index, evidence)
    if not _before_attention(subject, event):
        return None
    return mixed(subject, divergence, index, evidence)


def mixed(subject: Subject, divergence: Divergence, index: int, evidence: str) -> Violation | None:
    """Return the violation if a call other than attention mixes tokens and shouldn't."""
    event, which = divergence.event, divergence.summary or divergence.event
    if event.name in NORMS or _normalises(subject, divergence):
        return Violation(
            code="AS104",
            message=f"{which.short_name} runs over the tokens: token {index} changes all others",
            at=which.refs[0],
            hint="normalise each token by itself, over the last axis",
            evidence=evidence,
        )
    if (event.name in PRODUCTS and _with_parameters(subject, event)) or _is_wide_convolution(divergence):
        return Violation(
            code="AS103",
            message=f"{event.short_name} mixes tokens outside attention: token {index} affects "
            f"{divergence.indices_text}",
            at=divergence.ref,
            hint="apply the weights to the last axis, the features of a token",
            evidence=evidence,
        )
    return None


def _scrambled(subject: Subject, divergence: Divergence, symbol: str, index: int, evidence: str) -> Violation:
    shape = tuple(divergence.event.values[divergence.ref.output].shape)
    summary = divergence.summary
    where = f"axis {divergence.axis} has the size of {symbol}, but token {index} ends up at {divergence.indices_text}"
    repeat = _repeat(subject, divergence)
    if repeat is not None:
        return Violation(
            code="AS602",
            message=f"key and value heads are repeated along the wrong axis: {where}",
            at=repeat,
            hint="repeat the head axis: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)",
            evidence=evidence,
        )
    if summary is not None and summary.name in SPLITS:
        return wrong_cut(summary.refs[0], symbol, divergence, f"token {index}", evidence)
    if splits_fused_projection(subject, divergence):
        return wrong_cut(divergence.ref, symbol, divergence, f"token {index}", evidence)
    if subject.head_sizes & set(shape):
        return Violation(
            code="AS111",
            message=f"heads are split without a transpose: {where}",
            at=divergence.ref,
            hint=".view(B, L, H, Dk).transpose(1, 2)",
            evidence=evidence,
        )
    return Violation(
        code="AS105",
        message=f"a layout operation scrambles tokens: {where}",
        at=divergence.ref,
        hint="transpose first; reshape may only split an axis or merge adjacent ones",
        evidence=evidence,
    )


def wrong_cut(at: OutputRef, symbol: str, divergence: Divergence, changed: str, evidence: str) -> Violation:
    """Return the violation for a fused projection that is cut along another axis than its last one."""
    return Violation(
        code="AS113",
        message=f"the fused projection is cut along the wrong axis: axis {divergence.axis} has the size of {symbol}, "
        f"but {changed} ends up at {divergence.indices_text}",
        at=at,
        hint="cut the last axis: query, key, value = qkv.chunk(3, dim=-1)",
        evidence=evidence,
    )


def _repeat(subject: Subject, divergence: Divergence) -> OutputRef | None:
    """Return the call that repeats the scrambled tensor, if heads are grouped and only layout operations follow it."""
    if subject.numbers.get("Hkv", 0) < 2 and "G" not in subject.numbers:
        return None
    for event in (divergence.event, *subject.graph.upstream(divergence.event.sources[0])):
        if event.name not in DATA_MOVEMENT:
            return None
        if event.values[0].numel() > event.given[0].numel():
            return event.refs[0]
    return None


def _normalises(subject: Subject, divergence: Divergence) -> bool:
    """Return whether a call is part of a normalisation by a statistic over the tokens."""
    event = divergence.event
    if event.name in DIVISIONS | REVERSED_DIVISIONS:
        return divergence.summary is not None
    if divergence.summary is None:
        return False
    if event.name in MULTIPLICATIONS:
        behind = subject.graph.behind(divergence.summary.refs[0])
        return any(
            one.name in _INVERSE and one.refs[0] in behind
            for every in event.sources
            for one in subject.graph.upstream(every)
        )
    if event.name in SUBTRACTIONS:
        behind = subject.graph.behind(divergence.ref)
        return any(
            one.name in DIVISIONS | REVERSED_DIVISIONS
            and len(one.given) == 2
            and one.sources[0][0] in behind
            and one.given[1].shape == divergence.summary.values[0].shape
            for one in subject.base.events[event.order : event.order + _NEAR]
        )
    return False


def _is_wide_convolution(divergence: Divergence) -> bool:
    """Return whether a convolution takes tokens for channels, so that it affects more positions than its kernel has."""
    event = divergence.event
    return event.name in CONVOLUTIONS and len(event.given) > 1 and len(divergence.indices) > event.given[1].shape[-1]


def _before_attention(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether scores over tokens depend on a call."""
    behind = subject.graph.behind(OutputRef(event.order))
    for core in subject.cores:
        parts = {OutputRef(core.scores.first.order), OutputRef(core.value.first.order)}
        if parts & behind and any(_is_length(subject, core.weights.shape[axis]) for axis in core.key_axes):
            return True
    return any(core.context in behind for core in subject.fused)


def _is_length(subject: Subject, size: int) -> bool:
    return any(size == subject.numbers[symbol] for symbol in subject.lengths) or size not in subject.numbers.values()


def _with_parameters(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether one operand of a product depends on no input."""
    made = product(event, subject.graph)
    return made is not None and not all(
        subject.graph.carries_data(made.sources(place)) for place in (made.left, made.right)
    )
