"""The data-flow graph of a run, and its softmaxes: single calls, or computed with exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, TypeVar

from attnshape.model.trace import Reference, Step
from attnshape.tracing import operations as ops


class OutputRef(NamedTuple):
    """One output of a call: the call's number, from 1 as in `RawStep.order`, and the output's index."""

    order: int
    output: int = 0


Producer = OutputRef | str
"""The source of an operand: another call's output, or the name of an input, parameter or constant."""
Producers = tuple[Producer, ...]
"""The producer of a tensor, followed by those that wrote to its memory."""


class Node(Protocol):
    """One call in the graph."""

    @property
    def order(self) -> int:
        """The call's number, counted from 1."""

    @property
    def name(self) -> str:
        """The operation's base name."""

    @property
    def sources(self) -> Sequence[Producers]:
        """The producers of each operand that is a tensor."""

    @property
    def refs(self) -> Sequence[OutputRef]:
        """The references to its outputs."""

    @property
    def numel(self) -> int:
        """The number of elements of its first output."""


N = TypeVar("N", bound=Node)


class DataFlow(Generic[N]):
    """The calls of one run as a graph."""

    def __init__(self, nodes: Sequence[N]) -> None:
        """`nodes` are in the order in which they ran; a node's number need not be its position."""
        self.nodes = nodes
        self._by_order = {node.order: node for node in nodes}

    @cached_property
    def consumers(self) -> dict[Producer, list[tuple[N, int]]]:
        """The calls that read each producer, with the operand's index."""
        consumers: dict[Producer, list[tuple[N, int]]] = {}
        for node in self.nodes:
            for operand, producers in enumerate(node.sources):
                for producer in producers:
                    consumers.setdefault(producer, []).append((node, operand))
        return consumers

    def readers(self, node: N) -> list[N]:
        """Return the calls that read any output of a call, each once, in order."""
        readers = {reader.order: reader for ref in node.refs for reader, _ in self.consumers.get(ref, ())}
        return [readers[order] for order in sorted(readers)]

    def node(self, ref: OutputRef) -> N:
        """Return the call that returned an output."""
        return self._by_order[ref.order]

    def input_node(self, node: N, operand: int) -> N | None:
        """Return the last call that produced or wrote to an operand; None for an input, a parameter or a constant."""
        refs = [producer for producer in node.sources[operand] if isinstance(producer, OutputRef)]
        return self.node(refs[-1]) if refs else None

    def input_nodes(self, node: N) -> list[N]:
        """Return the calls that produced the operands, in the order of the operands."""
        return [
            input_node
            for operand in range(len(node.sources))
            if (input_node := self.input_node(node, operand)) is not None
        ]

    def downstream(self, start: Iterable[Producer]) -> set[OutputRef]:
        """Return the outputs whose values depend on any of the producers, including these."""
        reached: set[Producer] = set(start)
        first = min((producer.order if isinstance(producer, OutputRef) else 0 for producer in reached), default=0)
        for node in self.nodes:
            if node.order > first and any(map(reached.intersection, numbers_read(node))):
                reached.update(node.refs)
        return {producer for producer in reached if isinstance(producer, OutputRef)}

    def downstream_of(self, ref: OutputRef) -> set[OutputRef]:
        """Return the outputs whose values depend on one output, including itself."""
        return self.downstream([ref])

    def upstream(self, producers: Producers, shapes: bool = False) -> Iterator[N]:
        """Yield the calls on which a tensor with these producers depends, the latest first.

        With `shapes`, also the calls on which only its shape depends.
        """
        wanted = {producer.order for producer in producers if isinstance(producer, OutputRef)}
        while wanted:
            order = max(wanted)
            wanted.discard(order)
            node = self._by_order[order]
            yield node
            read = node.sources if shapes else numbers_read(node)
            wanted |= {producer.order for source in read for producer in source if isinstance(producer, OutputRef)}

    def origins(self, producers: Producers) -> set[str]:
        """Return the inputs, parameters and constants on which a tensor with these producers depends."""
        sources = [producers, *(source for node in self.upstream(producers) for source in numbers_read(node))]
        return {producer for source in sources for producer in source if isinstance(producer, str)}


