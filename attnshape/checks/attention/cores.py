"""Finds the attentions of a run in its data flow: each softmax, the product of scores, and the product with values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.checks.attention.products import Product
from attnshape.checks.interventions.experiment import ReplayRun, UnreadableError
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.inference.dataflow import DataFlow, OutputRef, Producer, Producers, match_softmax, numbers_read
from attnshape.tracing import operations as ops


class RunGraph(DataFlow[ReplayedCall]):
    """The calls of one run as a graph, and which of them depend on the data that is attended over."""

    def __init__(self, run: ReplayRun, data: set[str]) -> None:
        """`data` are the inputs that carry what is attended over."""
        super().__init__(run.events)
        self.data = data

    @cached_property
    def depends_on_data(self) -> set[OutputRef]:
        """The results that depend on the data."""
        return self.downstream(self.data)

    def carries_data(self, producers: Producers) -> bool:
        """Return whether a tensor with these producers depends on the data."""
        return any(producer in self.data or producer in self.depends_on_data for producer in producers)

    def is_projected_state(self, producers: Producers) -> bool:
        """Return whether a tensor is a projection of what depends on no data, such as learned prompt tokens."""
        return not self.carries_data(producers) and any(
            event.name in ops.PRODUCTS | ops.CONVOLUTIONS for event in self.upstream(producers)
        )


def between(graph: RunGraph, start: OutputRef, sources: tuple[Producer, ...]) -> list[ReplayedCall]:
    """Return the calls between a result and a tensor with these producers, in order, both ends left out."""
    downstream = graph.downstream_of(start)
    return [
        event
        for event in reversed(list(graph.upstream(sources)))
        if event.order > start.order and any(ref in downstream for ref in event.refs)
    ]


def reaches_by_data_movement(graph: RunGraph, starts: Iterable[Producer], event: ReplayedCall) -> bool:
    """Return whether only data movement lies between one of some producers and a call that reads it."""
    reached = set(starts)
    for earlier in graph.nodes[: event.order - 1]:
        if earlier.name in ops.DATA_MOVEMENT and earlier.producers & reached:
            reached.update(earlier.refs)
    return bool(event.producers & reached)


_MOVES = ops.LAYOUT | ops.CASTS | ops.COPIES | ops.DROPOUTS | {"unfold"}


def moves_only(event: ReplayedCall) -> bool:
    """Return whether a call moves numbers as its operands' shapes say; which ones doesn't depend on other tensors."""
    return event.name in _MOVES and not (event.name in ops.SELECTIONS and len(event.operand_values) > 1)


def drops(event: ReplayedCall) -> bool:
    """Return whether a call is a dropout that drops something in training mode."""
    rate = event.keywords.get("p", event.args[1] if len(event.args) > 1 else 0.5)
    return event.name in ops.DROPOUTS and isinstance(rate, (int, float)) and rate > 0


_FAR = 40
"""How many calls may lie between the products and the softmax of one attention."""


@dataclass(frozen=True)
class Softmax:
    """One softmax, in one call or spelled out."""

    event: ReplayedCall
    """The call that returns the weights."""
    owner: ReplayedCall
    """The call that reads the scores; the same call if the softmax is one call."""
    place: int
    """Which of the owner's operands the scores are."""
    axes: frozenset[int]
    """The axes along which the weights sum to one."""
    masked: bool = False
    """Whether the exponentials are masked before they are summed."""
    deferred: bool = False
    """Whether the division by the sum comes only after the product with the values."""
    base: float = 1.0
    """The natural logarithm of the base of the exponential: 1, or log(2) for `exp2`."""

    @property
    def ref(self) -> OutputRef:
        """The reference to the weights."""
        return OutputRef(self.event.order)

    @property
    def scores(self) -> Tensor:
        """The scores that it reads."""
        return self.owner.operand_values[self.place]

    @property
    def sources(self) -> tuple[Producer, ...]:
        """The producers of the scores that it reads."""
        return self.owner.sources[self.place]


