"""Are queries and keys rotated by their positions, in one layout, and is nothing else rotated?

Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 15).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.mistake_lines import helper_call
from attnshape.checks.attention.operands import AttentionOperand, by_attention, projections
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.tracing.operations import COMPLEX_FROM_PAIRS, DATA_MOVEMENT, JOINS, REPEATS

_MOST = 1e-7


@dataclass(frozen=True)
class UniformRun:
    """One such run, with the intervention that made it."""

    subject: Subject
    run: ReplayRun
    change: Intervention
    vector: Tensor

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
        others = [axis for axis in axes if shape[axis] not in known and shape[axis] > 1]
        # part of a length may be as long as there are heads
        twice = [axis for axis in axes if shape[axis] in shape[:axis]]
        return next(iter([*exact, *others, *twice]), None)

    def others(self, operand: AttentionOperand) -> list[tuple[str, int]]:
        """Return the axes that hold heads or the batch, with their symbols."""
        symbols = {self.subject.numbers.get(symbol): symbol for symbol in ("B", "Hkv", "H")}
        known = (self.width(operand), self.tokens(operand))
        sizes = [(axis, size) for axis, size in enumerate(operand.value.shape) if axis not in known and size > 1]
        return [(symbols.get(size, str(size)), axis) for axis, size in sizes]

    def new_rows(self, operand: AttentionOperand) -> int:
        """Return how many tokens of an operand aren't from a cache: the last ones."""
        axis = self.tokens(operand)
        size = operand.value.shape[axis] if axis is not None else 0
        past = self.subject.numbers.get("Lp", 0)
        has_cache = size in {past + self.subject.numbers.get(symbol, 0) for symbol in ("L", "Lq", "Lk")}
        return size - past if has_cache and size > past else size

    def varies(self, operand: AttentionOperand, axis: int | None) -> bool:
        """Return whether the vectors differ along an axis."""
        if axis is None:
            return False
        value = operand.of(self.run)
        rows = self.new_rows(operand) if axis == self.tokens(operand) else value.shape[axis]
        return _differs(value.narrow(axis, value.shape[axis] - rows, rows), axis)

    def rows(self, operand: AttentionOperand) -> Tensor | None:
        """Return the vectors of the first head and batch element, (tokens, width)."""
        axis = self.tokens(operand)
        if axis is None:
            return None
        value = operand.of(self.run).double().movedim((axis, self.width(operand)), (-2, -1))
        return value.reshape(-1, *value.shape[-2:])[0]

    def lengths(self, operand: AttentionOperand) -> Tensor:
        """Return the length of the vector at each new token."""
        rows = self.rows(operand)
        assert rows is not None
        return rows[rows.shape[0] - self.new_rows(operand) :].square().sum(-1).sqrt()

    def partner(self, operand: AttentionOperand) -> int | None:
        """Return the feature with which the first one is rotated; None if there is none, or several."""
        before, width = self.rows(operand), self.vector.numel()
        results = {ref: partial(_nudge, fill, width) for ref, fill in self.change.results.items()}
        inputs = {name: partial(_nudge, fill, width) for name, fill in self.change.inputs.items()}
        run = self.subject.experiment.run(Intervention(inputs=inputs, results=results))
        after = replace(self, run=run).rows(operand) if run.follows(self.subject.base) else None
        if before is None or after is None:
            return None
        features = changed_indices((after - before).abs() > _MOST, -1) - {0}
        return features.pop() if len(features) == 1 else None

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


