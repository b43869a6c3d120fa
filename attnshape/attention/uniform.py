"""Runs in which every token, head and batch element has the same query, key and value: what differs is positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.attention.core import FusedCore
from attnshape.attention.kinds import MOVES
from attnshape.attention.operands import Operand, projections
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change, Run
from attnshape.replaying.replay import Address, Replace

_MOST = 1e-7


@dataclass(frozen=True)
class Uniform:
    """One such run, with what changed to make it."""

    subject: Subject
    run: Run
    change: Change
    vector: Tensor

    def width(self, one: Operand) -> int:
        """Return the axis of an operand that holds one vector."""
        if isinstance(one.core, FusedCore):
            return one.value.ndim - 1
        contracted = one.core.scores.contracted(one.place) if one.role != "value" else ()
        if contracted:
            return contracted[0]
        size = self.vector.numel()
        return next((a for a in reversed(range(one.value.ndim)) if one.value.shape[a] == size), one.value.ndim - 1)

    def tokens(self, one: Operand) -> int | None:
        """Return the axis of an operand that holds its tokens."""
        numbers = {self.subject.numbers[letter] for letter in self.subject.lengths}
        known = set(self.subject.numbers.values()) - numbers
        axes = [axis for axis in range(one.value.ndim) if axis != self.width(one)]
        exact = [axis for axis in axes if one.value.shape[axis] in numbers]
        others = [axis for axis in axes if one.value.shape[axis] not in known and one.value.shape[axis] > 1]
        # part of a length may be as long as there are heads
        twice = [axis for axis in axes if one.value.shape[axis] in one.value.shape[:axis]]
        return next(iter([*exact, *others, *twice]), None)

    def others(self, one: Operand) -> list[tuple[str, int]]:
        """Return the axes that hold heads or the batch, with their symbols."""
        found = []
        for axis, size in enumerate(one.value.shape):
            if axis in (self.width(one), self.tokens(one)) or size < 2:
                continue
            letters = [letter for letter in ("H", "Hkv", "B") if self.subject.numbers.get(letter) == size]
            found.append((letters[0] if letters else str(size), axis))
        return found

    def new_rows(self, one: Operand) -> int:
        """Return how many tokens of an operand aren't from a cache: the last ones."""
        axis = self.tokens(one)
        size = one.value.shape[axis] if axis is not None else 0
        past = self.subject.numbers.get("Lp", 0)
        given = size in {past + self.subject.numbers.get(letter, 0) for letter in ("L", "Lq", "Lk")}
        return size - past if past and given and size > past else size

    def moves(self, one: Operand, axis: int | None) -> bool:
        """Say whether vectors differ along an axis."""
        if axis is None:
            return False
        value = one.of(self.run)
        if axis == self.tokens(one):
            rows = self.new_rows(one)
            value = value.narrow(axis, value.shape[axis] - rows, rows)
        return _differs(value, axis)

    def rows(self, one: Operand) -> Tensor | None:
        """Return the vectors at each token, those of the first head and batch element, (tokens, width)."""
        axis = self.tokens(one)
        if axis is None:
            return None
        value = one.of(self.run).double().movedim((axis, self.width(one)), (-2, -1))
        return value.reshape(-1, *value.shape[-2:])[0]

    def lengths(self, one: Operand) -> Tensor:
        """Return the length of the vector at each new token."""
        rows = self.rows(one)
        assert rows is not None
        return rows[rows.shape[0] - self.new_rows(one) :].square().sum(-1).sqrt()

    def partner(self, subject: Subject, one: Operand) -> int | None:
        """Return with which feature the first one is rotated; None where it isn't, or with several."""
        rows = self.rows(one)
        nudged = {address: _nudged(replace, self.vector.numel()) for address, replace in self.change.results.items()}
        inputs = {name: _nudged(replace, self.vector.numel()) for name, replace in self.change.inputs.items()}
        run = subject.bench.run(Change(inputs=inputs, results=nudged))
        if rows is None or not run.follows(subject.base):
            return None
        after = Uniform(subject, run, self.change, self.vector).rows(one)
        if after is None:
            return None
        moved = (after - rows).abs() > _MOST
        found = {int(feature) for feature in moved.any(0).nonzero().flatten()} - {0}
        return next(iter(found)) if len(found) == 1 else None

    def first_moved(self, subject: Subject, one: Operand) -> Address | None:
        """Return the first call on the way to an operand whose result differs along an axis where it shouldn't."""
        behind = subject.flow.downstream(set(self.change.inputs))
        behind |= {address for start in self.change.results for address in subject.flow.behind(start) - {start}}
        for event in reversed(list(subject.flow.upstream(one.sources))):
            address = event.addresses[0]
            value = self.run.value(address)
            if event.name in MOVES or not (value.is_floating_point() or value.is_complex()):
                continue
            if address in behind and any(
                size > 1 and axis < value.ndim - 1 and _differs(value, axis) for axis, size in enumerate(value.shape)
            ):
                return address
        return None


def uniform(subject: Subject, own: Sequence[Operand]) -> Uniform | None:
    """Return the run in which the queries, keys and values of one attention are the same vector everywhere."""
    query = own[0]
    axis = query.value.ndim - 1
    if not isinstance(query.core, FusedCore):
        contracted = query.core.scores.contracted(query.place)
        if len(contracted) != 1:
            return None
        axis = contracted[0]
    width = query.value.shape[axis]
    vector = torch.randn(width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    results: dict[Address, Replace] = {}
    inputs: dict[str, Replace] = {}
    for one in own:
        every = projections(subject, one.sources)
        if any(subject.base.value(made).shape[-1] % width for made in every):
            return None
        results |= dict.fromkeys(every, _filled(vector))
        if every:
            continue
        for name in subject.flow.origins(one.sources) & set(subject.inputs):
            if subject.inputs[name].shape[-1] % width:
                return None
            if subject.numbers.get("Lp") not in subject.inputs[name].shape:
                inputs[name] = _filled(vector)
    change = Change(inputs=inputs, results=results)
    run = subject.bench.run(change)
    return Uniform(subject, run, change, vector) if run.follows(subject.base) else None


def _filled(vector: Tensor) -> Replace:
    def fill(value: Tensor) -> Tensor:
        repeated = vector.to(value.dtype).repeat(value.shape[-1] // vector.numel())
        return repeated.expand(value.shape).clone()

    return fill


def _nudged(replace: Replace, width: int) -> Replace:
    def nudge(value: Tensor) -> Tensor:
        filled = replace(value)
        filled[..., ::width] += 0.5
        return filled

    return nudge


def _differs(value: Tensor, axis: int) -> bool:
    first = value.narrow(axis, 0, 1)
    return bool(((value - first).abs() > _MOST).any())
