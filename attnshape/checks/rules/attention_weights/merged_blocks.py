"""Are blocks of keys merged to the weights of one softmax over all of them?

Blockwise attention (Rabe and Staats 2021, https://arxiv.org/abs/2112.05682; Dao et al. 2022,
https://arxiv.org/abs/2205.14135) computes a context from each block of keys. It sums them with coefficients that make
up for the maxima and the sums of the single blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, between, exponential_cores
from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.rules.attention_weights.joint_sums import common_number
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.tracing import operations as ops

_CLOSE = 1e-4
_MOST_BLOCKS = 16
_LINEAR = ops.SAME_VALUES | ops.JOINS | ops.SUMS | ops.ADDITIONS | ops.SUBTRACTIONS | ops.SCALINGS
"""Operations after which a result is still linear in the contexts of the blocks."""
_SHIFTS = ops.SUBTRACTIONS | ops.ADDITIONS
_HINT = (
    "with each new maximum, multiply both the sum and the output by exp(old - new), or merge contexts by the "
    "log-sum-exp of their scores"
)


@dataclass(frozen=True)
class _Block:
    """The attention of a query to one block of keys."""

    core: Core
    scores: Tensor
    """Its scores, up to a number that is subtracted from those of every block; hidden ones are minus infinity."""

    @property
    def place_of_keys(self) -> int | None:
        """The place of the keys among the operands of their product; None if it can't be told, as of a single key."""
        product = self.core.scores
        keys = product.result.ndim - 1
        return next((place for place in product.places if keys in product.free(place)), None)

    def probe(self, number: float) -> dict[OutputRef, Replace]:
        """Return what makes each number of its context another one."""
        return {self.core.context: lambda context: torch.full_like(context, number)}


def check_merged_blocks(subject: Subject) -> Iterator[Verification | Violation]:
    """Measure the coefficient of the context of each block, and compare the weights with those of one softmax."""
    every = list(_groups(subject))
    outcomes = [_compare(subject, blocks) for blocks in every]
    violation = next((one for one in outcomes if isinstance(one, Violation)), None)
    if violation is not None:
        yield violation
    elif every and all(outcomes):
        yield Verification("blocks of keys are merged to the weights of one softmax over all of them")


def _groups(subject: Subject) -> Iterator[list[_Block]]:
    """Yield the blocks of keys that the same queries attend to, wherever their contexts are merged."""
    spelled = {core.softmax.owner.order for core in subject.cores}
    cores = [
        *subject.cores,
        *(core for core in exponential_cores(subject.graph) if core.softmax.ref.order not in spelled),
    ]
    # one block may be found both by its division and by its exponentials; a softmax over blocks reads their scores too
    every = filter(None, map(partial(_block, subject), reversed(cores)))
    distinct = {block.core.scores.ref: block for block in every}.values()
    blocks = sorted(distinct, key=lambda block: block.core.context)
    while blocks:
        first = blocks[0]
        same = [block for block in blocks if _have_same_queries(first, block)]
        blocks = [block for block in blocks if block not in same]
        if 1 < len(same) <= _MOST_BLOCKS:
            yield same


def _block(subject: Subject, core: Core) -> _Block | None:
    """Return the block of an attention, if it has one axis of keys, the last one of its weights."""
    weights, context = core.weights, core.value.result
    last = weights.ndim - 1
    # an axis of one key shows in no change of an index
    is_plain = core.key_axes == (last,) or (not core.key_axes and weights.shape[last] == 1)
    is_kept = weights.shape == core.scores.result.shape == core.softmax.scores.shape
    if not is_plain or not is_kept or weights.shape[:-1] != context.shape[:-1]:
        return None
    if core.value.last.name in ops.PRODUCTS_WITH_ADDEND:
        return None
    scores = _before_shift(subject, core)
    return _Block(core, scores.masked_fill(weights == 0, -torch.inf)) if scores is not None else None


