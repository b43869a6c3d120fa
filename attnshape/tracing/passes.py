"""Passes over a finished recording: settle its composites, collapse opaque calls, and fold updates of elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

from attnshape.model.trace import Reference
from attnshape.tracing.operations import ELEMENT_WRITES, base_name
from attnshape.tracing.raw import RawOutput, RawStep, RawTensor, RawTrace

Move = Callable[[Reference, int | None], Reference]
"""Maps a reference to the one that replaces it, given the position of the step that refers, None for the result."""


def renumber(raw: RawTrace, kept: Mapping[int, RawStep], move: Move) -> RawTrace:
    """Return a recording with only the kept steps, which are changed in place, and with every reference updated.

    `kept` has them by their old positions. `move` maps references to removed steps to kept ones, by old numbers.
    """
    index = {position + 1: number for number, position in enumerate(kept, 1)}

    def to(reference: Reference, by: int | None) -> Reference:
        moved = move(reference, by)
        return moved if moved.step is None else Reference(step=index[moved.step], output=moved.output)

    def point(facts: RawTensor, by: int | None) -> None:
        facts.of = to(facts.of, by) if facts.of else None
        facts.root = to(facts.root, by) if facts.root else None

    for position, step in kept.items():
        step.parent = index[step.parent + 1] - 1 if step.parent is not None else None
        step.operands = [to(reference, position) for reference in step.operands]
        for output in step.outputs:
            point(output.tensor, position)
            # the inner output is resolved as a step inside the composite refers to it
            output.inner = to(output.inner, output.inner.step - 1) if output.inner and output.inner.step else None
    for operand in raw.failure.operands if raw.failure is not None else ():
        point(operand.tensor, None)
    returned = [(name, to(reference, None)) for name, reference in raw.returned]
    return dataclasses.replace(raw, steps=list(kept.values()), returned=returned)


def number_symbols(raw: RawTrace) -> RawTrace:
    """Number the symbols of ragged axes from 1 in order of appearance; torch numbers them across all runs."""
    numbered: dict[str, str] = {}
    failed = [operand.tensor for operand in raw.failure.operands] if raw.failure is not None else []
    outputs = (output.tensor for step in raw.steps for output in step.outputs)
    for tensor in (*(tensor for _, tensor in raw.inputs), *outputs, *failed):
        for axis, symbol in tensor.symbols.items():
            letters = symbol.rstrip("0123456789")
            if letters != symbol:
                tensor.symbols[axis] = numbered.setdefault(symbol, f"{letters}{len(numbered) + 1}")
    return raw


def settle_composites(raw: RawTrace) -> RawTrace:
    """Return a recording in which each composite comes before its inner steps, and none is without inner steps."""
    if not any(step.composite or step.library for step in raw.steps):
        return raw
    return _Nesting(raw).settled()


class _Nesting:
    """The steps of one run by their positions, as their composites are settled from the last to the first."""

    def __init__(self, raw: RawTrace) -> None:
        self.raw = raw
        self.steps = dict(enumerate(raw.steps))
        self.inner: dict[int, list[int]] = {}
        for position, step in self.steps.items():
            if step.parent is not None:
                self.inner.setdefault(step.parent, []).append(position)
        self.users = self._users() if any(step.composite == "call" for step in raw.steps) else {}
        self.thin: dict[int, int] = {}
        """For each removed step, the position of the composite that replaces it."""
        self.results: dict[tuple[int, int], tuple[int, int]] = {}
        """For each inner step's output that a library call returns, by step and output: the composite's own output."""

    def settled(self) -> RawTrace:
        for position in range(len(self.raw.steps) - 1, -1, -1):
            if self.steps[position].composite:
                self._settle(position)
        for step in self.steps.values():
            for output in step.outputs:
                if output.outside_name and (output.name is None or step.library):
                    output.name, output.named_by_use = output.outside_name, True
        kept = {position: self.steps[position] for position in sorted(self.steps)}
        return renumber(self.raw, kept, self._move)

    def _settle(self, position: int) -> None:
        step, inner = self.steps[position], self.inner.get(position, [])
        if step.composite == "call" and len(inner) > 1:
            self._complete_call(position, inner)
        elif step.composite == "call" and inner:
            step.outputs = self.steps[inner[0]].outputs
            _bind(step)
            self._merge(position, inner[0])
        elif step.passes_through and inner:
            self._merge(position, inner[0])
        elif not step.outputs:
            self._dissolve(position, inner)

    def _merge(self, position: int, only: int) -> None:
        """Merge a composite with its only inner step: the composite's location and outputs, the inner step's work."""
        outer, step = self.steps[position], self.steps.pop(only)
        for output, inner in zip(outer.outputs, step.outputs, strict=True):
            output.inner = inner.inner
        if outer.composite == "function":
            step.operation, step.function, step.arguments = outer.operation, outer.function, outer.arguments
        step.location, step.parent, step.library = outer.location, outer.parent, outer.library
        step.outputs = outer.outputs
        self.steps[position] = step
        self.thin[only] = position
        self.inner[position] = self.inner.pop(only, [])
        for child in self.inner[position]:
            self.steps[child].parent = position

    def _dissolve(self, position: int, inner: list[int]) -> None:
        """Remove a composite that returned no tensors or failed, and keep its inner steps."""
        parent = self.steps.pop(position).parent
        for child in inner:
            self.steps[child].parent = parent
        self.inner.pop(position, None)
        if parent is not None:
            self.inner[parent] = sorted({*self.inner[parent], *inner} - {position})

    def _complete_call(self, position: int, inner: list[int]) -> None:
        """Find the operands of a library call, and its outputs: what is used outside, else its last step's outputs."""
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
        for place, (index, number) in enumerate(used):
            output = self.steps[index - 1].outputs[number]
            tensor, inner_output = self._as_callers_see_it(output.tensor, within), Reference(step=index, output=number)
            step.outputs.append(RawOutput(tensor, inner=inner_output, outside_name=output.outside_name))
            output.outside_name = None
            self.results[index, number] = (position + 1, place)
        _bind(step)
        operands = [operand for child in sorted(within) for operand in self.steps[child].operands]
        step.operands = list(dict.fromkeys(r for r in operands if r.step is None or r.step - 1 not in within))

    def _within(self, position: int) -> Iterator[int]:
        for child in self.inner.get(position, []):
            yield child
            yield from self._within(child)

    def _as_callers_see_it(self, tensor: RawTensor, within: set[int]) -> RawTensor:
        """Return the facts of an inner output as callers see it: a view of an operand, or new."""
        of: Reference | None = tensor.of
        while of is not None and of.step is not None and of.step - 1 in within:
            of = self.steps[of.step - 1].outputs[of.output].tensor.of
        if of is None:
            own = tensor.layout in (None, "nested")
            return dataclasses.replace(tensor, kind="new" if own else "unknown", of=None, root=None)
        return dataclasses.replace(tensor, kind="view" if tensor.kind in ("new", "view") else tensor.kind, of=of)

    def _users(self) -> dict[tuple[int, int], list[int | None]]:
        """Return the positions of the steps that read each output, by step and output; None for the run's caller."""
        read = [(reference, position) for position, step in self.steps.items() for reference in step.operands]
        users: dict[tuple[int, int], list[int | None]] = {}
        for reference, user in (*read, *((reference, None) for _, reference in self.raw.returned)):
            if reference.step is not None:
                users.setdefault((reference.step, reference.output), []).append(user)
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
    if len(step.bound_names) == len(step.outputs):
        for name, output in zip(step.bound_names, step.outputs, strict=True):
            output.name = name or output.name


