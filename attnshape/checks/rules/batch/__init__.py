"""Do batch elements affect each other? In attention every sequence of a batch is on its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, product, reaches_by_data_movement
from attnshape.checks.attention.perturbation import (
    Divergence,
    PerturbationDiff,
    changed_indices,
    differs,
    divergences,
    is_at_one_index,
)
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.batch.arguments import (
    BatchArguments,
    describe,
    is_explained_as_mask,
    looks_up,
)
from attnshape.checks.rules.batch.places import place_dependence
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.tokens import splits_fused_projection, where, wrong_cut
from attnshape.tracing.operations import DATA_MOVEMENT, GATHERS, SELECTIONS

CODES: tuple[str, ...] = ("AS101", "AS102", "AS105", "AS113", "AS114", "AS116", "AS117", "AS118")
TOPIC = "batch elements"
_INDEPENDENT = "batch elements don't affect each other"
_OF_PAIRS = "a result for two batch elements depends on these two alone"
_ONE_ORDER = "fold and unfold in the same order: (B, H, …) to (B*H, …) and back"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change one batch element of every input, then all others, and look at which elements of the results change.

    Then reorder the batch of all arguments, masks and integers included: the results must be reordered too.
    """
    claims = ("seq-first",) if subject.claims.seq_first else ()
    yield from (replace(outcome, claims=claims) for outcome in _outcomes(subject))


def verifies_independence(outcomes: Iterable[Outcome]) -> bool:
    """Return whether these outcomes say that batch elements don't affect each other."""
    return any(isinstance(one, Verification) and one.text.startswith(_INDEPENDENT) for one in outcomes)


def _outcomes(subject: Subject) -> Iterator[Outcome]:
    symbol = subject.batch
    if symbol is None or subject.numbers[symbol] < 2:
        yield Undecided(TOPIC, "no axis of the inputs is the batch")
        return
    index = subject.numbers[symbol] // 2
    change = subject.at_index(symbol, index)
    if not change:
        yield Undecided(TOPIC, f"no input has an axis {symbol}")
        return
    diff = subject.perturb(Intervention(inputs=change))
    if not diff.comparable:
        yield Undecided(TOPIC, "with different values in one batch element, the code takes a different path")
        return
    alone = _changes_alone(subject, diff, symbol, index)
    if False not in alone:
        affecting = _affecting(subject, symbol, index)
        if affecting is None:
            over_batch = [core for core in subject.attentions if _runs_over_batch(subject, core, symbol)]
            pairs = [mask for _, mask in diff.returned() if _is_of_pairs(subject, mask, symbol, index)]
            if pairs:
                yield Observation(f"{_OF_PAIRS} (varied: {', '.join(change)})")
            if True in alone:
                yield from _of_arguments(subject, symbol, list(change))
            elif over_batch:
                evidence = "found queries and keys along the axis of the batch"
                yield _over_batch(subject, over_batch[0].context, symbol, evidence)
            elif not pairs:
                yield Undecided(TOPIC, f"no result has an axis {symbol}")
            return
        index, change, diff = affecting
    first, is_meant = _first_divergence(subject, diff, symbol, index, change)
    if is_meant:
        yield Observation(f"batch elements meet only in results for pairs of them (varied: {', '.join(change)})")
        return
    if first is None:
        yield Undecided(TOPIC, "batch elements affect each other, but the call that mixes them was not identified")
        return
    softmax = next((core.softmax for core in subject.cores if core.softmax.event is first.event), None)
    if softmax is not None and _tokens_of_batch(subject, symbol).isdisjoint(first.event.values[0].shape):
        return  # a softmax over the batch is one over the wrong axis
    if looks_up(subject, first, symbol):
        yield from _of_arguments(subject, symbol, [])
        return
    yield _violation(subject, diff, first, symbol, index, next(iter(change)))


