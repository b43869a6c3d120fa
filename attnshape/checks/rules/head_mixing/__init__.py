"""Do heads stay apart from their split to their merge?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.operands import by_attention
from attnshape.checks.attention.perturbation import (
    Divergence,
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    others_at,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.head_mixing.arguments import scattered_argument
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens import with_parameters
from attnshape.checks.rules.tokens.unit_vectors import have_one_length
from attnshape.tracing.operations import CONVOLUTIONS, DATA_MOVEMENT, GATHERS, JOINS, PRODUCTS, RUNNING, SCALINGS, SUMS

CODES: tuple[str, ...] = ("AS111", "AS603")
TOPIC = "mixing of heads"
_ADDS_UP = SUMS | {"mean"}
_KEEPS_PAIRS = DATA_MOVEMENT | SCALINGS | _ADDS_UP
"""Operations between the products of pairs of heads and their sum."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for mixed-up arguments, and attention over heads; then change one head where heads are split."""
    heads = subject.numbers.get("H", 0)
    scattered = scattered_argument(subject) if heads > 1 else None
    if scattered is not None:
        yield scattered
        return
    if heads < 2 or not subject.is_distinct("H"):
        return
    # the tokens are on an axis of their own, which may be as long as no symbol says, such as that of a class token too
    no_lengths = {size for symbol, size in subject.numbers.items() if symbol not in subject.lengths}
    over_heads = [
        core
        for core in subject.attentions
        if core.token_sizes == ({heads}, {heads}) and core.shared_sizes - no_lengths - {1}
    ]
    if over_heads:
        yield _over_heads(subject, over_heads[0], _splits(subject, heads))
        return
    head = (heads + 1) // 2  # not the middle one of an odd number, which stays in place where heads are reversed
    splits = _splits(subject, heads)
    change = _change(subject, splits, head)
    if not change.inputs and not change.results:
        return
    changed = subject.perturb(change)
    if not changed.comparable:
        yield Undecided(TOPIC, f"with different values in head {head}, the code takes a different path")
        return
    yield from _judge(subject, changed, splits, change, head)


def _judge(
    subject: Subject, changed: PerturbationDiff, splits: Mapping[OutputRef, int], change: Intervention, head: int
) -> Iterator[Outcome]:
    """Follow a head that is changed, from call to call, to where heads are merged."""
    heads, mixes = subject.numbers["H"], False
    pairs: list[OutputRef] = []
    """Results that have a number for each pair of heads."""
    for divergence in divergences(changed, "H", head, subject.numbers, (*change.inputs, *change.results)):
        shape = list(divergence.event.values[divergence.ref.output].shape)
        if shape[divergence.axis] == heads and shape.count(heads) > 1:
            pairs.append(divergence.ref)
        if shape[divergence.axis] != heads or shape.count(heads) > 1:
            continue  # heads are merged already, or a length that depends on the values happens to be as large
        mixes = True
        violation = _violation(subject, divergence, head)
        if violation is not None:
            yield violation
            return
        if divergence.event.name in CONVOLUTIONS or with_parameters(subject, divergence.event):
            yield Observation(f"{divergence.event.short_name} mixes heads", divergence.ref)
    unpaired = _unpaired(subject, changed, head, heads) or _summed(subject, changed, pairs, head, heads)
    if unpaired is not None:
        yield unpaired
    elif not mixes and not (pairs and _mixes_contexts(subject, changed, heads)):
        yield from _added_up(subject, changed, splits, head)