_OPAQUE_CALLS = {"flex_attention": "its scores are made after all where it is not compiled"}


def collapse_opaque_calls(raw: RawTrace) -> RawTrace:
    """Return a recording without the inner steps of opaque calls, which are marked."""
    around: dict[int, int] = {}
    """For each removed step, the position of its call."""
    for position, step in enumerate(raw.steps):
        parent, reason = step.parent, _OPAQUE_CALLS.get(base_name(step.operation))
        if parent is not None and (parent in around or raw.steps[parent].opaque in _OPAQUE_CALLS.values()):
            around[position] = around.get(parent, parent)
        elif reason is not None:
            step.opaque = reason
    calls = [position for position, step in enumerate(raw.steps) if step.opaque in _OPAQUE_CALLS.values()]
    if not calls:
        return raw
    used = _used(raw, around)
    for call in calls:
        inner = {position for position, outer in around.items() if outer == call}
        if inner:
            _collapse(call, raw.steps, inner)
        # it also computes sums, which its caller may not get
        outputs = raw.steps[call].outputs
        while len(outputs) > 1 and Reference(step=call + 1, output=len(outputs) - 1) not in used:
            outputs.pop()
    kept = {position: step for position, step in enumerate(raw.steps) if position not in around}

    def move(reference: Reference, _: int | None) -> Reference:
        outer = around.get(reference.step - 1) if reference.step is not None else None
        return reference if outer is None else Reference(step=outer + 1)

    return renumber(raw, kept, move)