@dataclass(frozen=True)
class Core:
    """One attention whose scores are visible."""

    scores: Product
    softmax: Softmax
    value: Product
    weights_place: int
    """The place of the weights among the value product's operands."""
    more_scores: tuple[Product, ...] = ()
    """Further products of two operands that depend on the inputs, which are added to the scores."""
    positional: tuple[Product, ...] = ()
    """Products of queries or keys with what doesn't depend on the inputs, such as positions, added to the scores."""

    @property
    def context(self) -> OutputRef:
        """The reference to the weighted values."""
        return self.value.ref

    @property
    def weights(self) -> Tensor:
        """The weights as the value product reads them."""
        return self.value.operand(self.weights_place)

    @property
    def token_sizes(self) -> tuple[set[int], set[int]]:
        """The sizes of the axes of the scores that only one of its operands has: the left, then the right one."""
        left, right = (self.scores.free(place) for place in (self.scores.left, self.scores.right))
        shape = self.scores.result.shape
        return {shape[axis] for axis in left}, {shape[axis] for axis in right}

    @property
    def shared_sizes(self) -> set[int]:
        """The sizes of the axes that queries and keys share in the scores, such as those of the batch and of heads."""
        return {self.scores.result.shape[axis] for axis in self.scores.shared}

    @property
    def values_place(self) -> int:
        """The place of the values among the value product's operands."""
        return self.value.other(self.weights_place)

    @property
    def key_axes(self) -> tuple[int, ...]:
        """The axes of the weights over which the value product sums."""
        return self.value.contracted(self.weights_place)


_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True)
class FusedCore:
    """One fused attention of torch, which never shows its scores."""

    event: ReplayedCall

    @cached_property
    def arguments(self) -> dict[str, object]:
        """The arguments by parameter."""
        return dict(zip(_PARAMETERS, self.event.args, strict=False)) | dict(self.event.keywords)

    def place(self, name: str) -> int | None:
        """Return the place of an argument among the operands; None if it isn't a tensor."""
        value = self.arguments.get(name)
        return next((place for place, operand in enumerate(self.event.operands) if operand is value), None)

    def tensor(self, name: str) -> Tensor:
        """Return the value of an argument that is a tensor."""
        place = self.place(name)
        assert place is not None
        return self.event.operand_values[place]

    def sources(self, name: str) -> tuple[Producer, ...]:
        """Return the producers of an argument; none if it isn't a tensor."""
        place = self.place(name)
        return self.event.sources[place] if place is not None else ()

    @property
    def context(self) -> OutputRef:
        """The reference to the weighted values."""
        return OutputRef(self.event.order)

    @property
    def token_sizes(self) -> tuple[set[int], set[int]]:
        """The numbers of queries and of keys."""
        return {self.tensor("query").shape[-2]}, {self.tensor("key").shape[-2]}

    @property
    def shared_sizes(self) -> set[int]:
        """The sizes of the axes that queries and keys share in the scores, such as those of the batch and of heads."""
        return set(self.tensor("query").shape[:-2])

    @cached_property
    def scale(self) -> float:
        """The factor on the products of queries and keys."""
        scale = self.arguments.get("scale")
        return float(scale) if isinstance(scale, (int, float)) else self.tensor("query").shape[-1] ** -0.5

    @property
    def hides_its_mask(self) -> bool:
        """Whether the mask has no numbers of its own, as those of `torch.nn.attention.bias`."""
        place = self.place("attn_mask")
        return place is not None and type(self.event.operands[place]) not in (Tensor, torch.nn.Parameter)

    @cached_property
    def added(self) -> Tensor:
        """What is added to the scores, (…, queries, keys): a float mask, and minus infinity where a key is hidden."""
        shape = (*self.tensor("query").shape[:-1], self.tensor("key").shape[-2])
        added = torch.zeros(shape, dtype=torch.float64)
        if self.place("attn_mask") is not None:
            mask = self.tensor("attn_mask")
            if mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
            added = added + mask.double()
        if self.arguments.get("is_causal"):
            added = added.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return added


def softmaxes(graph: RunGraph) -> list[Softmax]:
    """Return every softmax of a run, in order."""
    result = []
    for event in graph.nodes:
        match = match_softmax(event, graph) if event.values[0].is_floating_point() else None
        # over no keys, or for no queries, there is nothing to observe
        if match is not None and event.values[0].numel():
            _require_ordinary(event)
            axes = frozenset[int]() if match.deferred else _axes_that_sum_to_one(event)
            result.append(Softmax(event, match.owner, match.operand, axes, match.masked, match.deferred, match.base))
    return result


def cores(flow: RunGraph) -> list[Core]:
    """Return every attention of a run whose scores, weights and values can be found."""
    with_values = [(softmax, value_product(softmax, flow)) for softmax in softmaxes(flow)]
    return list(_with_scores(with_values, flow))


def learned_cores(flow: RunGraph) -> list[Core]:
    """Return the attentions whose keys and values are projections of what depends on no data, such as a prompt."""
    with_values = [
        (softmax, _value_product(softmax, flow, RunGraph.is_projected_state))
        for softmax in softmaxes(flow)
        if value_product(softmax, flow) is None
    ]
    return [
        core
        for core in _with_scores(with_values, flow)
        if any(flow.is_projected_state(core.scores.sources(place)) for place in core.scores.places)
    ]


