"""Finds the residual connections of a run: sums of a stream and of what a branch computes from it.

A layer that normalises what a branch reads, and adds the result to the stream itself, keeps an identity from its input
to its output (pre-norm, Xiong et al. 2020, https://arxiv.org/abs/2002.04745).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing import operations as ops

_KEEPS_THE_STREAM = (
    ops.CASTS | ops.COPIES | ops.DROPOUTS | ops.RESHAPES | ops.TRANSPOSES | ops.UNIT_AXES | ops.SCALINGS | ops.ADDITIONS
)
"""Operations that return the stream, where no other operand depends on the data."""
_REDUCTIONS = ops.SUMS | ops.VECTOR_NORMS | {"mean", "var", "std"}
_WITHIN_NORMS = (
    _REDUCTIONS
    | (ops.SCALINGS | ops.SUBTRACTIONS | ops.ADDITIONS | ops.LOWER_BOUNDS | ops.REVERSED_DIVISIONS)
    | (ops.CASTS | ops.COPIES | ops.UNIT_AXES | ops.EXPANSIONS | ops.POWERS)
    | {"sqrt", "square", "reciprocal"}
)
_SAME = 0.02
"""The relative difference up to which lengths of normalised vectors are equal; code adds a small number to them."""


@dataclass(frozen=True)
class Connection:
    """A sum of a stream, the skip, and of what a branch computes from it."""

    event: ReplayedCall
    skip: Producer
    """The call that makes the skip, or its input, before casts, factors and dropout."""
    branch: frozenset[int]
    """The calls on which the branch depends."""

    @property
    def ref(self) -> OutputRef:
        """The reference to the sum."""
        return self.event.refs[0]


@once
def connections(subject: Subject) -> list[Connection]:
    """Return the residual connections of a run, in order."""
    found = []
    for event in subject.base.events:
        if event.name not in ops.ADDITIONS or len(event.operand_values) != 2 or event.values[0].ndim < 2:
            continue
        shapes = {value.shape for value in (*event.operand_values, event.values[0])}
        if len(shapes) == 1 and all(map(subject.graph.carries_data, event.sources)):
            connection = _connection(subject, event)
            if connection is not None:
                found.append(connection)
    return found


def _connection(subject: Subject, event: ReplayedCall) -> Connection | None:
    """Return the connection that a sum makes; None if neither operand depends on what the other one is."""
    for place in (0, 1):
        skip = stream(subject, event.sources[place][-1])
        behind = list(subject.graph.upstream(event.sources[1 - place]))
        branch = frozenset(call.order for call in behind)
        if (
            skip.order in branch
            if isinstance(skip, OutputRef)
            else any(skip in sources for call in behind for sources in call.sources)
        ):
            return Connection(event, skip, branch)
    return None


def stream(subject: Subject, producer: Producer) -> Producer:
    """Return what makes the numbers of a result, before casts, factors, biases, dropout and reshapes."""
    while isinstance(producer, OutputRef):
        event = subject.base.event(producer)
        data = [sources for sources in event.sources if subject.graph.carries_data(sources)]
        if event.name not in _KEEPS_THE_STREAM or len(data) != 1:
            break
        producer = data[0][-1]
    return producer


@once
def norms(subject: Subject) -> Mapping[Producer, Producer]:
    """Return what each norm reads, by its result: those of torch, and those that are spelled out."""
    found: dict[Producer, Producer] = {}
    for event in subject.base.events:
        if event.name in ops.TOKEN_NORMS and subject.graph.carries_data(event.sources[0]):
            found[event.refs[0]] = stream(subject, event.sources[0][-1])
        elif event.name in ops.SCALINGS and len(event.operand_values) == 2:
            read = _spelled_out(subject, event)
            if read is not None:
                found[event.refs[0]] = read
    return found


def _spelled_out(subject: Subject, event: ReplayedCall) -> Producer | None:
    """Return what a norm reads of which a call is the last one, the factor aside; None if it isn't one."""
    sizes = [value.numel() for value in event.operand_values]
    if sizes[0] == sizes[1] or not all(map(subject.graph.carries_data, event.sources)):
        return None
    if not _have_one_length(event.values[0]):
        return None
    read: set[Producer] = set()
    reduces = False
    waiting = [source for sources in event.sources for source in sources[-1:]]
    while waiting:
        source = waiting.pop()
        call = subject.base.event(source) if isinstance(source, OutputRef) else None
        data = [] if call is None else [own for own in call.sources if subject.graph.carries_data(own)]
        joins = call is not None and call.name in ops.ADDITIONS and len(data) > 1
        if call is None or call.name not in _WITHIN_NORMS or joins:
            read.add(stream(subject, source))
        else:
            reduces = reduces or call.name in _REDUCTIONS
            waiting += [own[-1] for own in data]
    return read.pop() if reduces and len(read) == 1 else None


def _have_one_length(value: Tensor) -> bool:
    """Return whether all vectors along the last axis have one length."""
    lengths = value.double().norm(dim=-1)
    return bool(torch.isclose(lengths, lengths.flatten()[0], rtol=_SAME, atol=0.0).all()) and bool((lengths > 0).all())


def read_through_norms(subject: Subject, connection: Connection, read: Producer) -> Iterator[Producer]:
    """Yield the norms of some result through which a connection's branch reads it."""
    for result, source in norms(subject).items():
        if source == read and isinstance(result, OutputRef) and result.order in connection.branch:
            yield result


def readers(subject: Subject, producer: Producer) -> list[ReplayedCall]:
    """Return the calls that read a stream, after casts, factors, biases, dropout and reshapes."""
    found: list[ReplayedCall] = []
    waiting = [producer]
    while waiting:
        one = waiting.pop()
        for event, _ in subject.graph.consumers.get(one, []):
            is_same = stream(subject, event.refs[0]) == producer
            if is_same:
                waiting.append(event.refs[0])
            else:
                found.append(event)
    return found