def _before_shift(subject: Subject, core: Core) -> Tensor | None:
    """Return the scores that an exponential reads, without the number that is subtracted from all of a row."""
    read = core.softmax.scores.double() * core.softmax.base
    if core.softmax.event.name in ops.SOFTMAXES:
        return read
    for event in reversed(between(subject.graph, core.scores.ref, core.softmax.sources)):
        if event.name in _SHIFTS and len(event.sources) == 2 and _is_of_row(subject, event, 1):
            before, after = event.operand_values[0].double(), event.values[0].double()
            shown = torch.isfinite(after) & torch.isfinite(read) & (after != 0)
            ratios = (read / after)[shown]
            if not ratios.numel():  # a single key is the maximum itself
                return before * core.softmax.base
            is_scaled = bool(((ratios - ratios[0]).abs() <= _CLOSE * ratios[0].abs()).all())
            return before * ratios[0] if is_scaled else None
    return read


def _is_of_row(subject: Subject, event: ReplayedCall, place: int) -> bool:
    """Return whether an operand has one number for each row, which depends on the data as a maximum of scores does."""
    value = event.operand_values[place]
    return value.ndim > 0 and value.shape[-1] == 1 and subject.graph.carries_data(event.sources[place])


def _have_same_queries(one: _Block, other: _Block) -> bool:
    """Return whether blocks multiply the same queries, where the first one has them, by different keys."""
    left, right = one.core.scores, other.core.scores
    keys = one.place_of_keys
    queries = left.other(keys) if keys is not None else None
    return one is other or (
        keys is not None
        and queries in right.places
        and one.core.context != other.core.context
        and one.scores.shape[:-1] == other.scores.shape[:-1]
        and torch.equal(left.operand(queries), right.operand(queries))
        and left.sources(keys) != right.sources(keys)
    )


def _compare(subject: Subject, blocks: Sequence[_Block]) -> Violation | bool:
    """Return a violation if the blocks are merged to other weights; whether they are known to be merged rightly."""
    merged = list(_merged(subject, blocks))
    found = _weights(subject, blocks, merged) if merged else None
    if found is None:
        return False
    weights, at = found
    if not _depend_on_each_other(subject, blocks, merged):
        return _of_single_softmaxes(subject, blocks, weights, at)
    expected = torch.cat([block.scores for block in blocks], -1).softmax(-1)
    rows = torch.isfinite(expected).all(-1) & torch.isfinite(weights).all(-1)
    weights, expected = weights[rows], expected[rows]
    if not weights.numel():
        return False
    sums = weights.sum(-1, keepdim=True)
    if _are_close(weights, expected):
        return True
    if _are_close(weights, expected * sums) and at.name not in ops.SCALINGS:
        return False  # what is returned may be divided elsewhere
    if _are_close(weights, expected * sums) and _reads_something_else(subject, blocks, at):
        return False  # such as a sink, which takes part in the softmax and has no value
    evidence = f"replaced the contexts of {len(blocks)} blocks of keys by 0 and 1, and read their sum"
    if not _are_close(sums, torch.ones_like(sums)):
        message = f"the weights of a query over all blocks of keys sum to {sums.min():.4g} to {sums.max():.4g}"
        return Violation("AS302", message, at.refs[0], _HINT, evidence)
    most = float((weights - expected).abs().max())
    message = f"blocks of keys are merged to other weights than those of one softmax over all keys: by up to {most:.3g}"
    return Violation("AS311", message, merged[0].refs[0], _HINT, evidence)


def _reads_something_else(subject: Subject, blocks: Sequence[_Block], at: ReplayedCall) -> bool:
    """Return whether a sum of contexts depends on an input or a parameter that no query, key or value depends on."""
    read = {source for block in blocks for sources in _operand_sources(block.core) for source in sources}
    return bool(subject.graph.origins((at.refs[0],)) - subject.graph.origins(tuple(read)) - {"constant"})


def _operand_sources(core: Core) -> Iterator[tuple[Producer, ...]]:
    """Yield what makes the queries, the keys and the values of an attention."""
    yield from map(core.scores.sources, core.scores.places)
    yield core.value.sources(core.values_place)


def _of_single_softmaxes(
    subject: Subject, blocks: Sequence[_Block], weights: Tensor, at: ReplayedCall
) -> Violation | bool:
    """Return a violation if each block of one sequence of keys has a softmax of its own, and the contexts are added."""
    number = common_number([weights.sum(-1)])
    if number != len(blocks) or not _are_parts(subject, blocks):
        return False
    message = f"the weights of a query sum to {number}, not to one: each of {number} blocks of keys has its own softmax"
    hint = "weigh the context of each block by exp(own - all), the log-sum-exp of its scores and that of all scores"
    return Violation("AS302", message, at.refs[0], hint, "replaced the contexts of the blocks, and read their sum")