def _with_scores(with_values: list[tuple[Softmax, ValueProduct | None]], flow: RunGraph) -> Iterator[Core]:
    for softmax, value in with_values:
        scores = _scores(softmax, flow, [(other, end) for other, end in with_values if other is not softmax])
        if scores is not None and value is not None:
            (first, *more), positional = scores
            yield Core(first, softmax, *value, tuple(more), tuple(positional))


def exponential_cores(flow: RunGraph) -> list[Core]:
    """Return attentions whose exponentials weight the values, wherever they are divided by their sum.

    A running softmax computes them chunk by chunk, and divides once, after the last one.
    """
    result = []
    for event in flow.nodes:
        if event.name not in ops.EXPONENTIALS or not event.values[0].is_floating_point() or not event.numel:
            continue
        base = math.log(2) if event.name == "exp2" else 1.0
        softmax = Softmax(event, event, 0, frozenset(), deferred=True, base=base)
        value, scores = value_product(softmax, flow), _last_product(softmax, flow)
        if value is not None and scores is not None and scores.result.shape == softmax.scores.shape:
            result.append(Core(scores, softmax, *value))
    return result


def _last_product(softmax: Softmax, flow: RunGraph) -> Product | None:
    """Return the last product before a softmax of which both operands depend on the data.

    A maximum, which may be that of other chunks too, is only subtracted from the scores.
    """
    wanted = {producer for producer in softmax.sources if isinstance(producer, OutputRef)}
    while wanted:
        event = flow.node(max(wanted))
        wanted -= set(event.refs)
        if event.name not in ops.MAXIMA:
            wanted |= {one for read in numbers_read(event) for one in read if isinstance(one, OutputRef)}
        candidate = product(event, flow) if event.name != "linear" else None
        if candidate is not None and all(flow.carries_data(candidate.sources(place)) for place in candidate.places):
            return candidate
    return None


def fused_cores(flow: RunGraph) -> list[FusedCore]:
    """Return every fused attention of a run."""
    fused = [event for event in flow.nodes if event.name in ops.FUSED_ATTENTION and len(event.operands) >= 3]
    for event in fused:
        _require_ordinary(event)
    return [FusedCore(event) for event in fused if event.values[0].numel()]


def _require_ordinary(event: ReplayedCall) -> None:
    """Raise UnreadableError if a call computes with a tensor that can't be replaced, or that has no elements."""
    if event.unusual is not None:
        raise UnreadableError(event.refs[0], f"it computes with {event.unusual}")
    if event.unread:
        raise UnreadableError(event.refs[0], next(iter(event.unread.values())))
    if not all(value.numel() for value in event.operand_values):
        raise UnreadableError(event.refs[0], "an operand has no elements, so nothing can be observed")


def product(event: ReplayedCall, flow: RunGraph) -> Product | None:
    """Return the product that a call makes, or that it begins: it multiplies, and the next call sums."""
    if event.name in ops.PRODUCTS and len(event.operand_values) >= 2:
        _require_ordinary(event)
        # baddbmm and addmm have what they add in front
        left = 1 if event.name in ops.PRODUCTS_WITH_ADDEND else 0
        return Product(event, event, left, left + 1)
    if event.name in ops.MULTIPLICATIONS and len(event.operand_values) == 2:
        sums = [reader for reader, _ in flow.consumers.get(event.refs[0], []) if reader.name in ops.SUMS]
        sizes = [value.numel() for value in event.operand_values]
        if len(sums) == 1 and (event.numel > max(sizes) or _is_of_one_query(event, sums[0], flow)):
            return Product(event, sums[0], 0, 1)
    return None