def _of_arguments(subject: Subject, symbol: str, data: list[str]) -> Iterator[Outcome]:
    """Judge how the batch elements of masks, lengths, tables and other arguments that aren't data are used.

    `data` are the inputs of which an element is known to affect no other.
    """
    arguments = BatchArguments(subject, symbol)
    crossing = None
    holds = bool(arguments.others) and arguments.holds()
    if arguments.others and not holds:
        crossing = arguments.crossing()
        if crossing is not None and not is_explained_as_mask(subject, crossing.name):
            yield describe(arguments, crossing)
            return
        holds = crossing is None and bool(arguments.looked_up) and arguments.holds()
    in_any_order = bool(arguments.axes) and arguments.is_in_any_order
    if arguments.axes and crossing is None and not in_any_order:
        by_place = place_dependence(arguments)
        if by_place is not None:
            yield by_place
            return
    if arguments.others and crossing is None and not holds:
        yield Observation("with the batch in another order, the results aren't the same in that order")
    if data and not arguments.looked_up:
        known = {*data, *(arguments.varied() if holds else ())} - arguments.shared
        varied = [name for name in subject.base.inputs if name in known]
        ordered = in_any_order and subject.is_distinct(symbol) and known <= {*arguments.axes, *arguments.folding}
        order = ", whatever their order" if ordered else ""
        yield Verification(f"{_INDEPENDENT}{order} (varied: {', '.join(varied)})")
        return
    if holds:
        varied = [name for name in arguments.axes if name not in arguments.looked_up]
        text = "a batch in another order gives the same results in that order"
        yield Verification(f"{text} (varied: {', '.join(varied)})")
    yield Undecided(TOPIC, "elements are looked up at indices that an argument gives")


def _affecting(subject: Subject, symbol: str, index: int) -> tuple[int, dict[str, Replace], PerturbationDiff] | None:
    """Return an element that affects others, with its change and the effect, if changing all others changes one.

    A maximum over the batch, for example, changes with an element only if that one holds the maximum.
    """
    others = subject.perturb(Intervention(inputs=subject.at_index(symbol, index, outside=True)))
    number = subject.numbers[symbol]
    reached = others.comparable and any(
        index in changed_indices(mask, list(mask.shape).index(number))
        for _, mask in others.returned()
        if mask.shape.count(number) == 1 and mask.any()
    )
    for element in range(number) if reached else ():
        change = subject.at_index(symbol, element)
        diff = subject.perturb(Intervention(inputs=change))
        if diff.comparable and False in _changes_alone(subject, diff, symbol, element):
            return element, change, diff
    return None


def _changes_alone(subject: Subject, diff: PerturbationDiff, symbol: str, index: int) -> list[bool | None]:
    """Return for each changed result whether only the batch element changed.

    It is None of a result that has no batch axis, or two of them: a number for each pair of elements.
    """
    return [
        None if _is_of_pairs(subject, mask, symbol, index) else is_at_one_index(mask, symbol, index, subject.numbers)[0]
        for _, mask in diff.returned()
        if mask.any()
    ]


def _first_divergence(
    subject: Subject, diff: PerturbationDiff, symbol: str, index: int, start: Iterable[Producer]
) -> tuple[Divergence | None, bool]:
    """Return the first call in which batch elements meet, and whether they are meant to.

    They are if all of these calls make a number for each pair of elements, and no result for a single one is returned
    that depends on others. A softmax over such numbers is the loss of contrastive training.
    """
    of_pairs: Divergence | None = None
    for divergence in divergences(diff, symbol, index, subject.numbers, start):
        if not _is_of_pairs(subject, diff.mask(divergence.ref), symbol, index):
            return divergence, False
        of_pairs = of_pairs or divergence
    number = subject.numbers[symbol]
    affected = (
        mask for _, mask in diff.returned() if is_at_one_index(mask, symbol, index, subject.numbers)[0] is False
    )
    return of_pairs, of_pairs is not None and all(list(mask.shape).count(number) == 2 for mask in affected)


