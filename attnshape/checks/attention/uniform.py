"""Runs in which every token has the same query, key and value, so that only positions can make them differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.operands import AttentionOperand, OperandRole, has_lone_query, projections
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.visibility import explain_visibility
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import CONVOLUTIONS, CREATED_LIKE, DATA_MOVEMENT, JOINS, SELECTIONS, SPLITS

_MOST = 1e-7
_MOST_KEPT = 2**24
"""How many bytes the results of a run may have that is kept for other rules."""
SAME = 1e-6
"""The relative rounding error of norms and products."""
MIXED = 1e-2
"""The relative difference from which numbers differ for certain, though tables of angles may have few digits."""


@dataclass(frozen=True)
class PositionMap:
    """What happens to the vectors at the positions between their last equal copies and a product."""

    linear: bool
    """Whether each token's vector is a linear map of the same token's vector."""
    keeps_angles: bool
    """Whether the lengths of two vectors change by the same factor at each position, as under a rotation."""
    partners: Mapping[int, frozenset[int]]
    """For each feature that was changed, the features that then differ."""

    @property
    def mixes(self) -> bool:
        """Whether it is a linear map that mixes features; a gate or a scale doesn't."""
        return self.linear and any(len(features) > 1 for features in self.partners.values())

    @property
    def pairs(self) -> set[frozenset[int]]:
        """The pairs of features that are mixed with each other."""
        return {features for features in self.partners.values() if len(features) == 2}