def _is_of_one_query(event: ReplayedCall, total: ReplayedCall, flow: RunGraph) -> bool:
    """Return whether a multiplication and a sum make one query's scores, or sum the values by one query's weights.

    One of the operands has a single index where the other one has the keys, or the features of the values.
    """
    if not all(flow.carries_data(sources) for sources in event.sources[:2]) or event.numel == total.numel:
        return False
    one, other = (value.shape for value in event.operand_values)
    if len(one) != len(other) or len(one) < 3:
        return False
    single = [axis for axis, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return len(single) == 1 and min(one[single[0]], other[single[0]]) == 1 and single[0] > 0


_NEVER_BETWEEN_SCORES = ops.NORMS | ops.SOFTMAXES | ops.CONVOLUTIONS
"""Operations that don't come between the product of queries and keys and the mixing of their heads."""
ValueProduct = tuple[Product, int]
"""A product with the values, and the place of the weights among its operands."""


def _scores(
    softmax: Softmax, flow: RunGraph, others: list[tuple[Softmax, ValueProduct | None]]
) -> tuple[list[Product], list[Product]] | None:
    """Return the products that make the scores: those with both operands from the inputs, and those with one.

    `others` are the other softmaxes, with their products with the values.
    """
    both: list[Product] = []
    one: list[Product] = []
    hidden: set[int] = set()
    # what other attentions computed before the first product that was found belongs to these
    ends = {end.order for other, value in others for end in (other.event, *([value[0].last] if value else []))}
    for event in flow.upstream(softmax.sources):
        if softmax.event.order - event.order > _FAR and both:
            break
        if event.order in hidden:
            continue
        if event.order in ends and (both or one or not _has_each_key(event, softmax)):
            hidden |= {before.order for before in flow.upstream((event.refs[0],))}
            continue
        candidate = product(event, flow)
        if candidate is None or event.name == "linear":
            continue
        sources = [candidate.sources(place) for place in candidate.places]
        # products from which its operands were computed aren't scores
        hidden |= {before.order for producers in sources for before in flow.upstream(producers)}
        data = [producers for producers in sources if flow.carries_data(producers)]
        if len(data) == 2:
            both.append(candidate)
        elif data:
            one.append(candidate)
            # talking heads: a product of the scores and a parameter, computed after the scores
            hidden -= set(_without_projections(data[0], flow))
    if both:
        return both[::-1], one
    return (one[-1:], one[:-1]) if one else None


def _has_each_key(event: ReplayedCall, softmax: Softmax) -> bool:
    """Return whether a result may have a number for each key of a softmax, as its scores do.

    The context of the step before, from which additive attention computes its next query, has features instead.
    """
    return event.numel % math.prod(softmax.event.values[0].shape[axis] for axis in softmax.axes) == 0


def _without_projections(sources: tuple[Producer, ...], flow: RunGraph) -> Iterator[int]:
    """Yield the numbers of the calls from which a tensor comes without a projection or normalisation in between.

    The first of them are products of two tensors that depend on the data.
    """
    wanted = {producer for producer in sources if isinstance(producer, OutputRef)}
    while wanted:
        event = flow.node(max(wanted))
        wanted -= set(event.refs)
        candidate = product(event, flow)
        if candidate is not None:
            if all(flow.carries_data(candidate.sources(place)) for place in candidate.places):
                yield event.order
        elif event.name not in _NEVER_BETWEEN_SCORES:
            yield event.order
            wanted |= {producer for producer in event.producers if isinstance(producer, OutputRef)}


def value_product(softmax: Softmax, flow: RunGraph) -> ValueProduct | None:
    """Return the product with the values, and the place of the weights among its operands."""
    return _value_product(softmax, flow, RunGraph.carries_data)


def _value_product(
    softmax: Softmax, flow: RunGraph, are_values: Callable[[RunGraph, tuple[Producer, ...]], bool]
) -> ValueProduct | None:
    downstream = flow.downstream_of(softmax.ref)
    reached: set[Producer] = {softmax.ref}
    for event in flow.nodes[softmax.event.order :]:
        if not event.producers & reached:
            continue
        candidate = product(event, flow)
        if candidate is not None and event.name != "linear":
            for place in candidate.places:
                other = candidate.sources(candidate.other(place))
                weights = not reached.isdisjoint(candidate.sources(place))
                if weights and downstream.isdisjoint(other) and are_values(flow, other):
                    return candidate, place
        # an index that was chosen by weights, as a decoder chooses its next input, carries none of them
        reached.update(ref for ref in event.refs if event.values[ref.output].is_floating_point())
    return None


def _axes_that_sum_to_one(event: ReplayedCall) -> frozenset[int]:
    """Return the axes along which the rows sum to one, empty rows aside."""
    weights = event.values[0].exp() if event.name in ops.LOG_SOFTMAXES else event.values[0]
    return frozenset(axis for axis, size in enumerate(weights.shape) if size > 1 and sum_to_one(weights, axis))


def row_sums(weights: Tensor, axes: int | tuple[int, ...]) -> Tensor:
    """Return the sums of rows of weights along some axes; without axes each row is the weight of a single key."""
    return weights.sum(axes) if axes != () else weights  # torch would sum over all axes


def sum_to_one(weights: Tensor, axes: int | tuple[int, ...]) -> bool | None:
    """Return whether rows of weights along some axes sum to one, empty rows aside; None if every row is empty."""
    sums = row_sums(weights, axes)
    sums = sums[torch.isfinite(sums) & (sums != 0)]
    return bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all()) if sums.numel() else None