def _is_of_pairs(subject: Subject, mask: Tensor, symbol: str, index: int) -> bool:
    """Return whether a result has the batch as two axes, and changed only where an element is one of the two.

    Contrastive training scores each element with all others (van den Oord et al. 2018,
    https://arxiv.org/abs/1807.03748).
    """
    axes = [axis for axis, size in enumerate(mask.shape) if size == subject.numbers[symbol]]
    if len(axes) != 2 or not subject.is_distinct(symbol):
        return False
    rows, columns = (changed.any() for changed in (mask.select(axes[0], index), mask.select(axes[1], index)))
    others = torch.arange(subject.numbers[symbol]) != index
    rest = mask.movedim(axes, (0, 1))[others][:, others]
    return bool(rows) and bool(columns) and not bool(rest.any())


def _violation(
    subject: Subject, diff: PerturbationDiff, first: Divergence, symbol: str, index: int, name: str
) -> Violation:
    alone = first.event.values[first.ref.output].shape[first.axis] == subject.numbers[symbol]
    others = [str(element) for element in first.indices if element != index] if alone else []
    reached = ", ".join([*others[:6], *(["…"] if len(others) > 6 else [])]) or "others"
    evidence = f"changed batch element {index} of {name}"
    folded = _folded_otherwise(subject, diff, first, symbol)
    if folded is not None:
        call = "the product" if product(first.event, subject.graph) is not None else first.event.short_name
        order = f"batch and heads are folded in a different order here than in the other operand of {call}"
        return Violation("AS116", f"{order}: batch element {index} meets {reached}", folded, _ONE_ORDER, evidence)
    flat = _flattened(subject, first, symbol)
    affects = f"batch element {index} affects {reached}"
    if flat is not None:
        message = f"batch and tokens are merged into one axis, and attention runs over it: {affects}"
        return Violation("AS101", message, flat, "keep a separate batch axis: (B, L, D)", evidence)
    products = {order for core in subject.cores for order in (core.scores.first.order, core.scores.last.order)}
    if first.event.order in products | {core.event.order for core in subject.fused}:
        return _over_batch(subject, first.ref, symbol, evidence, f", so {affects}")
    if first.event.name in DATA_MOVEMENT:
        return _misplaced(subject, first, symbol, index, evidence)
    summary = first.summary or first.event
    hint = f"let {summary.short_name} run over the last axis instead of {symbol}"
    return Violation("AS101", f"{affects}: {summary.short_name} runs over the batch", summary.refs[0], hint, evidence)


def _over_batch(subject: Subject, ref: OutputRef, symbol: str, evidence: str, effect: str = "") -> Violation:
    message = f"attention runs over the batch: it treats {symbol} as the sequence{effect}"
    hint = "pass batch_first=True, or transpose the first two axes before and after"
    return Violation("AS102", message, ref, hint, evidence)


def _runs_over_batch(subject: Subject, core: Core | FusedCore, symbol: str) -> bool:
    """Return whether the elements of the batch are the queries and the keys, where no other size is the batch's."""
    batch = subject.numbers[symbol]
    return subject.is_distinct(symbol) and core.token_sizes == ({batch}, {batch})


def _misplaced(subject: Subject, first: Divergence, symbol: str, index: int, evidence: str) -> Violation:
    """Return the violation for a layout operation that puts a batch element at the indices of others."""
    if _merges(subject, first.event):
        code, what = "AS114", "heads are merged without transposing back"
        hint = "transpose the axes back before the view, in the order in which they were folded"
    elif not _has_heads(subject, first.event):
        code, what = "AS105", "tokens and batch are scrambled"
        hint = "transpose the first two axes; a view doesn't swap them"
        if first.event.name in GATHERS | SELECTIONS:
            hint = "add to the indices of each batch element where its elements begin, or gather along the next axis"
    elif splits_fused_projection(subject, first):
        return wrong_cut(first.ref, symbol, first, f"batch element {index}", evidence)
    else:
        code, what, hint = "AS116", "batch and heads are unfolded in a different order than folded", _ONE_ORDER
    message = f"{what}: {where(first, symbol, f'batch element {index}')}"
    return Violation(code, message, first.ref, hint, evidence)


