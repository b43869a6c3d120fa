"""Settles the composites once a run is over: what each returns, and which are no more than their only inner step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from attnshape.model import Reference
from attnshape.tracing.raw import RawOutput, RawStep, RawTensor, RawTrace
from attnshape.tracing.renumber import renumbered


def nested(raw: RawTrace) -> RawTrace:
    """Return the facts with each composite that has inner steps before them, and no other composite."""
    if not any(step.composite or step.library for step in raw.steps):
        return raw
    return _Nesting(raw).settled()


class _Nesting:
    """One run's steps by their positions, as they are settled; composites from the last to the first."""

    def __init__(self, raw: RawTrace) -> None:
        self.raw = raw
        self.steps = dict(enumerate(raw.steps))
        self.inner: dict[int, list[int]] = {}
        for position, step in self.steps.items():
            if step.parent is not None:
                self.inner.setdefault(step.parent, []).append(position)
        self.users = self._users() if any(step.composite == "call" for step in raw.steps) else {}
        self.thin: dict[int, int] = {}
        """For each step taken out, the position of the composite that stands in its place."""
        self.results: dict[tuple[int, int], tuple[int, int]] = {}
        """For a library call's results, by step and output, which of the composite's they are to those outside."""

    def settled(self) -> RawTrace:
        for position in range(len(self.raw.steps) - 1, -1, -1):
            if self.steps[position].composite:
                self._settle(position)
        for step in self.steps.values():
            for output in step.outputs:
                if output.outside and (output.name is None or step.library):
                    output.name, output.by_use = output.outside, True
        kept = {position: self.steps[position] for position in sorted(self.steps)}
        return renumbered(self.raw, kept, self._move)

    def _settle(self, position: int) -> None:
        step, inner = self.steps[position], self.inner.get(position, [])
        if step.composite == "call" and len(inner) > 1:
            self._complete_call(position, inner)
        elif step.composite == "call" and inner:
            step.outputs = self.steps[inner[0]].outputs
            _bind(step)
            self._merge(position, inner[0])
        elif step.thin and inner:
            self._merge(position, inner[0])
        elif not step.outputs:
            self._dissolve(position, inner)

    def _merge(self, position: int, only: int) -> None:
        """Put a composite and its only inner step into one: the place and results of the former, the latter's work."""
        outer, step = self.steps[position], self.steps.pop(only)
        for output, made in zip(outer.outputs, step.outputs, strict=True):
            output.inner = made.inner
        step.operation = outer.operation if outer.composite == "function" else step.operation
        step.place, step.parent, step.library, step.outputs = outer.place, outer.parent, outer.library, outer.outputs
        self.steps[position] = step
        self.thin[only] = position
        self._adopt(only, position)

    def _dissolve(self, position: int, inner: list[int]) -> None:
        """Take out a composite that returned no tensors, or failed; its inner steps stay."""
        parent = self.steps.pop(position).parent
        for child in inner:
            self.steps[child].parent = parent
        self.inner.pop(position, None)
        if parent is not None:
            self.inner[parent] = sorted({*self.inner[parent], *inner} - {position})

    def _adopt(self, old: int, new: int) -> None:
        children = self.inner.pop(old, [])
        self.inner[new] = children
        for child in children:
            self.steps[child].parent = new

    def _complete_call(self, position: int, inner: list[int]) -> None:
        """Find what a library's call was given, and what it returned: what is used outside, else its last result."""
        within = set(self._within(position))
        used = [
            (child + 1, place)
            for child in sorted(within)
            for place in range(len(self.steps[child].outputs))
            if any(user not in within for user in self.users.get((child + 1, place), ()))
        ]
        last = inner[-1]
        used = used or [(last + 1, place) for place in range(len(self.steps[last].outputs))]
        step = self.steps[position]
        step.outputs = []
        for place, (index, output) in enumerate(used):
            made = self.steps[index - 1].outputs[output]
            facts = self._seen_from_outside(made.tensor, within)
            step.outputs.append(RawOutput(facts, inner=Reference(step=index, output=output), outside=made.outside))
            made.outside = None
            self.results[index, output] = (position + 1, place)
        _bind(step)
        given = [
            r
            for child in sorted(within)
            for r in self.steps[child].operands
            if r.step is None or r.step - 1 not in within
        ]
        step.operands = list(dict.fromkeys(given))

    def _within(self, position: int) -> Iterator[int]:
        for child in self.inner.get(position, []):
            yield child
            yield from self._within(child)

    def _seen_from_outside(self, tensor: RawTensor, within: set[int]) -> RawTensor:
        """Return a result's facts: a view of what came from outside, or new."""
        of: Reference | None = tensor.of
        while of is not None and of.step is not None and of.step - 1 in within:
            of = self.steps[of.step - 1].outputs[of.output].tensor.of
        if of is None:
            return dataclasses.replace(tensor, kind="new", of=None, root=None)
        return dataclasses.replace(tensor, kind="view" if tensor.kind in ("new", "view") else tensor.kind, of=of)

    def _users(self) -> dict[tuple[int, int], list[int | None]]:
        """Return for each result, by step and output, the positions of the steps that read it; None for the caller."""
        users: dict[tuple[int, int], list[int | None]] = {}
        for position, step in self.steps.items():
            for reference in step.operands:
                if reference.step is not None:
                    users.setdefault((reference.step, reference.output), []).append(position)
        for _, reference in self.raw.returned:
            if reference.step is not None:
                users.setdefault((reference.step, reference.output), []).append(None)
        return users

    def _move(self, reference: Reference, by: int | None) -> Reference:
        index, output = reference.step, reference.output
        if index is None:
            return reference
        while True:
            result = self.results.get((index, output))
            if result is not None and not self._is_within(by, result[0] - 1):
                index, output = result
            elif index - 1 in self.thin:
                index = self.thin[index - 1] + 1
            else:
                return Reference(step=index, output=output)

    def _is_within(self, position: int | None, composite: int) -> bool:
        while position is not None:
            position = self.thin.get(position, position)
            if position == composite:
                return True
            position = self.steps[position].parent if position in self.steps else None
        return False


def _bind(step: RawStep) -> None:
    """Give a library call's results the names that it is assigned to."""
    if len(step.bound) == len(step.outputs):
        for name, output in zip(step.bound, step.outputs, strict=True):
            output.name = name or output.name
