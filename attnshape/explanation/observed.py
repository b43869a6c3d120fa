"""What a run at the user's sizes shows of one attention: its scores, what is added to them, its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.cores import product as product_of
from attnshape.checks.attention.elementwise import HIDES, MeasuredCore, index_along
from attnshape.checks.attention.operands import query_and_key
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.explanation.stages import TracedAttention
from attnshape.model.trace import Step, Trace
from attnshape.tracing.raw import RawStep

_CLOSE = 1e-3
"""The relative error up to which the scores follow from the products by one factor and a sum, in float32."""


class RunValues:
    """The calls of a run of the target, by the steps of its trace."""

    def __init__(self, trace: Trace, subject: Subject) -> None:
        self.subject = subject
        self._calls: dict[int, ReplayedCall] = {}
        self._steps: dict[int, Step] = {}
        raw, start = subject.experiment.raw.steps, 0
        for step in trace.steps:
            place = next((at for at in range(start, len(raw)) if _is_step(raw[at], step)), None)
            if place is None:
                continue
            # a loop has one iteration in the trace: those that follow are skipped when the next step is found
            start = place + 1
            order = raw[place].order
            if order is not None and order <= len(subject.base.events):
                self._calls[step.index] = subject.base.events[order - 1]
                self._steps[order] = step

    def call(self, step: Step) -> ReplayedCall | None:
        """Return the call of a step; None if the run has none that is certainly the same."""
        return self._calls.get(step.index)

    def calls(self, step: Step) -> list[ReplayedCall]:
        """Return the calls of a step in all iterations of a loop, in order."""
        orders = [raw.order for raw in self.subject.experiment.raw.steps if _is_step(raw, step)]
        events = self.subject.base.events
        return [events[order - 1] for order in orders if order is not None and order <= len(events)]

    def step(self, order: int) -> Step | None:
        """Return the step of a call's number."""
        return self._steps.get(order)

    def operand(self, step: Step, place: int = 0) -> Tensor | None:
        """Return the numbers of a step's operand; None if they are unknown."""
        call = self.call(step)
        return call.operand_values[place] if call is not None and place < len(call.operand_values) else None

    def result(self, step: Step) -> Tensor | None:
        """Return the numbers of a step's result; None if they are unknown."""
        call = self.call(step)
        return call.values[0] if call is not None and call.values and 0 not in call.unread else None

    def ratio(self, step: Step) -> float | None:
        """Return the number by which a step multiplies every element of its operand; None if there is none."""
        before, after = self.operand(step), self.result(step)
        if before is None or after is None or before.shape != after.shape or not before.is_floating_point():
            return None
        known = (before != 0) & torch.isfinite(before) & torch.isfinite(after)
        ratios = (after.double() / before.double())[known]
        if not ratios.numel():
            return None
        ratio = float(ratios.median())
        return ratio if torch.isclose(ratios, ratios.new_tensor(ratio), rtol=_CLOSE).all() else None


def _is_step(raw: RawStep, step: Step) -> bool:
    source, location = step.source, raw.location
    if raw.operation != step.operation or raw.module != step.module or (source is None) != (location is None):
        return False
    return source is None or location is None or (source.line, source.column) == (location.line, location.column)


