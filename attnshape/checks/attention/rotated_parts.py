"""Runs in which the rotated parts of queries and keys are one vector everywhere, where heads have other parts too.

In latent attention (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, equations 14 to 18) a head is joined from a
part that isn't rotated and a rotated one, whose keys all heads share; or the scores of both parts are added.
Projections then hold no whole heads, and can't be filled with one vector. Where all tokens have the same projections,
the features that differ between tokens are the rotated ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.operands import AttentionOperand, projections
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.uniform import SAME, UniformRun, filled_with, random_vector
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace
from attnshape.tracing.operations import CONVOLUTIONS

_DIFFERS = 1e-7
_Own = Sequence[AttentionOperand]


@dataclass(frozen=True)
class HeadPart(AttentionOperand):
    """Some adjacent features of queries or keys."""

    axis: int
    begin: int
    count: int

    @property
    def value(self) -> Tensor:
        """The features' value."""
        return self._part(super().value)

    def of(self, run: ReplayRun) -> Tensor:
        """Return the features' value in another run."""
        return self._part(super().of(run))

    def _part(self, value: Tensor) -> Tensor:
        return value.narrow(self.axis, self.begin, self.count)


@dataclass(frozen=True)
class RotatedParts:
    """The rotated parts of the queries and keys of one attention."""

    same: UniformRun | None
    """The run in which both are the same vector at every token; None if nothing is rotated."""
    value_varies: bool
    """Whether values differ between tokens that have the same projections."""
    apart: RotatedApart | None = None
    """The rotated features of both, if their product doesn't multiply them with each other."""


@dataclass(frozen=True)
class RotatedApart:
    """Features of queries and of keys that are rotated, of which some meet features that aren't."""

    key: AttentionOperand
    of_queries: frozenset[int]
    of_keys: frozenset[int]


@dataclass(frozen=True)
class _Observed:
    """Which features of queries and keys differ between tokens that have the same projections."""

    alike: UniformRun
    pairs: Sequence[tuple[AttentionOperand, AttentionOperand]]
    features: Sequence[tuple[set[int], set[int]]]

    @property
    def apart(self) -> RotatedApart | None:
        """The features of the first pair that differ in number alike, but not at the same places."""
        for (_, key), (of_query, of_key) in zip(self.pairs, self.features, strict=True):
            if of_query != of_key and len(of_query) == len(of_key):
                return RotatedApart(key, frozenset(of_query), frozenset(of_key))
        return None


def is_joined(subject: Subject, own: _Own) -> bool:
    """Return whether queries and keys are joined from several parts, or the scores of several parts are added."""
    core = own[0].core
    if isinstance(core, Core) and core.more_scores:
        return True
    of_each = (projections(subject, operand.sources) for operand in own[:2])
    return any(len({subject.base.value(ref).shape[-1] for ref in refs}) > 1 for refs in of_each)


def rotated_apart(subject: Subject, own: _Own) -> RotatedApart | None:
    """Return the rotated features of queries and of keys if their product doesn't multiply them with each other."""
    observed = _observed(subject, own)
    return observed.apart if observed is not None else None


def rotated_parts(subject: Subject, own: _Own) -> RotatedParts | None:
    """Return the rotated parts of the queries and keys of one attention; None if they can't be told."""
    observed = _observed(subject, own)
    if observed is None:
        return None
    alike = observed.alike
    found = [
        (pair, varying)
        for pair, features in zip(observed.pairs, observed.features, strict=True)
        if (varying := set.union(*features))
    ]
    value_varies = bool(_varying(alike, own[2]))
    if not found or observed.apart is not None:
        return RotatedParts(None, value_varies, observed.apart)
    (pair, varying), *others = found
    begin, count = min(varying), len(varying)
    if others or varying != set(range(begin, begin + count)) or count % 2:
        return None
    narrowest = min(one.value.shape[one.contracted[0]] for one in pair)
    # a rotation of an odd number of features leaves the last one as it is
    for width in range(count, min(count + 1, narrowest - begin) + 1):
        parts = [HeadPart(one.role, one.core, one.event, one.place, one.contracted[0], begin, width) for one in pair]
        same = _filled(alike, parts)
        if same is not None:
            return RotatedParts(same, value_varies)
    return None


def _observed(subject: Subject, own: _Own) -> _Observed | None:
    pairs = list(score_pairs(subject, own))
    if any(len(operand.contracted) != 1 for pair in pairs for operand in pair):
        return None
    alike = _with_equal_tokens(subject, [*(operand for pair in pairs for operand in pair), own[2]])
    if alike is None:
        return None
    features = []
    for query, key in pairs:
        of_query, of_key = _varying(alike, query), _varying(alike, key)
        if of_query is None or of_key is None:
            return None
        features.append((of_query, of_key))
    return _Observed(alike, pairs, features)