def _added_up(
    subject: Subject, changed: PerturbationDiff, splits: Mapping[OutputRef, int], head: int
) -> Iterator[Outcome]:
    """Yield whether each head keeps a context of its own, or weights or queries of several heads are added up."""
    heads = subject.numbers["H"]
    merging = [
        core
        for core in subject.attentions
        if not _keeps_heads(subject, core, changed, heads) and not _weighs_heads(subject, core)
    ]
    averaging = [core for core in merging if _averages_weights(subject, core, heads)]
    for core in averaging:
        yield Observation("the weights of all heads are added up: they share their values", attention=core.context)
    merging = [core for core in merging if core not in averaging]
    if not merging and not averaging:
        yield Verification("heads don't affect each other between their split and their merge")
    for other in (head + 1, head + subject.numbers.get("Hkv", 1)) if merging else ():
        also_changed = subject.perturb(_change(subject, splits, other % heads))
        for core in merging if also_changed.comparable else ():
            if bool((changed.mask(core.context) & also_changed.mask(core.context)).any()):
                ref = core.scores.ref if isinstance(core, Core) else core.context
                message = f"query heads {head} and {other % heads} are added up: they make one context"
                hint = "keep an axis for the query heads that share a key head: (B, Hkv, G, Lq, Dk)"
                yield Violation("AS603", message, ref, hint, "changed each of the two heads where heads are split")
                return


def _unpaired(subject: Subject, changed: PerturbationDiff, head: int, heads: int) -> Violation | None:
    """Return the violation if layout operations bring a head of queries together with another one of keys or values."""
    for operands in by_attention(subject):
        at: list[int] = []
        for operand in operands:
            shape = list(operand.value.shape)
            mask = differs(operand.value, operand.of(changed.changed), subject.experiment.tolerance)
            indices = changed_indices(mask, shape.index(heads)) if shape.count(heads) == 1 else set()
            at += indices if len(indices) == 1 else []
        query, *others = at if len(at) == len(operands) else [0, 0]
        wrong = next((place for place, index in enumerate(others, 1) if index != query), None)
        if wrong is None:
            continue
        operand = operands[wrong]
        message = (
            f"head {head} of the queries is at index {query}, and head {head} of the {operand.role}s at {at[wrong]}"
        )
        moved = [ref for ref in operand.sources if isinstance(ref, OutputRef)]
        hint = "move the heads of queries, keys and values alike, or not at all"
        return Violation(
            "AS603",
            message,
            max(moved, default=operand.core.context),
            hint,
            f"changed head {head} where heads are split",
        )
    return None


def _summed(
    subject: Subject, changed: PerturbationDiff, pairs: Iterable[OutputRef], head: int, heads: int
) -> Violation | None:
    """Return the violation if products of each head with every head are summed before anything weighs them."""
    paired: set[Producer] = set(pairs)
    for event in subject.base.events if paired else ():
        if event.refs[0] in paired or not event.producers & paired or event.name not in _KEEPS_PAIRS:
            continue
        shape = list(event.values[0].shape)
        if shape.count(heads) != 1:
            paired.update(event.refs)
        elif event.name in _ADDS_UP and len(changed_indices(changed.mask(event.refs[0]), shape.index(heads))) > 1:
            message = f"head {head} changes other heads: {event.short_name} adds up the heads"
            hint = "multiply each head of the queries with the same head of the keys"
            return Violation("AS603", message, event.refs[0], hint, f"changed head {head} where heads are split")
    return None


def _mixes_contexts(subject: Subject, changed: PerturbationDiff, heads: int) -> bool:
    """Return whether a change of one head reaches the contexts of several."""
    masks = [changed.mask(core.context) for core in subject.attentions]
    axes = [(mask, list(mask.shape).index(heads)) for mask in masks if list(mask.shape).count(heads) == 1]
    return any(len(changed_indices(mask, axis)) > 1 for mask, axis in axes)


def _change(subject: Subject, splits: Mapping[OutputRef, int], head: int) -> Intervention:
    """Return the intervention on one head in the inputs, and where heads are split."""
    results: dict[OutputRef, Replace] = {ref: others_at(axis, head) for ref, axis in splits.items()}
    return Intervention(inputs=subject.at_index("H", head), results=results)


def _splits(subject: Subject, heads: int) -> dict[OutputRef, int]:
    """Return the first results on each path that have an axis of heads, with that axis."""
    splits: dict[OutputRef, int] = {}
    after: set[Producer] = set(subject.at_index("H", 0))
    for event in subject.base.events:
        if event.producers & after:
            after.update(event.refs)
            continue
        if event.name not in DATA_MOVEMENT or event.refs[0] not in subject.graph.depends_on_data:
            continue
        for ref, value in zip(event.refs, event.values, strict=True):
            axes = [axis for axis, size in enumerate(value.shape) if size == heads]
            if len(axes) != 1 or not value.is_floating_point() or heads in event.operand_values[0].shape:
                continue
            if not _is_lengthened(event, axes[0]):
                splits[ref] = axes[0]
                after.add(ref)
    return splits