@dataclass(frozen=True)
class ObservedScores:
    """The scores of one attention in one run; all tensors have the shape of the weights, and are in float64."""

    products: Tensor
    """The products of queries and keys, before any scale."""
    factor: float
    """The product of all scales on the way from the queries and keys to the softmax."""
    added: Tensor
    """What is added to the scaled products: -inf or a number far below where a key is hidden."""
    read: Tensor
    """The scores that the softmax reads: `factor * products + added`, but for what stands in place of hidden ones."""
    keys: int
    """The axis of the keys, along which the weights sum to 1."""
    queries: int | None
    """The axis of the queries; None if there is none, or several."""
    compared: tuple[Compared, ...] = ()
    """The queries and keys of each product whose results are summed; none if scores are no dot products."""
    inner: float = 1.0
    """The scales that queries and keys have before their product."""
    beside: Tensor | None = None
    """The scores that the softmax reads besides those of the keys, along the same axis; None if there are none."""
    values: Product | None = None
    """The product with the values; None if the attention is fused, or the weights are combined before it."""
    weights_place: int = 0
    """Which operand of that product the weights are."""

    @property
    def width(self) -> int:
        """The number of products that are summed for one score."""
        return sum(one.width for one in self.compared)

    @cached_property
    def hidden(self) -> Tensor:
        """Where a key is hidden."""
        return ~(self.added > HIDES)

    @cached_property
    def rows(self) -> Tensor:
        """Where a row has at least two visible keys, so that the softmax has a choice."""
        return ((~self.hidden).sum(self.keys, keepdim=True) > 1).expand(self.products.shape)

    @cached_property
    def every_row_chooses(self) -> bool:
        """Whether every row has at least two visible keys."""
        return bool(self.rows.all())

    def scores(self, factor: float) -> Tensor:
        """Return the scores that a softmax would read with a factor."""
        return factor * self.products + self.added

    def weights(self, factor: float) -> Tensor:
        """Return the weights of such scores."""
        return self.normalized(self.scores(factor))

    def normalized(self, scores: Tensor) -> Tensor:
        """Return the weights that keys with these scores get beside what else the softmax reads."""
        if self.beside is None:
            return scores.softmax(self.keys)
        together = torch.cat((scores, self.beside), self.keys).softmax(self.keys)
        return together.narrow(self.keys, 0, scores.shape[self.keys])

    def spread(self, factor: float) -> float:
        """Return the standard deviation of the visible scaled products."""
        return float((factor * self.products)[~self.hidden].std(correction=0))

    def largest(self, factor: float) -> float:
        """Return the mean of the largest weight of a row, over rows with at least two visible keys."""
        rows = self.rows.select(self.keys, 0)
        return float(self.weights(factor).amax(self.keys)[rows].mean())

    def slope(self, factor: float) -> float:
        """Return the mean derivative of a visible weight w by its own score, w * (1 - w), over the same rows."""
        weights = self.weights(factor)
        return float((weights * (1 - weights))[self.rows & ~self.hidden].mean())

    def partial_spread(self, features: int) -> float | None:
        """Return the standard deviation of the visible products if only the first features were summed.

        None if several products are summed, or the attention is fused.
        """
        product = self.compared[0].product if len(self.compared) == 1 else None
        if product is None:
            return None
        one = self.compared[0]
        cut = one.query.clone()
        cut.narrow(one.contracted[0], features, one.width - features).zero_()
        partial = (product.with_operands({one.place: cut}) - product.added).double()
        return float(partial[~self.hidden].std(correction=0)) / self.inner

    @property
    def expected_spread(self) -> float:
        """The standard deviation of the products if all entries of queries and keys were independent, with mean 0."""
        return math.sqrt(sum(one.expected_variance for one in self.compared)) / abs(self.inner)


@dataclass(frozen=True)
class Compared:
    """The queries and keys of one product."""

    query: Tensor
    key: Tensor
    contracted: tuple[int, int]
    """The axes of queries and of keys over which their product sums."""
    product: Product | None = None
    """The call that multiplies them; None if the attention is fused."""
    place: int = 0
    """Which operand of the call the queries are."""

    @property
    def width(self) -> int:
        """The number of products that are summed."""
        return self.query.shape[self.contracted[0]]

    @property
    def expected_variance(self) -> float:
        """The variance of the products if all entries were independent, with mean 0."""
        return self.width * float(self.query.double().square().mean() * self.key.double().square().mean())


def observed_scores(values: RunValues, traced: TracedAttention, heads: Sequence[int]) -> ObservedScores | None:
    """Return the scores of an attention; None if they don't follow from products by one factor.

    Args:
        values: The run.
        traced: The attention.
        heads: The axes of the scores that count heads, as the trace knows them.
    """
    call = values.call(traced.context)
    if call is None:
        return None
    for fused in values.subject.fused:
        if fused.event.order == call.order:
            return _of_fused(fused)
    for measured in values.subject.measured:
        if measured.core.context.order == call.order:
            return _of_core(values, measured, traced, heads)
    return _of_network(values, traced, call, heads)


