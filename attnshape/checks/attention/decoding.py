"""Attentions that are steps of one loop: each reads the keys of those before it from a cache, and adds its own.

All tokens get the same vector, so that only positions can make queries and keys differ between steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.operands import (
    AttentionOperand,
    AttentionOperands,
    by_attention,
    has_lone_query,
    projection,
    projections,
)
from attnshape.checks.attention.perturbation import changed_indices, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, filled_with, random_vector
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import FILLS, JOINS, SAME_VALUES

_MOST_STEPS = 64
_CHANGED = 1e-7
_MOVES = SAME_VALUES | JOINS | FILLS


@dataclass(frozen=True)
class DecodingStep:
    """One attention of a loop."""

    own: AttentionOperands
    queries: int
    keys: int
    """How many keys it has, those of the steps before it included: as many as it reads, without unused slots."""
    slots: int
    """How many keys it reads: a cache that is made in advance has room for those of later steps."""
    sources: frozenset[OutputRef]
    """The projections from which its keys come, those of cached keys included."""
    query_sources: frozenset[OutputRef]
    dropped: int = 0
    """How many keys of the first steps it has no more: a rolling cache is cut to the last ones."""
    order: tuple[int, ...] | None = None
    """The slots of its keys in the order of their tokens, as those of a ring buffer aren't; None if they are."""

    @property
    def width(self) -> int:
        """The width of a query."""
        return self.own[0].width

    def rows(self, operand: AttentionOperand, run: ReplayRun) -> Tensor:
        """Return the query or the key vectors of the first head and batch element in order, (tokens, width)."""
        value = operand.of(run).double().movedim(operand.contracted[0], -1)
        count, used = (self.queries, self.queries) if operand.role == "query" else (self.slots, self.keys)
        axes = _token_axes(operand, count)
        if axes:
            value = value.movedim(axes[0] - (axes[0] > operand.contracted[0]), -2)
        rows = value.reshape(-1, count, value.shape[-1])[0, :used]
        return rows if self.order is None or operand.role == "query" else rows[list(self.order)]


@dataclass(frozen=True)
class DecodingLoop:
    """The steps of one loop, in order, with a run in which all of their tokens have the same vector."""

    steps: tuple[DecodingStep, ...]
    run: ReplayRun
    change: Intervention
    vector: Tensor

    @property
    def given(self) -> int:
        """How many keys the first step has that aren't its own, such as learned ones."""
        return self.steps[0].keys - self.steps[0].queries

    def at(self, subject: Subject, step: DecodingStep) -> UniformRun:
        """Return the run as that of one step."""
        return UniformRun(subject, step.own, self.run, self.change, self.vector)


def loops(subject: Subject) -> list[DecodingLoop]:
    """Return the loops whose queries and keys can be given the same vector, and whose keys are in order."""
    chains = [chain for chain in _chains(subject) if not any(_has_given_positions(subject, step) for step in chain)]
    chains = [chain for chain in chains if _fits(subject, chain)]
    if not chains:
        return []
    vectors = {chain[0].width: random_vector(chain[0].width, 3) for chain in chains}
    fills = {
        ref: partial(filled_with, vectors[step.width])
        for chain in chains
        for step in chain
        for ref in step.sources | step.query_sources
    }
    change = Intervention(results=fills)
    run = subject.experiment.run(change)
    if not run.follows(subject.base):
        return []
    in_order = _in_order(subject, chains, fills, run)
    return [DecodingLoop(tuple(chain), run, change, vectors[chain[0].width]) for chain in in_order]


def _chains(subject: Subject) -> list[list[DecodingStep]]:
    """Return the attentions of which each reads the keys of the one before it and as many more as it has queries.

    Those whose cache rolls are there without the steps that drop keys, too: what drops them may be a ring buffer.
    """
    chains: list[list[DecodingStep]] = []
    for step in _steps(subject):
        before = [chain for chain in chains if _follows(chain, step) and chain[-1].width == step.width]
        if before:
            chain = max(before, key=lambda chain: chain[-1].keys)
            chain.append(replace(step, dropped=_dropped(chain, step)))
        else:
            chains.append([step])
    whole = [[step for step in chain if not step.dropped] for chain in chains]
    chains += [part for part, chain in zip(whole, chains, strict=True) if len(part) < len(chain)]
    return [chain for chain in chains if 1 < len(chain) <= _MOST_STEPS]


