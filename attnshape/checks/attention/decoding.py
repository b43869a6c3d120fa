"""Attentions that are steps of one loop: each reads the keys of those before it from a cache, and adds its own.

All tokens get the same vector, so that only positions can make queries and keys differ between steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.operands import AttentionOperand, by_attention, projections
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import UniformRun, filled_with, random_vector
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace
from attnshape.inference.dataflow import reads_numbers

_MOST_STEPS = 64
_CHANGED = 1e-7


@dataclass(frozen=True)
class DecodingStep:
    """One attention of a loop."""

    own: tuple[AttentionOperand, AttentionOperand, AttentionOperand]
    queries: int
    keys: int
    sources: frozenset[OutputRef]
    """The projections from which its keys come, those of cached keys included."""
    query_sources: frozenset[OutputRef]

    @property
    def width(self) -> int:
        """The width of a query."""
        return self.own[0].width

    def rows(self, operand: AttentionOperand, run: ReplayRun) -> Tensor:
        """Return the query or the key vectors of the first head and batch element, (tokens, width)."""
        value = operand.of(run).double().movedim(operand.contracted[0], -1)
        count = self.queries if operand.role == "query" else self.keys
        axes = _token_axes(operand, count)
        if axes:
            value = value.movedim(axes[0] - (axes[0] > operand.contracted[0]), -2)
        return value.reshape(-1, count, value.shape[-1])[0]


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
    """Return the attentions of which each reads the keys of the one before it and as many more as it has queries."""
    chains: list[list[DecodingStep]] = []
    for own in sorted(by_attention(subject), key=lambda own: own[0].event.order):
        step = _step(subject, own)
        if step is None:
            continue
        before = [
            chain
            for chain in chains
            if chain[-1].sources < step.sources
            and chain[-1].keys + step.queries == step.keys
            and chain[-1].width == step.width
        ]
        if before:
            max(before, key=lambda chain: chain[-1].keys).append(step)
        else:
            chains.append([step])
    return [chain for chain in chains if 1 < len(chain) <= _MOST_STEPS]


def _step(subject: Subject, own: tuple[AttentionOperand, AttentionOperand, AttentionOperand]) -> DecodingStep | None:
    query, key, _ = own
    core = query.core
    if isinstance(core, FusedCore):
        queries, keys = query.value.shape[-2], key.value.shape[-2]
    elif len(query.contracted) == len(key.contracted) == 1 and len(core.key_axes) < 2:
        # the first step may have one key, whose axis can't be told from others of size 1
        keys = core.weights.shape[core.key_axes[0]] if core.key_axes else 1
        shape = core.scores.result.shape
        together = keys * math.prod(shape[axis] for axis in core.scores.shared)
        queries = core.scores.result.numel() // together
    else:
        return None
    if keys == 1 < queries:
        return None
    counts = {"query": queries, "key": keys}
    if any(count > 1 and len(_token_axes(one, count)) != 1 for one in (query, key) for count in (counts[one.role],)):
        return None
    sources, query_sources = (frozenset(projections(subject, one.sources)) for one in (key, query))
    return DecodingStep(own, queries, keys, sources, query_sources) if sources and query_sources else None


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
    """Return whether queries or keys depend on another argument than by way of their projections, such as positions."""
    ends = step.sources | step.query_sources
    wanted: set[Producer] = {source for operand in step.own[:2] for source in operand.sources}
    seen = set[Producer]()
    while wanted:
        source = wanted.pop()
        seen.add(source)
        if isinstance(source, OutputRef) and source not in ends:
            event = subject.graph.node(source)
            wanted |= (event.producers if reads_numbers(event) else set()) - seen
    return not seen.isdisjoint(subject.base.inputs)


def _in_order(
    subject: Subject, chains: Sequence[list[DecodingStep]], fills: Mapping[OutputRef, Replace], run: ReplayRun
) -> Iterator[list[DecodingStep]]:
    """Yield the chains whose last keys are those of all steps, one step after the other.

    In each run the steps whose number has a certain bit get another vector.
    """
    most = max(map(len, chains))
    fits = dict.fromkeys(range(len(chains)), True)
    for bit in range(most.bit_length()):
        results = dict(fills)
        expected: list[set[int]] = []
        for chain in chains:
            other = partial(filled_with, random_vector(chain[0].width, 5))
            known, rows = frozenset[OutputRef](), set[int]()
            for number, step in enumerate(chain, 1):
                if number >> bit & 1:
                    results |= dict.fromkeys(step.sources - known, other)
                    rows |= set(range(step.keys - step.queries, step.keys))
                known |= step.sources
            expected.append(rows)
        changed = subject.experiment.run(Intervention(results=results))
        if not changed.follows(subject.base):
            return
        for place, (chain, rows) in enumerate(zip(chains, expected, strict=True)):
            last = chain[-1]
            key = last.own[1]
            difference = (last.rows(key, changed) - last.rows(key, run)).abs() > _CHANGED
            fits[place] = fits[place] and changed_indices(difference, 0) == rows
    yield from (chain for place, chain in enumerate(chains) if fits[place])