def uniform_run(subject: Subject, own: Sequence[AttentionOperand]) -> UniformRun | None:
    """Return the run in which the queries, keys and values of one attention are the same vector everywhere."""
    query = own[0]
    if len(query.contracted) != 1:
        return None
    width = query.value.shape[query.contracted[0]]
    vector = torch.randn(width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    fill = partial(_fill, vector)
    results: dict[OutputRef, Replace] = {}
    inputs: dict[str, Replace] = {}
    for operand in own:
        refs = projections(subject, operand.sources)
        names = subject.graph.origins(operand.sources) & set(subject.inputs) if not refs else set()
        values = [*map(subject.base.value, refs), *(subject.inputs[name] for name in names)]
        if any(value.shape[-1] % width for value in values):
            return None
        results |= dict.fromkeys(refs, fill)
        past = subject.numbers.get("Lp")
        inputs |= dict.fromkeys((name for name in names if past not in subject.inputs[name].shape), fill)
    change = Intervention(inputs=inputs, results=results)
    run = subject.experiment.run(change)
    return UniformRun(subject, run, change, vector) if run.follows(subject.base) else None


def _fill(vector: Tensor, value: Tensor) -> Tensor:
    return vector.to(value.dtype).repeat(value.shape[-1] // vector.numel()).expand(value.shape).clone()


def _nudge(fill: Replace, width: int, value: Tensor) -> Tensor:
    filled = fill(value)
    filled[..., ::width] += 0.5
    return filled


def _differs(value: Tensor, axis: int) -> bool:
    first = value.narrow(axis, 0, 1)
    return bool(((value - first).abs() > _MOST).any())


CODES: tuple[str, ...] = ("AS701", "AS702", "AS703", "AS704", "AS705", "AS708")
TOPIC = "rotary position embeddings"
_CLAIM = ("rope",)
_SAME_VECTOR = "gave every token, head and batch element the same vector"
_SAME = 1e-6
"""The relative rounding error of norms and products."""


def check(subject: Subject) -> Iterator[Outcome]:
    """Give all tokens and heads of queries, keys and values the same vector, and look at how positions change it."""
    if subject.claims.rope is None:
        return
    judged: list[AttentionOperand] = []
    rotated = skipped = False
    for query, key, value in by_attention(subject):
        same = uniform_run(subject, (query, key, value))
        if same is None or same.tokens(query) is None or same.tokens(key) is None:
            skipped = True
            continue
        judged.append(query)
        rotated = rotated or any(same.varies(operand, same.tokens(operand)) for operand in (query, key))
        violation = next(_violations(same, query, key, value), None)
        if violation is not None:
            yield violation
            return
    violation = _cached(subject)
    if violation is not None:
        yield violation
    elif judged and not rotated and not skipped:
        message = "neither queries nor keys are rotated: the same vector is equal at every position"
        hint = "rotate both by their positions before their product"
        yield Violation("AS708", message, OutputRef(judged[0].event.order), hint, _SAME_VECTOR, claims=_CLAIM)
    elif judged and rotated:
        verified = f"queries and keys are rotated by their positions, in the {subject.claims.rope} layout"
        yield Verification(verified, _CLAIM)
    else:
        yield Undecided(TOPIC, "queries and keys can't be given the same vector", _CLAIM)


def _violations(
    same: UniformRun, query: AttentionOperand, key: AttentionOperand, value: AttentionOperand
) -> Iterator[Violation]:
    if same.varies(value, same.tokens(value)):
        message = "the value is rotated: the same vector differs between positions"
        yield _violation(same, value, "AS702", message, "rotate only the query and the key")
    for operand in (query, key):
        for symbol, axis in same.others(operand) if not same.varies(operand, same.tokens(operand)) else ():
            if same.varies(operand, axis):
                differs = "the same vector differs there, not between positions"
                message = f"the {operand.role} is rotated along {symbol}: {differs}"
                yield _violation(same, operand, "AS701", message, "take the positions from the token axis")
    for operand in (query, key):
        norms = same.lengths(operand)
        has_cache = same.new_rows(operand) < operand.value.shape[same.tokens(operand) or 0]
        if float((norms - norms[0]).abs().max()) > _SAME * float(norms[0].abs()) and not has_cache:
            message = (
                f"the {operand.role}'s norm changes with its position, as with mixed layouts: it is not just rotated"
            )
            hint = "repeat the angles as features are paired: cat for halves, repeat_interleave for adjacent features"
            doubled = _doubled(same, operand)
            at = _paired(same.subject, doubled) if doubled is not None else None
            yield _violation(same, operand, "AS704", message, hint, at)
    yield from _layouts(same, query, key)
    yield from _offsets(same, query, key)


def _layouts(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare the feature that feature 0 is rotated with to its partner in the claimed layout."""
    claimed = same.subject.claims.rope
    layout, hint = "half", "pair feature 2i with 2i + 1"
    if claimed == "half":
        layout, hint = "interleaved", "pair feature i with i + Dk/2"
    partners = [(operand, same.partner(operand)) for operand in (query, key)]
    wrong = [pair for pair in partners if pair[1] is not None and (pair[1] == 1) == (claimed == "half")]
    for operand, partner in wrong:
        rotated = f"feature 0 of the {operand.role} is rotated with feature {partner}"
        message = f"{rotated}: the layout is {layout}, expected {claimed}"
        # if both are wrong, the mistake is in the function that both call, not in one of the calls
        inside = _paired(same.subject, _first_rotation(same, operand)) if len(wrong) == 2 else None
        yield _violation(same, operand, "AS704", message, hint, inside)


def _offsets(same: UniformRun, query: AttentionOperand, key: AttentionOperand) -> Iterator[Violation]:
    """Compare each query with the key at its position: rotated by the same angle, they are the same vector."""
    q, k = same.rows(query), same.rows(key)
    if q is None or k is None or q.shape[-1] != k.shape[-1]:
        return
    aligned = k.shape[0] - q.shape[0]
    cosine = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).T
    rows = torch.arange(q.shape[0])
    new = same.new_rows(key)
    own = rows[rows + aligned >= k.shape[0] - new]
    if not own.numel() or bool((cosine[own, own + aligned] > 1 - _SAME).all()):
        # products of one vector with itself, rotated at two positions
        if new == k.shape[0] and bool(((cosine[1:, 1:] - cosine[:-1, :-1]).abs() > _SAME).any()):
            depends = "the score of a query and a key depends on more than their distance"
            message = f"cached keys are rotated again: {depends}"
            yield _violation(same, key, "AS705", message, "rotate a key once, when it enters the cache")
        return
    shifts = (shift for shift in range(-k.shape[0], k.shape[0]) if shift)
    shift = next((shift for shift in shifts if _agree(cosine, own, aligned + shift, k.shape[0] - new)), None)
    by = f"by {shift:+d} positions" if shift is not None else "by no constant number of positions"
    from_zero = _starts_at_zero(same, query) and not _starts_at_zero(same, key)
    shifted = query if from_zero and "Lp" in same.subject.numbers else key
    message = f"query and key are rotated by different offsets, {by}: at the same position the same vector differs"
    hint = "rotate both by the same positions: with a cache both start at Lp"
    yield _violation(same, shifted, "AS703", message, hint)


def _starts_at_zero(same: UniformRun, operand: AttentionOperand) -> bool:
    """Return whether the first new token isn't rotated."""
    rows = same.rows(operand)
    if rows is None:
        return False
    first = rows[rows.shape[0] - same.new_rows(operand)]
    return bool(torch.isclose(first, same.vector * (first[0] / same.vector[0]), rtol=1e-6).all())


def _agree(cosine: Tensor, own: Tensor, offset: int, first: int) -> bool:
    inside = own[(own + offset >= first) & (own + offset < cosine.shape[1])]
    return inside.numel() > 1 and bool((cosine[inside, inside + offset] > 1 - _SAME).all())


def _cached(subject: Subject) -> Violation | None:
    """Compare the cached keys that a call returns with those that it received: they must be equal."""
    past = subject.numbers.get("Lp", 0)
    for name, value in (*subject.base.inputs.items(), *subject.base.state.items()) if past > 1 else ():
        if past not in value.shape or value.ndim < 3:
            continue
        axis = list(value.shape).index(past)
        for _, returned in subject.base.returned:
            longer = returned.ndim == value.ndim and returned.shape[axis] > past
            rows = returned.narrow(axis, 0, past) if longer else value
            if rows.shape != value.shape or torch.allclose(rows, value, rtol=1e-6):
                continue
            if not torch.allclose(rows.square().sum(-1), value.square().sum(-1), rtol=1e-6):
                continue
            at = _after_concatenation(subject, name)
            place = helper_call(subject, at) if at is not None else None
            message = f"cached keys are rotated again: the call returns those of {name} rotated once more"
            hint = "rotate a key once, when it enters the cache: torch.cat((past_key, rotate(k)), dim=2)"
            evidence = f"compared {name} with the first {past} returned keys"
            return Violation("AS705", message, at, hint, evidence, place=place, claims=_CLAIM)
    return None


def _after_concatenation(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that computes with the concatenation of a cache and new keys."""
    joined = {ref for ref in subject.graph.downstream({name}) if subject.base.event(ref).name in JOINS}
    downstream = {ref for start in joined for ref in subject.graph.downstream_of(start)}
    later = (ref for ref in downstream - joined if subject.base.event(ref).name not in DATA_MOVEMENT)
    return min(later, default=None)


def _violation(
    same: UniformRun, operand: AttentionOperand, code: str, message: str, hint: str, at: OutputRef | None = None
) -> Violation:
    """Return the violation at a call inside a helper function, else where the first call that rotates is made.

    If that call is in a helper function, it is the line that calls the function.
    """
    place = None
    if at is None:
        at = _first_rotation(same, operand)
        place = helper_call(same.subject, at)
    return Violation(code, message, at, hint, _SAME_VECTOR, place=place, claims=_CLAIM)


def _first_rotation(same: UniformRun, operand: AttentionOperand) -> OutputRef:
    return same.first_varying(operand) or OutputRef(operand.event.order)


def _doubled(same: UniformRun, operand: AttentionOperand) -> OutputRef | None:
    """Return the call that repeats the angles for both features of a pair."""
    graph, at = same.subject.graph, same.first_varying(operand)
    for sources in graph.node(at).sources if at is not None else ():
        for event in graph.upstream(sources):
            if event.refs[0] not in graph.depends_on_data and event.name in REPEATS | JOINS:
                return event.refs[0]
    return None


def _paired(subject: Subject, at: OutputRef) -> OutputRef:
    """Return the call that pairs features before they are rotated, if there is one."""
    event = subject.base.event(at)
    for sources in event.sources:
        source = sources[-1]
        if isinstance(source, OutputRef) and subject.base.event(source).name in COMPLEX_FROM_PAIRS:
            return source
    return at