def _is_lengthened(event: ReplayedCall, axis: int) -> bool:
    """Return whether a call joins parts of several lengths along an axis, as cached keys and new ones."""
    return event.name in JOINS and len({value.shape[axis : axis + 1] for value in event.operand_values}) > 1


def _keeps_heads(subject: Subject, core: Core | FusedCore, changed: PerturbationDiff, heads: int) -> bool:
    """Return whether a context has an axis of heads, alone or folded with others, or wasn't reached by the change."""
    return not changed.any(core.context) or any(size % heads == 0 for size in subject.base.value(core.context).shape)


def _weighs_heads(subject: Subject, core: Core | FusedCore) -> bool:
    """Return whether the values are what other heads returned, as where a softmax weighs the heads of a token."""
    others = [other.context for other in subject.attentions if other is not core]
    source = core.value.sources(core.values_place)[0] if isinstance(core, Core) else None
    while isinstance(source, OutputRef) and source not in others:
        event = subject.base.event(source)
        source = event.sources[0][0] if event.name in DATA_MOVEMENT | GATHERS and event.sources else None
    return source in others


def _averages_weights(subject: Subject, core: Core | FusedCore, heads: int) -> bool:
    """Return whether each head has weights of its own, but no values of its own.

    So it is in temporal fusion transformers (Lim et al. 2019, https://arxiv.org/abs/1912.09363), equation 14.
    """
    if isinstance(core, FusedCore):
        return False
    value = next(value.value for _, _, value in by_attention(subject) if value.core is core)
    weights = subject.base.value(core.softmax.ref)
    return any(size % heads == 0 for size in weights.shape) and not any(size % heads == 0 for size in value.shape)


def _over_heads(subject: Subject, core: Core | FusedCore, splits: Iterable[OutputRef]) -> Violation:
    ref = core.context if isinstance(core, FusedCore) else core.scores.ref
    ref = max((split for split in splits if ref in subject.graph.downstream_of(split)), default=ref)
    message = "attention runs over the heads of each token instead of the tokens: heads are split without a transpose"
    hint = ".view(B, L, H, Dk).transpose(1, 2)"
    return Violation("AS111", message, ref, hint, "found queries and keys along the axis of heads", "measured")


def _violation(subject: Subject, divergence: Divergence, head: int) -> Violation | None:
    """Return the violation if a call that should treat each head by itself reaches over heads."""
    event, summary = divergence.event, divergence.summary
    evidence = f"changed head {head} where heads are split"
    message = f"head {head} changes other heads: "
    hint = "let each head be computed by itself"
    if event.name in RUNNING:
        return Violation("AS603", f"{message}{event.short_name} runs over the heads", divergence.ref, hint, evidence)
    if event.name in PRODUCTS and summary is None and not with_parameters(subject, event):
        return Violation("AS603", f"{message}{event.short_name} sums over the heads", divergence.ref, hint, evidence)
    if event.name in DATA_MOVEMENT and summary is not None and summary.name in SUMS:
        at = summary.refs[0]
        return Violation("AS603", f"{message}{summary.short_name} adds up the heads", at, hint, evidence)
    if event.name in SCALINGS and summary is not None and _has_unit_heads(divergence):
        hint = "normalise each head by itself, over its features: F.normalize(x, dim=-1)"
        what = "gives the same feature of all heads one length together"
        return Violation("AS603", f"{message}{event.short_name} {what}", divergence.ref, hint, evidence)
    return None


def _has_unit_heads(divergence: Divergence) -> bool:
    """Return whether the numbers of all heads at one feature have one length, and the features of a head haven't."""
    value, axis = divergence.event.values[divergence.ref.output].double(), divergence.axis
    features = value.ndim - 1
    if axis == features or value.shape[features] < 2:
        return False
    return have_one_length(value, axis, features) and not have_one_length(value, features, axis)