def _of_core(
    values: RunValues, measured: MeasuredCore, traced: TracedAttention, heads: Sequence[int]
) -> ObservedScores | None:
    core, mapping = measured.core, measured.scores_map
    if mapping is None or mapping.common_factor is None or core.softmax.base != 1.0:
        return None
    placed = _placed(measured)
    products = core.scores.result.double() - core.scores.added
    if placed is None or products.shape != placed.shape:
        return None
    queries, keys = query_and_key(measured)
    pairs = [(core.scores, queries, keys), *_further(values, traced, core, keys)]
    pairs.sort(key=lambda pair: pair[0].first.order)
    compared = [_compared(*pair) for pair in pairs]
    before = [
        values.ratio(step)
        for step in traced.of("scale")
        if (one := values.call(step)) and one.order < core.scores.first.order
    ]
    if None in before or None in compared:
        return None
    inner = math.prod(ratio for ratio in before if ratio is not None)
    read, added = placed.of(core.softmax.scores.double()), placed.of(mapping.added.double())
    if len(pairs) > 1:
        if inner != 1.0:
            return None
        products = sum((one.result.double() for one, *_ in pairs if one is not core.scores), products)
        without = _without_products(values.subject, core, [one for one, *_ in pairs], placed)
        if without is None or products.shape != without.shape:
            return None
        added = without
    free = core.scores.free(queries) - {placed.keys, *heads}
    observed = ObservedScores(
        products=products / inner,
        factor=mapping.common_factor * inner,
        added=added,
        read=read,
        keys=placed.keys,
        queries=next(iter(free)) if len(free) == 1 else None,
        compared=tuple(one for one in compared if one is not None),
        inner=inner,
        beside=placed.beside(core.softmax.scores.double()),
        values=core.value if placed.shape == core.weights.shape else None,
        weights_place=core.weights_place,
    )
    return observed if _explains(observed) else None


def _explains(observed: ObservedScores) -> bool:
    """Return whether the products, the factor and what is added give the scores that the softmax reads."""
    visible = ~observed.hidden
    if not bool(visible.any()):
        return False
    expected, actual = observed.scores(observed.factor)[visible], observed.read[visible]
    error = float((expected - actual).abs().max())
    return error <= _CLOSE * max(float(actual.abs().max()), _CLOSE)


@dataclass(frozen=True)
class _Placed:
    """Where the scores of the keys are among those that a softmax reads."""

    keys: int
    """The axis of the softmax along which they lie."""
    columns: Tensor
    """Their indices along it, in order."""
    others: Tensor
    """The indices of what else is read."""
    shape: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor like the softmax's that belongs to the keys."""
        return tensor.index_select(self.keys, self.columns) if len(self.others) else tensor

    def beside(self, tensor: Tensor) -> Tensor | None:
        """Return the rest of such a tensor; None if there is none."""
        return tensor.index_select(self.keys, self.others) if len(self.others) else None


def _placed(measured: MeasuredCore) -> _Placed | None:
    """Return where the keys' scores are in the softmax; None if that is unclear, or it goes along another axis."""
    core = measured.core
    shape, weights = core.softmax.scores.shape, core.weights.shape
    if len(core.softmax.axes) != 1:
        # weights that sum to 1 along another axis than that of the keys are a mistake, and share out no attention
        own = core.softmax.axes & set(core.key_axes) if shape == weights else frozenset()
        if len(core.key_axes) != 1 or not own:
            return None
    else:
        own = core.softmax.axes
    (keys,) = own
    everything = torch.arange(shape[keys])
    if shape == weights:
        return _Placed(keys, everything, everything[:0], tuple(shape)) if core.key_axes == (keys,) else None
    if len(shape) != len(weights) or any(
        a != b for axis, (a, b) in enumerate(zip(shape, weights, strict=True)) if axis != keys
    ):
        # weights that are combined afterwards have other axes than what the softmax returns
        is_whole = core.scores.result.shape == shape
        return _Placed(keys, everything, everything[:0], tuple(shape)) if is_whole else None
    mapping = measured.weights_map
    if mapping is None or not mapping.elementwise or core.key_axes != (keys,):
        return None
    known = mapping.source >= 0
    along = index_along(mapping.source.clamp(min=0), shape, keys)
    columns = along.masked_fill(~known, -1).movedim(keys, 0).flatten(1).amax(1)
    grid = torch.arange(math.prod(shape)).reshape(shape)
    if bool((columns < 0).any()) or not torch.equal(grid.index_select(keys, columns)[known], mapping.source[known]):
        return None
    return _Placed(keys, columns, everything[~torch.isin(everything, columns)], tuple(weights))