def reads_numbers(node: Node) -> bool:
    """Return whether a call reads the values of its operands, not just their shape or dtype."""
    return node.name not in ops.CREATED_LIKE


_READ_THE_FIRST = ops.SHAPE_FROM_SECOND | ops.CASTS
"""Operations that read the numbers of their first operand only."""


def numbers_read(node: Node) -> Sequence[Producers]:
    """Return the producers of the operands of which a call reads the numbers."""
    if not reads_numbers(node):
        return ()
    return node.sources[:1] if node.name in _READ_THE_FIRST else node.sources


_INDEX_DTYPES = ("int", "uint", "bool")
"""Prefixes of the dtypes of indices and masks."""


@dataclass(frozen=True)
class StepNode:
    """A step of a saved trace as a node of the graph."""

    step: Step
    name: str
    sources: tuple[Producers, ...]

    @property
    def order(self) -> int:
        """The step's number."""
        return self.step.index

    @property
    def refs(self) -> tuple[OutputRef, ...]:
        """The references to its outputs."""
        return tuple(OutputRef(self.step.index, output) for output in range(len(self.step.outputs)))

    @property
    def numel(self) -> int:
        """The number of elements of its first output."""
        return math.prod(self.step.outputs[0].tensor.shape)


def step_graph(steps: Sequence[Step]) -> DataFlow[StepNode]:
    """Return the graph of a trace's steps without composites, whose outputs are those of their inner steps.

    Calls that compute indices or masks aren't producers in this graph.
    """
    composites = {step.parent for step in steps}
    return DataFlow(
        [
            StepNode(
                step, ops.base_name(step.operation), tuple(_producers(steps, operand) for operand in step.operands)
            )
            for step in steps
            if step.index not in composites
        ]
    )


def _producers(steps: Sequence[Step], reference: Reference) -> Producers:
    inner = innermost(steps, reference)
    if inner.step is None:
        return (inner.input or inner.parameter or "constant",)
    dtype = steps[inner.step - 1].outputs[inner.output].tensor.dtype
    return () if dtype.startswith(_INDEX_DTYPES) else (OutputRef(inner.step, inner.output),)


def innermost(steps: Sequence[Step], reference: Reference) -> Reference:
    """Resolve a reference to a composite's output to the output of the innermost step."""
    while reference.step is not None and (inner := steps[reference.step - 1].outputs[reference.output].inner):
        reference = inner
    return reference


_VALUE_PRESERVING = ops.CASTS | ops.COPIES | ops.UNIT_AXES | ops.RESHAPES | {"getitem"}
"""Operations that keep all values if their output has as many elements as their operand."""
_BROADCASTING = ops.UNIT_AXES | ops.EXPANSIONS | {"getitem"}
"""Operations allowed between a reduction and the operation that broadcasts its result."""
_ZERO_GUARDS = ops.LOWER_BOUNDS | ops.ADDITIONS
"""Operations that keep a sum from being zero."""
_INVERSES = ops.REVERSED_DIVISIONS | {"reciprocal"}
_MASKING = ops.MASKS | ops.MULTIPLICATIONS


@dataclass(frozen=True)
class SoftmaxMatch(Generic[N]):
    """A softmax, matched from the call that returns its weights."""

    owner: N
    """The call that reads the scores, before their maximum is subtracted."""
    operand: int
    """The index of the scores among its operands."""
    exponential: N | None = None
    """The exponential, unless the softmax is a single call."""
    masked: bool = False
    """Whether the exponentials are masked before they are summed."""
    deferred: bool = False
    """Whether the division by the sum follows the product with the values."""

    @property
    def base(self) -> float:
        """The natural logarithm of the base of the exponential: 1, or log(2) for `exp2`."""
        return math.log(2) if self.exponential is not None and self.exponential.name == "exp2" else 1.0