def _used(raw: RawTrace, around: Collection[int]) -> set[Reference]:
    used = {reference for _, reference in raw.returned}
    for step in [step for position, step in enumerate(raw.steps) if position not in around]:
        used.update(step.operands)
        for output in step.outputs:
            used.update(r for r in (output.tensor.of, output.tensor.root, output.inner) if r is not None)
    return used


def _collapse(position: int, steps: list[RawStep], inner: set[int]) -> None:
    """Give a call the operands of its last inner step, which does the work, before its other operands."""
    call = steps[position]
    # what is measured between calls, of memory or cost, is the call's as a whole
    call.order = max((order for place in inner if (order := steps[place].order) is not None), default=call.order)
    worked_on = [_from_outside(reference, steps, inner) for reference in steps[max(inner)].operands]
    call.operands = list(dict.fromkeys(reference for reference in (*worked_on, *call.operands) if reference))
    for output in call.outputs:
        output.inner = None


def _from_outside(reference: Reference, steps: list[RawStep], inner: set[int]) -> Reference | None:
    """Return the operand of the call from which an inner reference comes; None for what was made from nothing."""
    while reference.step is not None and reference.step - 1 in inner:
        operands = steps[reference.step - 1].operands
        if not operands:
            return None
        reference = operands[0]
    return reference if not reference.constant else None


def fold_updates(raw: RawTrace) -> RawTrace:
    """Return a recording in which `x[a] += y` is one step: it runs as reading, adding and writing."""
    absorbed: dict[int, int] = {}
    updates: dict[int, RawStep] = {}
    operands: dict[int, list[Reference]] = {}
    for position, step in enumerate(raw.steps):
        parts = _parts(raw.steps, position)
        if parts:
            absorbed |= dict.fromkeys(parts, position)
            updates[position] = raw.steps[parts[1]]
            inner = {part + 1 for part in parts}
            every = [r for part in parts for r in raw.steps[part].operands] + step.operands
            operands[position] = list(dict.fromkeys(r for r in every if r.step not in inner))
    if not absorbed:
        return raw
    kept = {position: step for position, step in enumerate(raw.steps) if position not in absorbed}
    for position, update in updates.items():
        kept[position] = dataclasses.replace(
            raw.steps[position],
            operands=operands[position],
            operation=update.operation,
            location=update.location,
            function=update.function,
            arguments=update.arguments,
        )

    def move(reference: Reference, _: int | None) -> Reference:
        if reference.step is not None and reference.step - 1 in absorbed:
            return Reference(step=absorbed[reference.step - 1] + 1, output=reference.output)
        return reference

    return renumber(raw, kept, move)


def _parts(steps: list[RawStep], position: int) -> list[int]:
    """Return the positions of the read and the in-place operation that a write to an element completes."""
    step = steps[position]
    place = step.location
    if base_name(step.operation) not in ELEMENT_WRITES or place is None or place.statement is None:
        return []
    update = position - 1
    while update >= 0 and not (_same_update(steps[update], step) and not _reads(steps[update])):
        update -= 1
        if position - update > 1:
            return []
    source = next((r.step for r in steps[update].operands if r.step is not None), None)
    if source is None or not (_reads(steps[source - 1]) and _same_update(steps[source - 1], step)):
        return []
    return [source - 1, update]


def _same_update(step: RawStep, other: RawStep) -> bool:
    places = [(p.file, p.function, p.statement) for p in (step.location, other.location) if p is not None]
    return len(places) == 2 and places[0] == places[1]


def _reads(step: RawStep) -> bool:
    return base_name(step.operation) == "getitem"