@dataclass(frozen=True)
class UniformRun:
    """One such run, with the intervention that made it."""

    subject: Subject
    own: tuple[AttentionOperand, ...]
    """The query, the key and the value of the attention."""
    run: ReplayRun
    change: Intervention
    vector: Tensor

    def repeated(self, width: int) -> Tensor:
        """Return the vector as it fills so many features: complex numbers have twice as many."""
        return self.vector.repeat(width // self.vector.numel())

    def width(self, operand: AttentionOperand) -> int:
        """Return the axis of an operand that holds one vector."""
        last = operand.value.ndim - 1
        if isinstance(operand.core, FusedCore):
            return last
        if operand.role != "value" and operand.contracted:
            return operand.contracted[0]
        return next((axis for axis in range(last, -1, -1) if operand.value.shape[axis] == self.vector.numel()), last)

    def tokens(self, operand: AttentionOperand) -> int | None:
        """Return the axis of an operand that holds its tokens."""
        numbers = {self.subject.numbers[symbol] for symbol in self.subject.lengths}
        known = set(self.subject.numbers.values()) - numbers
        shape = operand.value.shape
        axes = [axis for axis in range(len(shape)) if axis != self.width(operand)]
        exact = [axis for axis in axes if shape[axis] in numbers]
        own = self._own_axes(operand)
        if operand.role == "query" and not exact and has_lone_query(self.subject, operand.core):
            return None
        # a single token has no such axis
        others = [axis for axis in axes if shape[axis] not in known and shape[axis] > 1] if own else []
        certain = own if len(own) == 1 else []  # micro-batches have a size of their own, too
        # part of a length may be as long as there are heads
        twice = [axis for axis in axes if shape[axis] in shape[:axis]]
        window = [axis for axis in own if shape[axis] == self.subject.numbers.get("W")]
        return next(iter([*exact, *certain, *window, *others, *twice, *own]), None)

    def others(self, operand: AttentionOperand) -> list[tuple[str, int]]:
        """Return the axes that hold heads or the batch, with their symbols."""
        symbols = {self.subject.numbers.get(symbol): symbol for symbol in ("B", "Hkv", "H")}
        known = (self.width(operand), self.tokens(operand))
        sizes = [(axis, size) for axis, size in enumerate(operand.value.shape) if axis not in known and size > 1]
        return [(symbols.get(size, str(size)), axis) for axis, size in sizes]

    def new_rows(self, operand: AttentionOperand) -> int:
        """Return how many tokens of an operand got the vector: those of a cache and unused slots didn't."""
        return len(self._filled[operand.role]) if self.tokens(operand) is not None else 0

    def filled(self, operand: AttentionOperand) -> tuple[int, int]:
        """Return the first token of an operand that got the vector, and the one after the last."""
        tokens = self._filled[operand.role] if self.tokens(operand) is not None else []
        return (tokens[0], tokens[-1] + 1) if tokens else (0, 0)

    @cached_property
    def _filled(self) -> Mapping[OperandRole, Sequence[int]]:
        return {operand.role: self._filled_tokens(operand) for operand in self.own}

    def _filled_tokens(self, operand: AttentionOperand) -> Sequence[int]:
        """Return the tokens that got the vector, in order."""
        axis = self.tokens(operand)
        size = operand.value.shape[axis] if axis is not None else 0
        if axis is not None and _differs(operand.of(self.run), axis) and self._with_another_vector is not None:
            change = operand.of(self._with_another_vector) - operand.of(self.run)
            tokens = changed_indices(change.abs() > _MOST, axis)
            if tokens:
                return sorted(tokens)
        past = self.subject.past_size
        has_cache = size in {past + self.subject.numbers.get(symbol, 0) for symbol in ("L", "Lq", "Lk")}
        return range(past if has_cache and size > past else 0, size)

    @cached_property
    def _with_another_vector(self) -> ReplayRun | None:
        def fill(value: Tensor) -> Tensor:
            width = self.vector.numel()
            # inputs from which keys are projected have widths of their own
            return filled_with(random_vector(value.shape[-1] if value.shape[-1] % width else width, 5), value)

        results, inputs = dict.fromkeys(self.change.results, fill), dict.fromkeys(self.change.inputs, fill)
        run = self.subject.experiment.run(replace(self.change, inputs=inputs, results=results))
        return run if run.follows(self.subject.base) else None

    def varies(self, operand: AttentionOperand, axis: int | None) -> bool:
        """Return whether the vectors differ along an axis."""
        tokens = self.tokens(operand)
        if axis is None or tokens is None:
            return False
        filled = torch.tensor(self._filled[operand.role], dtype=torch.long)
        return _differs(operand.of(self.run).index_select(tokens, filled), axis)

    def rows(self, operand: AttentionOperand, run: ReplayRun | None = None) -> Tensor | None:
        """Return the vectors of the first head and batch element, (tokens, width), unused slots left out.

        They are those of this run, or of another one.
        """
        axis = self.tokens(operand)
        if axis is None:
            return None
        value = _real(operand, operand.of(run or self.run).movedim((axis, self.width(operand)), (-2, -1)))
        return value.reshape(-1, *value.shape[-2:])[0, [*range(self.filled(operand)[0]), *self._filled[operand.role]]]

    def changes_length(self, operand: AttentionOperand) -> bool:
        """Return whether the vectors at the new tokens differ in length, which rotations keep."""
        rows = self.rows(operand)
        assert rows is not None
        lengths = rows[rows.shape[0] - self.new_rows(operand) :].square().sum(-1).sqrt()
        return float((lengths - lengths[0]).abs().max()) > self.precision * float(lengths[0].abs())

    @cached_property
    def precision(self) -> float:
        """The relative rounding error of queries and keys: that of tables of angles that have few digits is larger."""
        upstream = [event for operand in self.own[:2] for event in self.subject.graph.upstream(operand.sources)]
        halves = (torch.float16, torch.bfloat16)
        return MIXED if any(value.dtype in halves for event in upstream for value in event.values) else SAME

    def pair(self, operand: AttentionOperand) -> tuple[int, int] | None:
        """Return the two features that a change of the first one reaches; None if it reaches fewer or more.

        The first one is among them, unless features are moved before they are rotated.
        """
        before, run = self.rows(operand), self._with_first_feature_changed
        after = self.rows(operand, run) if run.follows(self.subject.base) else None
        if before is None or after is None:
            return None
        features = changed_indices((after - before).abs() > _MOST, -1)
        if len(features) > 2:
            # a normalisation changes all features: by one factor, or before the vectors are rotated
            features = _not_scaled_alike(before, after)
        if len(features) > 2 and (mapping := self.maps.get(operand.role)) is not None and mapping.linear:
            features = set(mapping.partners.get(0, ()))
        return (min(features), max(features)) if len(features) == 2 else None

    @cached_property
    def _with_first_feature_changed(self) -> ReplayRun:
        width = self.vector.numel()
        results = {ref: partial(_nudge, fill, width) for ref, fill in self.change.results.items()}
        inputs = {name: partial(_nudge, fill, width) for name, fill in self.change.inputs.items()}
        return self.subject.experiment.run(replace(self.change, inputs=inputs, results=results))

    def token_axis_is_certain(self, operand: AttentionOperand) -> bool:
        """Return whether the axis of an operand that holds its tokens is the only one that it doesn't share."""
        return self._own_axes(operand) == [self.tokens(operand)]

    def _own_axes(self, operand: AttentionOperand) -> list[int]:
        """Return the axes of an operand over which its product neither sums nor runs together with the other's."""
        if isinstance(operand.core, FusedCore):
            return [operand.value.ndim - 2]
        if operand.role == "value":
            return [axis for axis in operand.core.value.contracted(operand.place) if axis != self.width(operand)]
        scores = operand.core.scores
        free = scores.free(operand.place)
        return [axis for axis, stays in enumerate(scores.axes[operand.place]) if stays & free]

    def mixes(self, operand: AttentionOperand) -> bool:
        """Return whether positions change an operand's vectors by a linear map that mixes features."""
        return operand.role in self.maps and self.maps[operand.role].mixes

    @cached_property
    def maps(self) -> Mapping[OperandRole, PositionMap]:
        """What positions do to the vectors, for each operand whose vectors differ, as far as that can be told."""
        axes = {
            operand.role: [self.tokens(operand), *(axis for _, axis in self.others(operand))] for operand in self.own
        }
        varying = [operand for operand in self.own if any(self.varies(operand, axis) for axis in axes[operand.role])]
        starts = {operand.role: start for operand in varying if (start := self._last_equal(operand)) is not None}
        judged = [operand for operand in varying if operand.role in starts]
        other = random_vector(self.vector.numel(), 4)
        second = self._rerun(starts.values(), partial(filled_with, other))
        total = self._rerun(starts.values(), lambda value: value + filled_with(other, value))
        nudged = list(self._nudged(starts)) if second is not None and total is not None else []
        if second is None or total is None or any(run is None for run, _ in nudged):
            return {}
        maps: dict[OperandRole, PositionMap] = {}
        for operand in judged:
            before = self._vectors(operand, self.run)
            one, two, both = (self._vectors(operand, run) for run in (self.run, second, total))
            is_sum = bool(torch.isclose(one + two, both, rtol=0, atol=MIXED * float(both.abs().max())).all())
            gains = [vectors.norm(dim=-1) / vectors[:, :1].norm(dim=-1) for vectors in (one, two)]
            apart = False
            partners: dict[int, frozenset[int]] = {}
            for run, changed in nudged:
                assert run is not None
                differing = ((self._vectors(operand, run) - before).abs() > _MOST).any(0)
                unchanged = [token for token in range(before.shape[1]) if token not in changed]
                apart = apart or bool(differing[unchanged].any())
                for token, feature in changed.items():
                    if token < differing.shape[0]:
                        reached = changed_indices(differing[token], 0)
                        partners[feature] = frozenset(reached) | partners.get(feature, frozenset())
            maps[operand.role] = PositionMap(
                linear=is_sum and not apart,
                keeps_angles=bool(torch.isclose(gains[0], gains[1], rtol=MIXED).all()),
                partners=partners,
            )
        return maps

    def _vectors(self, operand: AttentionOperand, run: ReplayRun) -> Tensor:
        """Return the new vectors of an operand in a run, (heads and batch elements, tokens, width)."""
        axis = self.tokens(operand)
        assert axis is not None
        value = _real(operand, operand.of(run).movedim((axis, self.width(operand)), (-2, -1)))
        return value.reshape(-1, *value.shape[-2:])[:, [*self._filled[operand.role]]]

    def _last_equal(self, operand: AttentionOperand) -> tuple[Producer, int] | None:
        """Return the last result from which alone an operand comes and whose vectors are equal, with its token axis."""
        graph = self.subject.graph
        filled: set[Producer] = {*self.change.results, *self.change.inputs}
        ends = {producer.order for producer in filled if isinstance(producer, OutputRef)}
        count = self.new_rows(operand)
        candidates: list[tuple[Producer, Tensor]] = []
        for event in graph.upstream(operand.sources):
            if len(event.refs) == 1 and event.name not in CREATED_LIKE:
                candidates.append((event.refs[0], self.run.value(event.refs[0])))
            if event.order in ends:
                break
        candidates += [(name, self.run.inputs[name]) for name in sorted(self.change.inputs)]
        for producer, value in candidates:
            axes = [axis for axis, size in enumerate(value.shape[:-1]) if size == count]
            if len(axes) != 1 or not value.is_floating_point() or value.shape[-1] % self.vector.numel():
                continue
            is_equal = not any(_differs(value, axis) for axis in range(value.ndim - 1))
            if is_equal and self._depends_only_on(operand, producer, filled):
                return producer, axes[0]
        return None

    def _depends_only_on(self, operand: AttentionOperand, producer: Producer, filled: set[Producer]) -> bool:
        """Return whether an operand depends on what was filled, and only by way of one result."""
        reached = self._reached(operand, producer)
        downstream = filled if producer in filled else self.subject.graph.downstream(filled)
        return producer in reached & downstream and reached.isdisjoint(filled - {producer})

    def _reached(self, operand: AttentionOperand, end: Producer) -> set[Producer]:
        """Return the producers on which an operand depends, those left out on which only `end` depends."""
        wanted, reached = set(operand.sources), set[Producer]()
        while wanted:
            source = wanted.pop()
            reached.add(source)
            if source != end and isinstance(source, OutputRef):
                event = self.subject.graph.node(source)
                wanted |= (event.producers if reads_numbers(event) else set()) - reached
        return reached

    def has_given_tables(self, operand: AttentionOperand) -> bool:
        """Return whether the positions come by way of an input whose numbers aren't cosines and sines."""
        start = self._last_equal(operand)
        if start is None:
            return False
        of_start = {start[0], *self.subject.graph.origins((start[0],))}
        names = self._reached(operand, start[0]) & self.subject.base.inputs.keys() - of_start
        past = self.subject.past_size
        every = (self.subject.base.inputs[str(name)] for name in names)
        given = [value for value in every if past not in value.shape]
        tables = [value for value in given if value.is_floating_point() or value.is_complex()]
        squares = [value.abs().double().square() for value in tables]
        sums = [a + b for a, b in itertools.combinations(squares, 2) if a.shape == b.shape]
        return bool(tables) and not any(
            bool(torch.isclose(total, total.flatten()[:1], rtol=MIXED).all())
            for total in (*sums, *(one for one, value in zip(squares, tables, strict=True) if value.is_complex()))
        )

    def _nudged(
        self, starts: Mapping[OperandRole, tuple[Producer, int]]
    ) -> Iterator[tuple[ReplayRun | None, dict[int, int]]]:
        """Yield runs in which every second token is changed in one feature, with these tokens and their features.

        The first token is left alone, since rotations by its position often do nothing.
        """
        width = self.vector.numel()
        tokens = max((self._size(producer, axis) for producer, axis in starts.values()), default=0)
        step = max(tokens - 1, 1)
        # of wide heads the first, the middle and the last features: partners in either layout are among them
        firsts = range(0, width, step) if width <= 3 * step else (0, width // 2, width - step)
        for first in firsts if tokens > 1 else ():
            for odd in (0, 1):
                features = {token: first + token - 1 for token in range(1, tokens) if token % 2 == odd}
                changed = {token: feature for token, feature in features.items() if feature < width}
                if changed:
                    changes = {
                        producer: partial(_nudge_tokens, changed, axis, width) for producer, axis in starts.values()
                    }
                    yield self._rerun_each(changes), changed

    def _size(self, producer: Producer, axis: int) -> int:
        value = self.run.value(producer) if isinstance(producer, OutputRef) else self.run.inputs[producer]
        return value.shape[axis]

    def _rerun(self, starts: Iterable[tuple[Producer, int]], change: Replace) -> ReplayRun | None:
        return self._rerun_each({producer: change for producer, _ in starts})

    def _rerun_each(self, changes: Mapping[Producer, Replace]) -> ReplayRun | None:
        """Return the run with further changes of some results or inputs; None if it takes another path."""
        results, inputs = dict(self.change.results), dict(self.change.inputs)
        for producer, change in changes.items():
            if isinstance(producer, OutputRef):
                results[producer] = _after(results.get(producer), change)
            else:
                inputs[producer] = _after(inputs.get(producer), change)
        run = self.subject.experiment.run(replace(self.change, inputs=inputs, results=results))
        return run if run.follows(self.subject.base) else None

    def rejoined(self, operand: AttentionOperand) -> OutputRef | None:
        """Return the call that joins features in another order than they were split in to be paired, if one does."""
        mapping = self.maps.get(operand.role)
        if mapping is None or all(mapping.partners.get(one, pair) == pair for pair in mapping.pairs for one in pair):
            return None
        downstream = self.subject.graph.downstream({*self.change.results, *self.change.inputs})
        for event in self.subject.graph.upstream(operand.sources):
            value = self.run.value(event.refs[0])
            is_equal = not any(_differs(value, axis) for axis in range(value.ndim - 1))
            if event.name in JOINS and event.refs[0] in downstream and is_equal:
                return event.refs[0]
        return None

    def first_varying(self, operand: AttentionOperand) -> OutputRef | None:
        """Return the first call before an operand whose result differs along an axis where it shouldn't."""
        graph = self.subject.graph
        downstream = graph.downstream(set(self.change.inputs))
        downstream |= {ref for start in self.change.results for ref in graph.downstream_of(start) - {start}}
        for event in reversed(list(graph.upstream(operand.sources))):
            ref = event.refs[0]
            value = self.run.value(ref)
            if event.name in DATA_MOVEMENT or not (value.is_floating_point() or value.is_complex()):
                continue
            axes = [axis for axis, size in enumerate(value.shape[:-1]) if size > 1]
            if ref in downstream and any(_differs(value, axis) for axis in axes):
                return ref
        return None


def uniform_run(
    subject: Subject, own: Sequence[AttentionOperand], others: Mapping[str, Replace] | None = None
) -> UniformRun | None:
    """Return the run in which the queries, keys and values of one attention are the same vector everywhere.

    `others` replaces further inputs. Without them, several rules need the same run, which is made once if it is small.
    """
    if others or subject.experiment.bytes > _MOST_KEPT:
        return _made_uniform(subject, own, others or {})
    known, place = _uniform_runs(subject), tuple(map(id, own))
    if place not in known:
        known[place] = _made_uniform(subject, own, {}), own
    same, _ = known[place]
    if same is not None:
        # what the caller verifies depends on these inputs, whoever has made the run
        subject.experiment.varies_inputs |= bool(same.change.inputs)
    return same


@once
def _uniform_runs(subject: Subject) -> dict[tuple[int, ...], tuple[UniformRun | None, Sequence[AttentionOperand]]]:
    """Return the runs made so far by the identities of their operands, which are held so that these stay their own."""
    return {}


def _made_uniform(
    subject: Subject, own: Sequence[AttentionOperand], others: Mapping[str, Replace]
) -> UniformRun | None:
    vector = random_vector(own[0].width, 3)

    def fill(value: Tensor) -> Replace | None:
        return None if value.shape[-1] % vector.numel() else partial(filled_with, vector)

    return _filled_run(subject, own, others, vector, fill)


def equal_tokens_run(subject: Subject, own: Sequence[AttentionOperand]) -> UniformRun | None:
    """Return the run in which all tokens are equal, and heads need not be.

    There is one also where vectors are joined from parts of other widths, as with a rotation of some features only.
    """
    vector = random_vector(own[0].width, 3)
    return _filled_run(subject, own, {}, vector, lambda value: partial(filled_with, random_vector(value.shape[-1], 3)))


def _filled_run(
    subject: Subject,
    own: Sequence[AttentionOperand],
    others: Mapping[str, Replace],
    vector: Tensor,
    fill_of: Callable[[Tensor], Replace | None],
) -> UniformRun | None:
    """Return the run in which the projections, or the inputs, of one attention are filled; None if one can't be."""
    query = own[0]
    if len(query.contracted) != 1:
        return None
    results: dict[OutputRef, Replace] = {}
    inputs: dict[str, Replace] = {}
    gains: set[str] = set()
    for operand in own:
        refs = projections(subject, operand.sources)
        origins = subject.graph.origins(operand.sources)
        gains |= {name for name in origins if _is_of_features(subject, name, query.width)}
        start = max((ref.order for ref in refs), default=0)
        if any(event.name in CONVOLUTIONS and event.order > start for event in subject.graph.upstream(operand.sources)):
            return None  # it has channels of its own for every head
        names = origins & set(subject.inputs) if not refs else set()
        past = subject.past_size
        producers: set[Producer] = {*refs, *names}
        for producer in producers:
            value = subject.inputs[producer] if isinstance(producer, str) else subject.base.value(producer)
            fill = fill_of(value)
            if isinstance(producer, OutputRef):
                fills = {producer: fill} if fill is not None else _filled_parts(subject, operand, producer, fill_of)
                if not fills:
                    return None
                results |= fills
            elif fill is None:
                return None
            elif past not in value.shape:
                inputs[producer] = fill
    if not results and not inputs:  # what differs then are the data
        return None
    # else queries and keys that have norms of their own would be different vectors
    parameters = dict.fromkeys(gains, torch.ones_like)
    change = Intervention(inputs={**others, **inputs}, parameters=parameters, results=results)
    run = subject.experiment.run(change)
    return UniformRun(subject, tuple(own), run, change, vector) if run.follows(subject.base) else None


def _filled_parts(
    subject: Subject, operand: AttentionOperand, projection: OutputRef, fill_of: Callable[[Tensor], Replace | None]
) -> dict[OutputRef, Replace]:
    """Return how the part of a projection is filled from which an operand comes; nothing if that can't be.

    One projection may make queries, keys, values, and what a feed-forward network beside attention reads.
    """
    wanted = set(operand.sources).union(*(event.producers for event in subject.graph.upstream(operand.sources)))
    reading = [event for event, _ in subject.graph.consumers.get(projection, ()) if not wanted.isdisjoint(event.refs)]
    parts = [ref for event in reading for ref in event.refs if ref in wanted]
    fills = {ref: fill for ref in parts if (fill := fill_of(subject.base.value(ref))) is not None}
    is_split = all(event.name in SPLITS | SELECTIONS for event in reading)
    return fills if is_split and len(fills) == len(parts) else {}


def _is_of_features(subject: Subject, name: str, width: int) -> bool:
    """Return whether a parameter has one number for each feature, as a gain or a bias, of all heads or of each."""
    if name not in subject.parameters:
        return False
    *heads, features = subject.parameters[name].shape or (0,)
    if not heads:
        return features % width == 0
    return features == width and math.prod(heads) in {1, subject.numbers.get("H"), subject.numbers.get("Hkv")}


def depends_on_distance(same: UniformRun) -> bool:
    """Return whether the scores of equal queries and keys differ, and depend on their distance alone.

    What is equal for all keys of a query doesn't count, since the softmax cancels it.
    """
    return _steps_by_distance(same) is not None


def scores_by_distance(same: UniformRun) -> Tensor | None:
    """Return the scores of the last query for equal keys, (heads, distances), from its own key on backwards.

    They end before the first key that it doesn't see. None if they don't depend on the distance, and on it alone.
    """
    found = _steps_by_distance(same)
    if found is None:
        return None
    seen, scores = (value[0, :, -1].flip(-1) for value in found)
    hidden = (~seen).any(0).nonzero().flatten().tolist()
    return scores[:, : min([*hidden, scores.shape[-1]])]


def _steps_by_distance(same: UniformRun) -> tuple[Tensor, Tensor] | None:
    """Return which new keys each query sees, and the scores, if these depend on the distance alone."""
    key = same.own[1]
    explained, _ = explain_visibility(same.subject)
    visible = next((one.visible for one in explained if one.visible.core is key.core), None)
    scores = visible.scores_in(same.run) if visible is not None else None
    if visible is None or scores is None or scores.shape != visible.keys.shape:
        return None
    cached, _ = same.filled(key)
    seen, scores = visible.keys[..., cached:], scores[..., cached:]
    both = seen[..., 1:] & seen[..., :-1]
    steps = torch.where(both, scores[..., 1:] - scores[..., :-1], 0.0)
    compared = both[..., 1:, 1:] & both[..., :-1, :-1]
    least = SAME * max(float(scores[seen].abs().max()) if bool(seen.any()) else 0.0, 1.0)
    same_steps = (steps[..., 1:, 1:] - steps[..., :-1, :-1]).abs() <= least
    is_by_distance = bool(compared.any()) and bool(same_steps[compared].all()) and bool((steps.abs() > least).any())
    return (seen, scores) if is_by_distance else None


def _real(operand: AttentionOperand, value: Tensor) -> Tensor:
    """Return vectors in double precision, those of complex numbers as adjacent features.

    The real part of a product of complex numbers is the product of a query's features and those of the conjugate key.
    """
    if not value.is_complex():
        return value.double()
    value = value.conj() if operand.role == "key" else value
    return torch.view_as_real(value.to(torch.complex128).resolve_conj()).flatten(-2)


def random_vector(width: int, seed: int) -> Tensor:
    """Return a random vector that is the same for the same seed."""
    return torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled_with(vector: Tensor, value: Tensor) -> Tensor:
    """Return a tensor of the value's shape and dtype that repeats a vector along its last axis."""
    return vector.to(value.dtype).repeat(value.shape[-1] // vector.numel()).expand(value.shape).clone()


def _not_scaled_alike(before: Tensor, after: Tensor) -> set[int]:
    """Return the features that aren't multiplied by the factor by which most features of the same token are."""
    factors = torch.median(after / before, dim=-1, keepdim=True).values
    return changed_indices((after - before * factors).abs() > _MOST, -1)


def _nudge(fill: Replace, width: int, value: Tensor) -> Tensor:
    filled = fill(value)
    filled[..., ::width] += 0.5
    return filled


def _nudge_tokens(changed: Mapping[int, int], axis: int, width: int, value: Tensor) -> Tensor:
    for token, feature in changed.items():
        value.select(axis, token)[..., feature::width] += 0.5
    return value


def _after(first: Replace | None, second: Replace) -> Replace:
    """Return the replacement that applies two, one after the other."""
    return second if first is None else lambda value: second(first(value))


def _differs(value: Tensor, axis: int) -> bool:
    return bool(((value - value.narrow(axis, 0, min(1, value.shape[axis]))).abs() > _MOST).any())
