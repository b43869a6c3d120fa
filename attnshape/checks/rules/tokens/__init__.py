"""Do tokens keep their positions until attention mixes them, and are they normalised along the right axis?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from attnshape.checks.attention.cores import between, product
from attnshape.checks.attention.operands import AttentionOperand, OperandRole, operands
from attnshape.checks.attention.perturbation import (
    Divergence,
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    is_at_one_index,
    others_at,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens.feature_maps import (
    ScrambledMap,
    ScrambledTokens,
    scrambled_maps,
    scrambled_tokens,
)
from attnshape.checks.rules.tokens.frequencies import check_frequencies
from attnshape.checks.rules.tokens.other_axis import crossed_norms
from attnshape.checks.rules.tokens.separate_sums import check_separate_sums
from attnshape.checks.rules.tokens.unit_vectors import joint_norms, misplaced_norms
from attnshape.model.formatting import join_words
from attnshape.tracing import operations as ops

CODES: tuple[str, ...] = ("AS103", "AS104", "AS105", "AS109", "AS111", "AS113", "AS119", "AS126", "AS602")
TOPIC = "tokens before attention"
_DIVISIONS = ops.DIVISIONS | ops.REVERSED_DIVISIONS
_INVERSE = _DIVISIONS | {"rsqrt", "reciprocal", "pow"}
_PLURALS: dict[OperandRole, str] = {"query": "queries", "key": "keys", "value": "values"}
_NEAR = 4
"""The most calls between subtracting the mean and dividing by the standard deviation."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for tokens that are mixed or scrambled before attention, then for norms along the wrong axis."""
    yield from check_frequencies(subject)
    yield from check_separate_sums(subject)
    outcomes = list(_followed(subject))
    yield from outcomes
    if not any(isinstance(outcome, Violation) for outcome in outcomes):
        misplaced = list(_misplaced_norms(subject))
        yield from misplaced or _joint_norms(subject)
        yield from _crossed_norms(subject)


def _followed(subject: Subject) -> Iterator[Outcome]:
    """Change one token of the inputs, and find the first call after which other positions change."""
    by_layout = (*map(_scrambled_map, scrambled_maps(subject)), *map(_scrambled_tokens, scrambled_tokens(subject)))
    violation = next(itertools.chain(_viewed_channels(subject), by_layout), None)
    if violation is not None:
        yield violation
        return
    comparable, mixing = False, None
    kept: set[OperandRole] = set()
    lost: set[OperandRole] = set()
    scores = [product for core in subject.cores for product in (core.scores, *core.more_scores, *core.positional)]
    mixed_by = [*(product.ref for product in scores), *(core.context for core in subject.fused)]
    downstream = {ref for start in mixed_by for ref in subject.graph.downstream_of(start)}
    for symbol in subject.lengths:
        index = subject.numbers[symbol] // 2
        change = subject.at_index(symbol, index)
        if not change:
            continue
        twin = _twin(subject, symbol, change)
        if twin is not None:
            yield Undecided(TOPIC, f"{symbol} and {twin} are equal at these sizes, so their axes can't be told apart")
            return
        moved = subject.perturb(Intervention(inputs=change))
        if not moved.comparable:
            yield Undecided(TOPIC, f"with different values in token {index}, the code takes a different path")
            continue
        comparable = True
        for operand, is_alone in _reached_operands(subject, moved, symbol, index, downstream):
            (kept if is_alone else lost).add(operand.role)
        for divergence in divergences(moved, symbol, index, subject.numbers, change):
            if divergence.ref in downstream:
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
    elif comparable and subject.attentions and not kept - lost:
        yield Undecided(TOPIC, "no axis of the queries and keys holds the tokens of the inputs")
    elif comparable and lost:
        followed = [_PLURALS[role] for role in _PLURALS if role in kept - lost]
        yield Verification(f"tokens keep their positions up to the {join_words(followed)}")
    elif comparable and subject.attentions:
        yield Verification("tokens keep their positions up to the scores")
    elif comparable:
        # where tokens may be mixed isn't known
        yield Verification("no layout operation scrambles tokens")
    else:
        yield Undecided(TOPIC, "no input has a token axis")