def _follows(chain: Sequence[DecodingStep], step: DecodingStep) -> bool:
    """Return whether a step reads the keys of the last one, with or without the first of them, and has new ones."""
    dropped = _dropped(chain, step)
    if dropped == 0:
        return chain[-1].sources < step.sources
    is_new = not step.sources <= frozenset.union(*(one.sources for one in chain))
    return dropped == chain[-1].dropped + step.queries and is_new and not step.sources.isdisjoint(chain[-1].sources)


def _dropped(chain: Sequence[DecodingStep], step: DecodingStep) -> int:
    """Return how many keys a step has no more if it comes after those of a chain; below 0 if it has too many."""
    return chain[-1].dropped + chain[-1].keys + step.queries - step.keys


def _steps(subject: Subject) -> list[DecodingStep]:
    """Return what may be a step of each attention, in order, with the keys that its cache has by then."""
    every = sorted(by_attention(subject), key=lambda own: own[0].event.order)
    steps = [step for own in every if (step := _step(subject, own)) is not None]
    pairs = itertools.combinations(steps, 2)
    if not any(one.slots == other.slots and one.sources < other.sources for one, other in pairs):
        return steps
    refs = {ref for step in steps for ref in step.sources}
    changed = subject.experiment.run(Intervention(results=dict.fromkeys(refs, other_numbers)))
    if not changed.follows(subject.base):
        return steps
    return [replace(step, keys=_used_slots(subject, step, changed)) for step in steps]


def _used_slots(subject: Subject, step: DecodingStep, changed: ReplayRun) -> int:
    """Return how many slots there are up to the last one that a projection fills, which is another one in a run."""
    key = step.own[1]
    difference = (step.rows(key, changed) - step.rows(key, subject.base)).abs() > _CHANGED
    return max(changed_indices(difference, 0), default=step.slots - 1) + 1


def _step(subject: Subject, own: AttentionOperands) -> DecodingStep | None:
    query, key, _ = own
    core = query.core
    if isinstance(core, FusedCore):
        queries, keys = query.value.shape[-2], key.value.shape[-2]
    elif len(query.contracted) == len(key.contracted) == 1 and len(core.key_axes) < 2:
        # the first step may have one key, whose axis can't be told from others of size 1
        keys = core.weights.shape[core.key_axes[0]] if core.key_axes else 1
        shape = core.scores.result.shape
        together = keys * math.prod(shape[axis] for axis in core.scores.shared)
        if _are_projected_alike(subject, own, keys):
            queries = keys
        else:
            queries = 1 if has_lone_query(subject, core) else core.scores.result.numel() // together
    else:
        return None
    if keys == 1 < queries:
        return None
    counts = {"query": queries, "key": keys}
    if any(count > 1 and len(_token_axes(one, count)) != 1 for one in (query, key) for count in (counts[one.role],)):
        return None
    sources, query_sources = (frozenset(projections(subject, one.sources)) for one in (key, query))
    return DecodingStep(own, queries, keys, keys, sources, query_sources) if sources and query_sources else None


def _are_projected_alike(subject: Subject, own: AttentionOperands, keys: int) -> bool:
    """Return whether queries are projected with all keys, as those of a prompt: there may be as many as heads."""
    refs = [projection(subject, operand.sources) for operand in own[:2]]
    query, key = (subject.base.value(ref).shape[:-1] if ref is not None else None for ref in refs)
    return query is not None and query == key and keys in query[1:]


def _token_axes(operand: AttentionOperand, count: int) -> list[int]:
    """Return the axes of queries or keys that hold so many tokens; none if there is one token only."""
    if count == 1:
        return []
    if isinstance(operand.core, FusedCore):
        return [operand.value.ndim - 2]
    scores = operand.core.scores
    axes, free = scores.axes[operand.place], scores.free(operand.place)
    return [axis for axis, stays in enumerate(axes) if stays & free and operand.value.shape[axis] == count]