def _compared(product: Product, queries: int, keys: int) -> Compared | None:
    """Return the queries and keys of a product; None if it sums over several axes."""
    contracted = product.contracted(queries), product.contracted(keys)
    if any(len(axes) != 1 for axes in contracted):
        return None
    axes = contracted[0][0], contracted[1][0]
    return Compared(product.operand(queries), product.operand(keys), axes, product, queries)


def _further(values: RunValues, traced: TracedAttention, core: Core, keys: int) -> Iterator[tuple[Product, int, int]]:
    """Yield the further products that are added to the scores as they are, with the places of queries and keys."""
    graph, of_keys = values.subject.graph, core.scores.free(keys)
    for step in traced.of("scores"):
        call = values.call(step) if step.role == "scores" else None
        one = product_of(call, graph) if call is not None else None
        if one is None or one.ref == core.scores.ref or one.result.shape != core.scores.result.shape:
            continue
        if all(graph.carries_data(one.sources(place)) for place in one.places):
            place = one.left if of_keys & one.free(one.left) else one.right
            yield one, one.other(place), place


def _without_products(subject: Subject, core: Core, products: Sequence[Product], placed: _Placed) -> Tensor | None:
    """Return what the softmax reads where all products are 0: what is added to them."""
    refs = [one.ref for one in products]
    # so that the run goes on as it was
    context = subject.base.value(core.context)
    results: dict[OutputRef, Replace] = {**dict.fromkeys(refs, torch.zeros_like), core.context: lambda _: context}
    run = subject.experiment.run(Intervention(results=results))
    if not run.follows(subject.base):
        return None
    return placed.of(run.events[core.softmax.owner.order - 1].operand_values[core.softmax.place].double())


def _of_network(
    values: RunValues, traced: TracedAttention, context: ReplayedCall, heads: Sequence[int]
) -> ObservedScores | None:
    """Return the scores that a product with parameters makes of each pair, as in additive attention."""
    scores, softmax = (values.call(step) for stage in _STAGES if (step := traced.last(stage)) is not None)
    weighted = product_of(context, values.subject.graph)
    if scores is None or softmax is None or weighted is None:
        return None
    weights = softmax.values[0].double()
    read = softmax.operand_values[0].double()
    place = next((at for at in weighted.places if torch.equal(weighted.operand(at).double(), weights)), None)
    made = scores.values[0].double()
    if place is None or made.numel() != read.numel() or len(weighted.contracted(place)) != 1:
        return None
    (keys,) = weighted.contracted(place)
    if not torch.allclose(weights.sum(keys), torch.ones(()).double(), atol=_CLOSE):
        return None
    products = made.reshape(read.shape)
    free = {axis for axis, stays in enumerate(weighted.axes[place]) if stays & weighted.free(place)} - {*heads}
    observed = ObservedScores(
        products=products,
        factor=1.0,
        added=(read - products).masked_fill(read <= HIDES, -math.inf),
        read=read,
        keys=keys,
        queries=next(iter(free)) if len(free) == 1 else None,
        values=weighted,
        weights_place=place,
    )
    return observed if _explains(observed) and not bool(observed.added[~observed.hidden].any()) else None


_STAGES: tuple[Literal["scores"], Literal["softmax"]] = ("scores", "softmax")


def _of_fused(core: FusedCore) -> ObservedScores | None:
    if core.hides_its_mask:
        return None
    query, key = core.tensor("query"), core.tensor("key")
    heads = query.shape[-3] if query.ndim > 2 else 1
    repeated = key.repeat_interleave(heads // key.shape[-3], -3) if key.ndim > 2 and key.shape[-3] != heads else key
    products = query.double() @ repeated.double().mT
    added = core.added.expand(products.shape)
    rank = products.ndim
    return ObservedScores(
        products=products,
        factor=core.scale,
        added=added,
        read=core.scale * products + added,
        keys=rank - 1,
        queries=rank - 2,
        compared=(Compared(query, key, (query.ndim - 1, key.ndim - 1)),),
    )