def _with_equal_tokens(subject: Subject, own: _Own) -> UniformRun | None:
    """Return the run in which every token of the projections, or of inputs without any, is the first one."""
    results: dict[OutputRef, Replace] = {}
    inputs: dict[str, Replace] = {}
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    for operand in own:
        refs = projections(subject, operand.sources)
        start = max((ref.order for ref in refs), default=0)
        if any(event.name in CONVOLUTIONS and event.order > start for event in subject.graph.upstream(operand.sources)):
            return None
        names = subject.graph.origins(operand.sources) & set(subject.inputs) if not refs else set()
        past = subject.past_size
        names = {name for name in names if past not in subject.inputs[name].shape}
        values: dict[Producer, Tensor] = {**{ref: subject.base.value(ref) for ref in refs}}
        values |= {name: subject.inputs[name] for name in names}
        for producer, value in values.items():
            axes = [axis for axis, size in enumerate(value.shape[:-1]) if size in lengths]
            if len(axes) != 1:
                return None
            change = partial(_first_everywhere, axes[0])
            if isinstance(producer, OutputRef):
                results[producer] = change
            else:
                inputs[producer] = change
    if not results and not inputs:
        return None
    intervention = Intervention(inputs=inputs, results=results)
    run = subject.experiment.run(intervention)
    vector = random_vector(1, 3)
    return UniformRun(subject, tuple(own), run, intervention, vector) if run.follows(subject.base) else None


def _first_everywhere(axis: int, value: Tensor) -> Tensor:
    return value.narrow(axis, 0, 1).expand(value.shape).clone()


def score_pairs(subject: Subject, own: _Own) -> Iterator[tuple[AttentionOperand, AttentionOperand]]:
    """Yield the queries and the keys of each product whose results are added to the scores."""
    query, key = own[:2]
    yield query, key
    core = query.core
    if isinstance(core, FusedCore):
        return
    of_keys = core.scores.free(key.place)
    for product in core.more_scores:
        alone = replace(core, scores=product, more_scores=())
        is_left = bool(of_keys & product.free(product.left))
        places = (product.right, product.left) if is_left else (product.left, product.right)
        if product.result.ndim == core.scores.result.ndim:
            yield (
                AttentionOperand("query", alone, product.first, places[0]),
                AttentionOperand("key", alone, product.first, places[1]),
            )


def _varying(alike: UniformRun, operand: AttentionOperand) -> set[int] | None:
    """Return the features in which new tokens differ; None if no axis holds tokens."""
    axis = alike.tokens(operand)
    if axis is None:
        return None
    value, past = operand.of(alike.run), alike.subject.past_size
    lengths = {alike.subject.numbers[symbol] for symbol in alike.subject.lengths}
    cached = past if value.shape[axis] - past in lengths and value.shape[axis] not in lengths else 0
    new = value.narrow(axis, cached, value.shape[axis] - cached)
    differs = (new - new.narrow(axis, 0, 1)).abs() > _DIFFERS
    return changed_indices(differs, operand.contracted[0] if operand.role != "value" else alike.width(operand))


def _filled(alike: UniformRun, parts: Sequence[HeadPart]) -> UniformRun | None:
    """Return the run in which what the parts are rotated from is one vector everywhere."""
    subject, vector = alike.subject, random_vector(parts[0].count, 3)
    fill = partial(filled_with, vector)
    starts = [_start(alike, part, vector) for part in parts]
    results = {start: fill for start in starts if isinstance(start, OutputRef)}
    inputs = {start: fill for start in starts if isinstance(start, str)}
    if None in starts:
        return None
    change = Intervention(inputs=inputs, results=results)
    run = subject.experiment.run(change)
    return UniformRun(subject, tuple(parts), run, change, vector) if run.follows(subject.base) else None


def _start(alike: UniformRun, part: HeadPart, vector: Tensor) -> Producer | None:
    """Return the last result, or the input, that holds a part before it is rotated, and alone decides it."""
    graph = alike.subject.graph
    changed: set[Producer] = {*alike.change.results, *alike.change.inputs}
    downstream = graph.downstream(changed)
    for event in graph.upstream(part.sources):
        for ref in event.refs:
            value = alike.run.value(ref)
            is_candidate = ref in downstream and value.is_floating_point() and value.shape[-1:] == vector.shape
            if is_candidate and _is_alike(alike, value) and _decides(alike, part, ref, vector):
                return ref
    names = sorted(alike.change.inputs)
    fits = (name for name in names if alike.subject.inputs[name].shape[-1:] == vector.shape)
    return next((name for name in fits if _decides(alike, part, name, vector)), None)


def _is_alike(alike: UniformRun, value: Tensor) -> bool:
    lengths = {alike.subject.numbers[symbol] for symbol in alike.subject.lengths}
    axes = [axis for axis, size in enumerate(value.shape[:-1]) if size in lengths]
    return any(not bool(((value - value.narrow(axis, 0, 1)).abs() > _DIFFERS).any()) for axis in axes)


def _decides(alike: UniformRun, part: HeadPart, start: Producer, vector: Tensor) -> bool:
    """Return whether a part is twice as long where its start is: nothing else is added to it."""
    found = []
    for times in (1, 2):
        fill = partial(filled_with, vector * times)
        change = (
            Intervention(results={start: fill}) if isinstance(start, OutputRef) else Intervention(inputs={start: fill})
        )
        run = alike.subject.experiment.run(change)
        rows = alike.rows(part, run) if run.follows(alike.subject.base) else None
        if rows is None:
            return False
        cached = alike.subject.past_size
        found.append(rows[cached if rows.shape[0] > cached else 0 :])
    one, two = found
    return bool(one.abs().max() > SAME) and torch.allclose(two, 2 * one, rtol=1e-4, atol=SAME)