def _misplaced_norms(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for each line that normalises queries or keys along another axis than their product sums."""
    seen: set[OutputRef] = set()
    for found in misplaced_norms(subject):
        if found.at in seen:
            continue
        seen.add(found.at)
        shape = found.operand.value.shape
        along, summed = (symbol_or_number(shape[axis], subject.numbers) for axis in (found.axis, found.summed))
        which = _PLURALS[found.operand.role]
        length = f"the {which} have one length along axis {found.axis} ({along})"
        message = f"{length}, but their product sums over axis {found.summed} ({summed}): the scores are no cosines"
        hint = "normalise along the axis over which the product of queries and keys sums"
        evidence = f"lengths of the {which} along both axes, as the product reads them"
        yield Violation("AS109", message, found.at, hint, evidence, shown="measured")


def _joint_norms(subject: Subject) -> Iterator[Violation]:
    """Yield a notice for each line that divides queries or keys by their length over all heads together."""
    seen: set[OutputRef] = set()
    for found in joint_norms(subject):
        if found.at in seen:
            continue
        seen.add(found.at)
        which = _PLURALS[found.operand.role]
        message = f"the {which} have one length over all heads together, and another one in each head: the scores of a "
        message += "head are no cosines"
        hint = "split into heads first, then normalise, or if it is meant, put # attnshape: ignore[AS109] on the line"
        evidence = f"lengths of the {which} in each head and over all heads, as the product reads them"
        yield Violation("AS109", message, found.at, hint, evidence, shown="measured", level="notice")


def _crossed_norms(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for each line that broadcasts what is computed from keys along the queries, or the reverse."""
    seen: set[OutputRef] = set()
    for found in crossed_norms(subject):
        if found.at in seen:
            continue
        seen.add(found.at)
        of_keys = found.operand.role == "key"
        own, other, others = ("key", "query", "queries") if of_keys else ("query", "key", "keys")
        message = f"{own} {found.index} changes all scores of {other} {found.index}: what is computed from each {own}, "
        message += f"such as its length, is broadcast along the axis of the {others}"
        hint = (
            "give it the axis of its own: q.norm(dim=-1, keepdim=True) @ k.norm(dim=-1, keepdim=True).transpose(-2, -1)"
        )
        evidence = f"changed {own} {found.index}, and compared the scores with those of other places"
        yield Violation("AS109", message, found.at, hint, evidence)


def _twin(subject: Subject, symbol: str, names: Iterable[str]) -> str | None:
    """Return another symbol of the same size, if an input has two axes of this size, one of which the user named so."""
    number = subject.numbers[symbol]
    twice = (list(subject.inputs[name].shape).count(number) > 1 for name in names)
    if symbol not in subject.experiment.numbers or not any(twice):
        return None
    return next((other for other, size in subject.numbers.items() if size == number and other != symbol), None)


def _viewed_channels(subject: Subject) -> Iterator[Violation]:
    """Yield a violation if a view makes the last axis of what has the channels elsewhere, without moving them there."""
    others = {subject.batch, *subject.lengths}
    symbols = subject.distinct_symbols
    for name, value in subject.inputs.items():
        for axis, size in enumerate(value.shape[1:-1], 1):
            symbol = symbols.get(size)
            if value.ndim < 4 or symbol is None or symbol in others:
                continue
            index = size // 2
            moved = subject.perturb(Intervention(inputs={name: others_at(axis, index)}))
            first = next(divergences(moved, symbol, index, subject.numbers, [name]), None) if moved.comparable else None
            if first is None or first.event.name not in ops.RESHAPES or not len(first.indices) > 1:
                continue
            read = first.event.sources[0][0]
            if isinstance(read, OutputRef) and int(moved.mask(read).sum()) * size > moved.mask(read).numel():
                continue  # attention changed all features of a head, which are then merged
            shape = first.event.values[first.ref.output].shape
            if shape[-1] == size and first.axis == len(shape) - 1:
                where_to = f"axis {first.axis} has the size of {symbol}, but channel {index} ends up at"
                message = f"a layout operation scrambles pixels and channels: {where_to} {first.indices_text}"
                hint = "move the channels last first: x.flatten(2).transpose(1, 2)"
                yield Violation("AS105", message, first.ref, hint, f"changed channel {index} of {name}")


def _reached_operands(
    subject: Subject, moved: PerturbationDiff, symbol: str, index: int, downstream: set[OutputRef]
) -> Iterator[tuple[AttentionOperand, bool]]:
    """Yield the queries, keys and values that a change of a token reaches before any attention mixes tokens.

    Each comes with whether the token is alone at its index there.
    """
    tolerance = subject.experiment.tolerance
    for operand in operands(subject):
        mask = differs(operand.value, operand.of(moved.changed), tolerance)
        if downstream.isdisjoint(operand.sources) and bool(mask.any()):
            yield operand, is_at_one_index(mask, symbol, index, subject.numbers)[0] is True


def _scrambled_map(found: ScrambledMap) -> Violation:
    tokens = ", ".join(map(str, found.tokens[:6])) + (", …" if len(found.tokens) > 6 else "")
    read = f"{found.reader.short_name} reads pixels whose channels come from tokens {tokens}"
    hint = "move the features first, then split the tokens: x.transpose(1, 2).reshape(B, D, height, width)"
    evidence = "replaced the tokens by their numbers, and followed these through the layout operations"
    return Violation("AS105", f"a layout operation scrambles tokens: {read}", found.at, hint, evidence)


def _scrambled_tokens(found: ScrambledTokens) -> Violation:
    pixels = ", ".join(map(str, found.pixels[:6])) + (", …" if len(found.pixels) > 6 else "")
    read = f"{found.reader.short_name} reads tokens whose features come from pixels {pixels}"
    hint = "move the channels last first: x.flatten(2).transpose(1, 2)"
    evidence = "replaced the map by numbers that say where they are, and followed these through the layout operations"
    return Violation("AS105", f"a layout operation scrambles pixels and channels: {read}", found.at, hint, evidence)


def _violation(subject: Subject, divergence: Divergence, symbol: str, index: int, name: str) -> Violation | None:
    def change(index: int) -> Intervention:
        return Intervention(inputs=subject.at_index(symbol, index))

    evidence = f"changed token {index} of {name}"
    if divergence.event.name in ops.DATA_MOVEMENT:
        wrong = scrambles(subject, divergence, symbol, index, change)
        return _scrambled(subject, divergence, symbol, index, evidence) if wrong else None
    return mixed(subject, divergence, index, evidence) if _before_attention(subject, divergence.event) else None


def mixed(subject: Subject, divergence: Divergence, index: int, evidence: str) -> Violation | None:
    """Return the violation if a call other than attention mixes tokens and shouldn't."""
    event, which = divergence.event, divergence.summary or divergence.event
    if (event.name in ops.NORMS or _normalises(subject, divergence)) and not (
        _is_of_series(subject, which) or _is_given_back(subject, which) or _is_of_a_whole_sample(subject, which)
    ):
        message = f"{which.short_name} runs over the tokens: token {index} changes all others"
        hint = "normalise each token by itself, over the last axis"
        return Violation("AS104", message, which.refs[0], hint, evidence)
    is_product = event.name in ops.PRODUCTS and with_parameters(subject, event) and not _chooses(subject, event)
    if is_product or _is_wide_convolution(divergence):
        affects = f"token {index} affects {divergence.indices_text}"
        message = f"{event.short_name} mixes tokens outside attention: {affects}"
        hint = "apply the weights to the last axis, the features of a token"
        return Violation("AS103", message, divergence.ref, hint, evidence)
    return None


def _is_of_series(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call reads an input whose last axis holds the tokens, numbers without features of their own.

    Series are standardised over time (Kim et al. 2022, https://openreview.net/forum?id=cGDAkQo1C0p).
    """
    given = [subject.inputs[name] for name in subject.inputs.keys() & event.producers]
    return any(value.shape[-1] in {subject.numbers[symbol] for symbol in subject.lengths} for value in given)


def _is_of_a_whole_sample(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a norm reads each sample as one vector, in which the code has put all of its tokens."""
    shape = event.values[0].shape
    lengths = (subject.numbers[symbol] for symbol in subject.lengths)
    is_flat = len(shape) == 2 and shape[0] == subject.batch_size
    return is_flat and any(shape[1] > length > 1 and shape[1] % length == 0 for length in lengths)


def _chooses(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a product is with a constant that has at most one 1 in each row or column: it only puts tokens."""
    constants = (
        value
        for value, sources in zip(event.operand_values, event.sources, strict=True)
        if value.ndim > 1
        and value.any()
        and not subject.graph.carries_data(sources)
        and subject.base.state.keys().isdisjoint(sources)
    )
    return any(
        bool(((value == 0) | (value == 1)).all()) and any(bool((value.sum(axis) <= 1).all()) for axis in (0, -1))
        for value in constants
    )


def _is_given_back(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether what follows from a statistic over tokens alone is put together with what attention makes.

    Series are standardised over time, and what is forecast gets their mean and deviation back (Kim et al. 2022).
    """
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    after = subject.graph.downstream([core.context for core in subject.attentions])
    of_statistic = subject.graph.downstream_of(event.refs[0]) - after
    return any(
        not after.isdisjoint(call.producers)
        and any(
            not of_statistic.isdisjoint(sources) and after.isdisjoint(sources) and lengths.isdisjoint(value.shape)
            for sources, value in zip(call.sources, call.operand_values, strict=True)
        )
        for call in subject.base.events
        if not after.isdisjoint(call.refs)
    )


def _scrambled(subject: Subject, divergence: Divergence, symbol: str, index: int, evidence: str) -> Violation:
    at, summary = divergence.ref, divergence.summary
    repeat = _repeat(subject, divergence)
    if repeat is not None:
        at, code, what = repeat, "AS602", "key and value heads are repeated along the wrong axis"
        hint = "repeat the head axis: k.repeat_interleave(G, dim=1) for (B, Hkv, L, Dk)"
    elif summary is not None and summary.name in ops.SPLITS:
        return wrong_cut(summary.refs[0], symbol, divergence, f"token {index}", evidence)
    elif splits_fused_projection(subject, divergence):
        return wrong_cut(at, symbol, divergence, f"token {index}", evidence)
    elif subject.head_sizes & set(divergence.event.values[at.output].shape):
        code, what = "AS111", "heads are split without a transpose"
        hint = ".view(B, L, H, Dk).transpose(1, 2)"
    else:
        code, what = "AS105", "a layout operation scrambles tokens"
        hint = "transpose first; reshape may only split an axis or merge adjacent ones"
    return Violation(code, f"{what}: {where(divergence, symbol, f'token {index}')}", at, hint, evidence)


def wrong_cut(at: OutputRef, symbol: str, divergence: Divergence, changed: str, evidence: str) -> Violation:
    """Return the violation for a fused projection that is cut along another axis than its last one."""
    message = f"the fused projection is cut along the wrong axis: {where(divergence, symbol, changed)}"
    return Violation("AS113", message, at, "cut the last axis: query, key, value = qkv.chunk(3, dim=-1)", evidence)


def where(divergence: Divergence, symbol: str, changed: str) -> str:
    """Return a clause that says at which indices of the symbol's axis a change ends up."""
    return f"axis {divergence.axis} has the size of {symbol}, but {changed} ends up at {divergence.indices_text}"


def splits_fused_projection(subject: Subject, divergence: Divergence) -> bool:
    """Return whether a layout operation splits a projection that holds queries, keys and values, or keys and values."""
    event = divergence.event
    shape = event.values[divergence.ref.output].shape
    width = subject.numbers.get("H", 0) * subject.numbers.get("Dk", 0) or subject.numbers.get("D", 0)
    last = event.operand_values[0].shape[-1] if event.operand_values and event.operand_values[0].ndim else 0
    return width > 0 and any(last == parts * width and (parts in shape or event.name in ops.SPLITS) for parts in (2, 3))


def scrambles(
    subject: Subject, divergence: Divergence, symbol: str, index: int, change: Callable[[int], Intervention]
) -> bool:
    """Return whether a call moves one token to several places, or two tokens to one place.

    A token that is alone at another place was moved as a whole, as by a shift.
    """
    event, summary = divergence.event, divergence.summary
    # a tensor decides what is selected, as when keys are sampled, or tokens are sorted or sent to experts
    chosen = event.name in ops.SELECTIONS and len(event.operand_values) > 1
    if event.name in ops.JOINS or chosen:
        return False
    if summary is not None:
        path = [call for start in summary.refs for call in between(subject.graph, start, tuple(event.producers))]
        if any(call.name not in ops.DATA_MOVEMENT for call in (summary, *path)):
            return False
    if len(divergence.indices) > 1:
        return True
    size = event.values[divergence.ref.output].shape[divergence.axis]
    for beside in (index - 1, index + 1):
        if 0 <= beside < min(size, subject.numbers[symbol]):
            diff = subject.perturb(change(beside))
            changed = changed_indices(diff.mask(divergence.ref), divergence.axis) if diff.comparable else set()
            if not changed.isdisjoint(divergence.indices):
                return True
    return False


def _repeat(subject: Subject, divergence: Divergence) -> OutputRef | None:
    """Return the call that repeats the scrambled tensor, if heads are grouped and only layout operations follow it."""
    if subject.numbers.get("Hkv", 0) < 2 and "G" not in subject.numbers:
        return None
    for event in (divergence.event, *subject.graph.upstream(divergence.event.sources[0])):
        if event.name not in ops.DATA_MOVEMENT:
            return None
        if event.values[0].numel() > event.operand_values[0].numel():
            return event.refs[0]
    return None


def _normalises(subject: Subject, divergence: Divergence) -> bool:
    """Return whether a call is part of a normalisation by a statistic over the tokens."""
    event, summary = divergence.event, divergence.summary
    if summary is None or event.name in _DIVISIONS:
        return summary is not None
    if event.name in ops.MULTIPLICATIONS:
        downstream = subject.graph.downstream_of(summary.refs[0])
        earlier = subject.graph.upstream(tuple(event.producers))
        return any(before.name in _INVERSE and before.refs[0] in downstream for before in earlier)
    if event.name in ops.SUBTRACTIONS:
        downstream = subject.graph.downstream_of(divergence.ref)
        return any(
            later.name in _DIVISIONS
            and len(later.operand_values) == 2
            and later.sources[0][0] in downstream
            and later.operand_values[1].shape == summary.values[0].shape
            for later in subject.base.events[event.order : event.order + _NEAR]
        )
    return False


def _is_wide_convolution(divergence: Divergence) -> bool:
    """Return whether a convolution takes tokens for channels: then its kernel doesn't reach all that it affects."""
    event = divergence.event
    return (
        event.name in ops.CONVOLUTIONS
        and len(event.operand_values) > 1
        and len(divergence.indices) > event.operand_values[1].shape[-1] * divergence.given
    )


def _before_attention(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether scores over tokens depend on a call."""
    downstream = subject.graph.downstream_of(OutputRef(event.order))
    others = set(subject.numbers.values()) - {subject.numbers[symbol] for symbol in subject.lengths}
    for core in subject.cores:
        parts = {OutputRef(core.scores.first.order), OutputRef(core.value.first.order)}
        if parts & downstream and any(core.weights.shape[axis] not in others for axis in core.key_axes):
            return True
    return any(core.context in downstream and core.tensor("key").shape[-2] not in others for core in subject.fused)


def with_parameters(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether one operand of a product depends on no input."""
    matmul = product(event, subject.graph)
    return matmul is not None and not all(subject.graph.carries_data(matmul.sources(place)) for place in matmul.places)