def _fits(subject: Subject, chain: Sequence[DecodingStep]) -> bool:
    refs = {ref for step in chain for ref in step.sources | step.query_sources}
    return all(subject.base.value(ref).shape[-1] % chain[0].width == 0 for ref in refs)


def _has_given_positions(subject: Subject, step: DecodingStep) -> bool:
    """Return whether queries or keys depend on another argument than by way of their projections, such as positions.

    A cache doesn't count: its numbers are only moved.
    """
    ends = step.sources | step.query_sources
    wanted: set[tuple[Producer, bool]] = {(source, True) for operand in step.own[:2] for source in operand.sources}
    seen = set[tuple[Producer, bool]]()
    while wanted:
        source, is_moved = wanted.pop()
        seen.add((source, is_moved))
        if isinstance(source, OutputRef) and source not in ends:
            event = subject.graph.node(source)
            is_moved = is_moved and event.name in _MOVES
            read = event.producers if reads_numbers(event) else set()
            wanted |= {(producer, is_moved) for producer in read} - seen
    return any(
        not (is_moved and subject.base.inputs[source].is_floating_point())
        for source, is_moved in seen
        if isinstance(source, str) and source in subject.base.inputs
    )


def _in_order(
    subject: Subject, chains: Sequence[list[DecodingStep]], fills: Mapping[OutputRef, Replace], run: ReplayRun
) -> Iterator[list[DecodingStep]]:
    """Yield the chains whose last keys are those of all steps, each step with the order of its keys.

    In each run the steps whose number has a certain bit get another vector.
    """
    writers = [[torch.zeros(step.keys, dtype=torch.long) for step in chain] for chain in chains]
    for bit in range(max(map(len, chains)).bit_length()):
        results = dict(fills)
        for chain in chains:
            other = partial(filled_with, random_vector(chain[0].width, 5))
            known = frozenset[OutputRef]()
            for number, step in enumerate(chain, 1):
                if number >> bit & 1:
                    results |= dict.fromkeys(step.sources - known, other)
                known |= step.sources
        changed = subject.experiment.run(Intervention(results=results))
        if not changed.follows(subject.base):
            return
        for chain, numbers in zip(chains, writers, strict=True):
            for step, writer in zip(chain, numbers, strict=True):
                difference = (step.rows(step.own[1], changed) - step.rows(step.own[1], run)).abs() > _CHANGED
                writer += difference.any(-1).long() << bit
    in_order = [
        ordered
        for chain, numbers in zip(chains, writers, strict=True)
        if (not chain[-1].dropped or chain[0].keys == chain[0].queries)
        and (ordered := _ordered(chain, [writer.tolist() for writer in numbers])) is not None
    ]
    rolling = {chain[0].own[0].core.context for chain in in_order if chain[-1].dropped}
    for chain in in_order:
        if chain[-1].dropped or chain[0].own[0].core.context not in rolling:
            yield chain


def _ordered(chain: Sequence[DecodingStep], writers: Sequence[list[int]]) -> list[DecodingStep] | None:
    """Return the steps with the order of their keys; None if the last step doesn't have one key of each token.

    Args:
        chain: The steps.
        writers: For each step and key the number of the step that wrote it, from 1; 0 for those that no step wrote.
    """
    every = [0] * (chain[0].keys - chain[0].queries)
    ordered: list[DecodingStep] = []
    for number, (step, found) in enumerate(zip(chain, writers, strict=True), 1):
        every += [number] * step.queries
        order = sorted(range(step.keys), key=found.__getitem__)
        is_complete = [found[slot] for slot in order] == every[step.dropped :]
        if not is_complete and step is chain[-1]:
            return None
        is_in_order = not is_complete or order == list(range(step.keys))
        ordered.append(step if is_in_order else replace(step, order=tuple(order)))
    return ordered