def _merges(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call only rearranges contexts, and leaves no axis of heads."""
    contexts = [core.context for core in subject.attentions]
    has_heads = bool(subject.head_sizes & set(event.values[0].shape))
    return not has_heads and reaches_by_data_movement(subject.graph, contexts, event)


def _has_heads(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether heads are an axis of an operand or result, alone or folded with the batch."""
    sizes = {size for value in (*event.operand_values, *event.values) for size in value.shape}
    last = event.operand_values[0].shape[-1] if event.operand_values and event.operand_values[0].ndim else 0
    return bool(subject.head_sizes & sizes) or last % 3 == 0


def _flattened(subject: Subject, first: Divergence, symbol: str) -> OutputRef | None:
    """Return the call that merges the batch and the tokens into one axis, if attention runs over that axis."""
    sizes = _tokens_of_batch(subject, symbol)
    for core in subject.cores:
        size = core.weights.shape[core.key_axes[0]] if core.key_axes else 0
        if first.event.order == core.scores.first.order and size in sizes:
            return _fold_of(subject, core.scores.sources(core.scores.right), size)
    for fused in subject.fused:
        if first.event is fused.event and fused.tensor("key").shape[-2] in sizes:
            return _fold_of(subject, fused.sources("key"), fused.tensor("key").shape[-2])
    return None


def _tokens_of_batch(subject: Subject, symbol: str) -> set[int]:
    """Return the sizes of axes that the batch and the tokens are merged into."""
    return {subject.numbers[symbol] * subject.numbers[length] for length in subject.lengths}


def _folded_otherwise(subject: Subject, diff: PerturbationDiff, first: Divergence, symbol: str) -> OutputRef | None:
    """Return where one operand of a call was folded with the heads first, and another with the batch first."""
    number = subject.numbers[symbol]
    for event, place, axis in _met_index_by_index(subject, first, number):
        before, after = (run.events[event.order - 1].operand_values[place] for run in (diff.base, diff.changed))
        changed = sorted(changed_indices(differs(before, after, 1e-9), axis))
        size = before.shape[axis]
        if len(changed) == size // number and all(b - a == number for a, b in itertools.pairwise(changed)):
            return _fold_of(subject, event.sources[place], size)
    return None


def _met_index_by_index(subject: Subject, first: Divergence, number: int) -> Iterator[tuple[ReplayedCall, int, int]]:
    """Yield the places of operands, each with a folded axis that meets that of another operand index by index.

    In a product it is an axis that both operands share. In a sum, a gather or any other call with several operands
    axes are counted from the last one, as in broadcasting.
    """
    matmul = product(first.event, subject.graph)
    if matmul is not None:
        for place in matmul.places:
            other = matmul.operand(matmul.other(place)).shape
            sizes = enumerate(matmul.operand(place).shape)
            axis = next((a for a, size in sizes if _is_fold(size, number) and size in other), None)
            if axis is not None and matmul.axes[place][axis] & matmul.shared:
                yield matmul.first, place, axis
        return
    result = first.event.values[first.ref.output]
    size, from_end = result.shape[first.axis], result.ndim - first.axis
    operands = [
        (first.event, place, value.ndim - from_end)
        for place, value in enumerate(first.event.operand_values)
        if value.ndim >= from_end and value.shape[-from_end] == size
    ]
    if _is_fold(size, number) and len(operands) > 1:
        yield from operands


def _is_fold(size: int, number: int) -> bool:
    return size > number and size % number == 0


def _fold_of(subject: Subject, sources: tuple[Producer, ...], size: int) -> OutputRef | None:
    """Return the call that folded an axis of this size."""
    has_axis = itertools.takewhile(lambda event: size in event.values[0].shape, subject.graph.upstream(sources))
    return next((event.refs[0] for event in reversed(list(has_axis))), None)