def match_softmax(node: N, graph: DataFlow[N]) -> SoftmaxMatch[N] | None:
    """Return the softmax whose weights a call returns, or None.

    A softmax is a single call, `exp(x - logsumexp(x))`, `exp(log_softmax(x))`, or `e / sum(e)` of an exponential `e`,
    masked or not, and perhaps computed twice. A `log_softmax` counts as a softmax if no exponential reads it.
    """
    if not node.sources:
        return None
    if node.name in ops.SOFTMAXES | ops.LOG_SOFTMAXES:
        if node.name in ops.LOG_SOFTMAXES and any(reader.name in ops.EXPONENTIALS for reader in graph.readers(node)):
            return None
        return SoftmaxMatch(*_before_maximum(node, graph))
    if node.name in ops.EXPONENTIALS:
        before = _input_node(node, 0, graph)
        if before is not None and (before.name in ops.LOG_SOFTMAXES or _subtracts_logsumexp(before, graph)):
            return SoftmaxMatch(before, 0, node)
        if _is_normalised_later(node, graph):
            return SoftmaxMatch(*_before_maximum(node, graph), node, deferred=True)
    if node.name in ops.SCALINGS and len(node.sources) == 2:
        return _match_quotient(node, graph)
    return None


def _match_quotient(node: N, graph: DataFlow[N]) -> SoftmaxMatch[N] | None:
    numerator, denominator = _input_node(node, 0, graph), _input_node(node, 1, graph)
    if node.name in ops.MULTIPLICATIONS:
        inverse = denominator is not None and denominator.name in _INVERSES and bool(denominator.sources)
        denominator = _input_node(denominator, 0, graph) if inverse and denominator is not None else None
    while denominator is not None and denominator.name in _ZERO_GUARDS | _BROADCASTING and denominator.sources:
        denominator = _input_node(denominator, 0, graph)
    if (
        numerator is None
        or denominator is None
        or denominator.name not in ops.SUMS
        or not _are_the_same(numerator, _input_node(denominator, 0, graph))
    ):
        return None
    masked = numerator.name in _MASKING
    while numerator is not None and numerator.name in _MASKING and numerator.sources:
        numerator = _input_node(numerator, 0, graph)
    if numerator is None or numerator.name not in ops.EXPONENTIALS:
        return None
    return SoftmaxMatch(*_before_maximum(numerator, graph), numerator, masked)


def _are_the_same(node: N, other: N | None) -> bool:
    """Return whether two calls are one, or exponentials of the same tensor: `x.exp() / x.exp().sum()`."""
    if node is other or other is None:
        return node is other
    return node.name == other.name and node.name in ops.EXPONENTIALS and node.sources == other.sources


def _before_maximum(exponential: N, graph: DataFlow[N]) -> tuple[N, int]:
    """Return the call that reads the scores, and the operand's index: the subtraction of their maximum, if any."""
    before = _input_node(exponential, 0, graph)
    if before is not None and before.name in ops.SUBTRACTIONS and len(before.sources) == 2:
        subtracted = _input_node(before, 1, graph)
        while subtracted is not None and subtracted.name in _BROADCASTING | ops.LOWER_BOUNDS and subtracted.sources:
            subtracted = _input_node(subtracted, 0, graph)
        if subtracted is not None and subtracted.name in ops.MAXIMA:
            return before, 0
    return exponential, 0


def _subtracts_logsumexp(node: N, graph: DataFlow[N]) -> bool:
    subtracted = _input_node(node, 1, graph) if node.name in ops.SUBTRACTIONS and len(node.sources) == 2 else None
    if subtracted is None or subtracted.name != "logsumexp":
        return False
    return _input_node(subtracted, 0, graph) is _input_node(node, 0, graph)


def _is_normalised_later(exponential: N, graph: DataFlow[N]) -> bool:
    """Return whether the division by an exponential's sum follows the product with the values."""
    readers = graph.readers(exponential)
    sums = next((reader for reader in readers if reader.name in ops.SUMS), None)
    if sums is None or not any(reader.name in ops.PRODUCTS for reader in readers):
        return False
    return any(
        reader.name in ops.DIVISIONS and len(reader.sources) == 2 and graph.input_node(reader, 1) is sums
        for reader in graph.readers(sums)
    )


def _input_node(node: N, operand: int, graph: DataFlow[N]) -> N | None:
    """Return the call that produced an operand, skipping casts, copies and reshapes."""
    input_node = graph.input_node(node, operand)
    while input_node is not None and input_node.name in _VALUE_PRESERVING and input_node.sources:
        before = graph.input_node(input_node, 0)
        if before is None or before.numel != input_node.numel:
            break
        input_node = before
    return input_node