def _are_parts(subject: Subject, blocks: Sequence[_Block]) -> bool:
    """Return whether the keys of the blocks are those of one tensor, which has them along one axis."""
    keys = blocks[0].place_of_keys
    if keys is None:
        return False
    roots = {_root(subject, block.core.scores.sources(keys)) for block in blocks}
    root = roots.pop()
    if roots or root is None:
        return False
    value = subject.base.value(root) if isinstance(root, OutputRef) else subject.base.inputs.get(root)
    return value is not None and sum(block.scores.shape[-1] for block in blocks) in value.shape


def _root(subject: Subject, sources: tuple[Producer, ...]) -> Producer | None:
    """Return the producer of the numbers that a tensor only has moved; None if others are written to it."""
    while len(sources) == 1:
        (producer,) = sources
        if not isinstance(producer, OutputRef) or subject.base.event(producer).name not in ops.SAME_VALUES:
            return producer
        sources = subject.base.event(producer).sources[0]
    return None


def _merged(subject: Subject, blocks: Sequence[_Block]) -> Iterator[ReplayedCall]:
    """Yield the calls on the way of the contexts into one result, from the first that reads two of them."""
    graph = subject.graph
    downstream = [graph.downstream_of(block.core.context) for block in blocks]
    linear = {block.core.context for block in blocks}
    for event in subject.base.events:
        if event.producers.isdisjoint(linear) or event.name not in _LINEAR:
            continue
        linear.update(event.refs)
        if sum(event.refs[0] in one for one in downstream) > 1:
            yield event


def _probed(
    subject: Subject, blocks: Sequence[_Block], one: _Block | None, more: Intervention | None = None
) -> ReplayRun:
    """Run with a context of ones for one block, or for none, and of zeros for the others."""
    results: dict[OutputRef, Replace] = {}
    for block in blocks:
        results |= block.probe(float(block is one))
    return subject.experiment.run(Intervention(results=results | dict(more.results if more else {})))


def _weights(
    subject: Subject, blocks: Sequence[_Block], merged: Sequence[ReplayedCall]
) -> tuple[Tensor, ReplayedCall] | None:
    """Return the weights of all keys in the last result that sums contexts row by row, with its call."""
    *runs, none = (_probed(subject, blocks, block) for block in (*blocks, None))
    if not all(run.follows(subject.base) for run in (*runs, none)):
        return None
    if any(bool(none.value(event.refs[0]).any()) for event in merged):
        return None  # of another block, which isn't known
    shape = blocks[0].core.value.result.shape
    for event in reversed(merged):
        coefficients = [run.value(event.refs[0]) for run in runs]
        if event.values[0].shape == shape and all(map(_is_of_rows, coefficients)):
            parts = [one[..., :1] * block.core.weights for one, block in zip(coefficients, blocks, strict=True)]
            return torch.cat(parts, -1).double(), event
    return None


def _depend_on_each_other(subject: Subject, blocks: Sequence[_Block], merged: Sequence[ReplayedCall]) -> bool:
    """Return whether the scores of the first block change the coefficient of another one's context, or the reverse.

    Those of contexts that are added, or that gates weigh, depend on no scores of others. A block may be padding.
    """
    first, *others = blocks
    for one, other in (pair for block in others for pair in ((first, block), (block, first))):
        changed = Intervention(results={other.core.scores.ref: other_numbers})
        before, after = (_probed(subject, blocks, one, change) for change in (None, changed))
        if not before.follows(subject.base) or not after.follows(subject.base):
            return False
        if any(not _are_close(before.value(event.refs[0]), after.value(event.refs[0])) for event in merged):
            return True
    return False


def _is_of_rows(value: Tensor) -> bool:
    """Return whether all features have one number."""
    return _are_close(value, value[..., :1].expand_as(value))


def _are_close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one.double(), other.double(), rtol=_CLOSE, atol=_CLOSE * 0.01, equal_nan=True).all())
