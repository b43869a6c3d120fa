"""Does each element of a batch use its own element of every argument: masks, lengths, index tables, biases, caches?"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from attnshape.checks.attention.permutation import (
    changed_elements,
    cycle,
    element_axes,
    is_reordered,
    reorder,
)
from attnshape.checks.attention.perturbation import Divergence, differs, divergences
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import explain_visibility
from attnshape.checks.interventions.experiment import Intervention, ReplayRun, UnreadableError
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import involves
from attnshape.checks.rules.protocol import Violation
from attnshape.inference.dataflow import numbers_read, reads_numbers
from attnshape.tracing.operations import FILLS, GATHERS, RESHAPES, SELECTIONS

_INDEXED = SELECTIONS | FILLS | GATHERS | {"index_add", "scatter_add"}
"""Operations that may read or write elements at indices which a tensor gives."""


@dataclass(frozen=True)
class Crossing:
    """An argument whose element the results of other elements use."""

    name: str
    pair: tuple[int, int]
    """The elements that were swapped, or of which the first one was overwritten with the second one."""
    reached: tuple[int, ...]
    """The other elements whose results changed."""
    swapped: bool


@dataclass
class BatchArguments:
    """The arguments that have an axis of the batch's size, and what happens to the results when it is reordered."""

    subject: Subject
    symbol: str
    looked_up: set[str] = field(default_factory=set)
    """Arguments from which the code takes elements at indices that another argument gives, such as a table."""
    shared: set[str] = field(default_factory=set)
    """Arguments with an axis that folds the batch with others, whose order the results don't follow: pools of pages."""

    @property
    def number(self) -> int:
        """The size of the batch."""
        return self.subject.batch_size

    @cached_property
    def axes(self) -> dict[str, int]:
        """The axis of the batch of each argument that has one and whose elements aren't all the same."""
        found: dict[str, int] = {}
        if not involves(self.number, self.symbol, self.subject.numbers):
            return found  # so few that other axes have this size too
        for name, value in self.subject.base.inputs.items():
            axes = self.subject.axes_that_vary(self.symbol, name, value)
            axis = next((axis for axis in axes if value.shape[axis] == self.number), None)
            if axis is not None and name not in self.subject.unvaried and not _same(value, axis, range(self.number)):
                found[name] = axis
        return found

    @cached_property
    def others(self) -> list[str]:
        """Those of them that the rule doesn't change as data: masks, patterns, integers."""
        return [name for name in self.axes if name not in self.subject.inputs]

    @cached_property
    def elements(self) -> tuple[int, int]:
        """The first element, and one that differs from it in as many arguments as possible."""
        different = {
            element: sum(not _same(self._value(name), self.axes[name], (0, element)) for name in self.others)
            for element in range(self.number - 1, 0, -1)
        }
        return 0, max(different, key=different.__getitem__)

    def varied(self) -> list[str]:
        """Return the arguments other than data in which these two elements differ."""
        names = (name for name in self.others if name not in self.looked_up)
        return [name for name in names if not _same(self._value(name), self.axes[name], self.elements)]

    def holds(self) -> bool:
        """Return whether reordered arguments give reordered results, and an element reaches no other element's."""
        return self.is_in_any_order and not self._reaches_others()

    @property
    def is_in_any_order(self) -> bool:
        """Whether reordered arguments give reordered results."""
        return self._reordered_run is not None

    def crossing(self) -> Crossing | None:
        """Return the argument whose element others use, if one explains that the property doesn't hold."""
        for name in [*self.others, *(name for name in self.axes if name not in self.others)]:
            for pair in self._pairs(name):
                found = self._effect(name, pair, swap=True)
                if found is not None and not self._is_looked_up(found):
                    return found
        if self._reordered_run is None:
            return None
        overwritten = (self._effect(name, self.elements, swap=False) for name in self.varied())
        return next((one for one in overwritten if one is not None and self._keeps_shapes(one)), None)

    def line(self, crossing: Crossing) -> tuple[OutputRef | None, ReplayedCall | None]:
        """Return the call to name for a crossing, and the call that reduced the batch's axis if that is the mistake."""
        first = self._divergence(crossing)
        if first is not None and first.summary is not None:
            return first.summary.refs[0], first.summary
        if first is None and (reduced := self._reduction(crossing)) is not None:
            return reduced.refs[0], reduced
        mixed = self._first_in_other_order() or (first.event if first is not None else None)
        return (self._fold(mixed, crossing.name) or mixed.refs[0], None) if mixed is not None else (None, None)

    def _pairs(self, name: str) -> list[tuple[int, int]]:
        """Return pairs of elements to swap: the first one with others, and one without it.

        One pair alone may be of elements that are other numbers and mean the same.
        """
        number = self.number
        pairs = dict.fromkeys([self.elements, (0, number - 1), (0, number // 2), (0, 1), (1, number // 2)])
        return [pair for pair in pairs if not _same(self._value(name), self.axes[name], pair)]

    def _value(self, name: str) -> Tensor:
        return self.subject.base.inputs[name]

    def _change(self, names: Sequence[str], order: list[int]) -> dict[str, Replace]:
        return {name: reorder(self.axes[name], order) for name in names}

    def _order(self, pair: tuple[int, int], swap: bool) -> list[int]:
        order = list(range(self.number))
        order[pair[0]] = pair[1]
        if swap:
            order[pair[1]] = pair[0]
        return order

    @cached_property
    def _reordered_run(self) -> ReplayRun | None:
        """The run in which all arguments have another order, if its results have this order too.

        An argument that folds the batch with other axes may have it outside or inside, or share its elements.
        """
        order = cycle(self.number)
        self.subject.base.results_are_compared = True
        change = self._change([name for name in self.axes if name not in self.looked_up], order)
        for folded in self._folded(order):
            run = self.subject.experiment.run(Intervention(inputs={**change, **folded}, parameters=self.state(order)))
            if run.error is None and self._is_reordered(run, order):
                self.shared = self.folding - folded.keys()
                return run
        return None

    def _folded(self, order: list[int]) -> list[dict[str, Replace]]:
        """Return the ways in which the arguments that fold the batch with other axes may be reordered."""
        outside: dict[str, Replace] = {}
        inside: dict[str, Replace] = {}
        for name in self.folding:
            value = self._value(name)
            axis, _ = next(element_axes(tuple(value.shape), self.symbol, self.subject.numbers))
            outside[name] = reorder(axis, order, value.shape[axis] // self.number)
            inside[name] = reorder(axis, order)
        return [outside, inside, {}] if outside else [{}]

    @cached_property
    def folding(self) -> set[str]:
        """The arguments with an axis that folds the batch with others, and none of the batch alone."""
        return {
            name
            for name, value in self.subject.base.inputs.items()
            if self.number not in value.shape
            and name not in self.subject.unvaried
            and any(element_axes(tuple(value.shape), self.symbol, self.subject.numbers))
        }

    def state(self, order: list[int]) -> dict[str, Replace]:
        """Return the replacements of buffers that keep something for each element."""
        state = ((name, value) for name, value in self.subject.base.state.items() if self.number in value.shape)
        return {
            name: reorder(list(value.shape).index(self.number), order)
            for name, value in state
            if name not in self.subject.experiment.parameters
        }

    def _is_reordered(self, run: ReplayRun, order: list[int]) -> bool:
        after = dict(run.returned)
        return all(
            path in after and self.follows(value, after[path], order) is not False
            for path, value in self.subject.base.returned
        )

    def follows(self, before: Tensor, after: Tensor, order: list[int]) -> bool | None:
        """Return whether a result is reordered; None if it has no axis of the batch."""
        folds = list(element_axes(tuple(before.shape), self.symbol, self.subject.numbers))
        return is_reordered(before, after, order, folds, self.subject.experiment.tolerance) if folds else None

    def _reaches_others(self) -> bool:
        order = self._order(self.elements, swap=False)
        names = [name for name in self.axes if name not in self.looked_up]
        return bool(self._changed(self._change(names, order)) - {self.elements[0]})

    def _changed(self, change: Mapping[str, Replace]) -> set[int]:
        """Return the elements of the batch whose results a change of arguments reaches."""
        base, experiment = self.subject.base, self.subject.experiment
        base.results_are_compared = True
        run = experiment.run(Intervention(inputs=change))
        return changed_elements(base, run, self.symbol, self.subject.numbers, experiment.tolerance)

    def _effect(self, name: str, pair: tuple[int, int], swap: bool) -> Crossing | None:
        """Swap two elements of one argument, or overwrite the first one, and look which results change."""
        reached = self._changed(self._change([name], self._order(pair, swap))) - set(pair if swap else pair[:1])
        return Crossing(name, pair, tuple(sorted(reached)), swap) if reached else None

    def _divergence(self, crossing: Crossing) -> Divergence | None:
        """Return the first result in which one changed element of the argument reaches others."""
        for pair in (crossing.pair, crossing.pair[::-1]):
            change = self._change([crossing.name], self._order(pair, swap=False))
            diff = self.subject.perturb(Intervention(inputs=change))
            if diff.comparable:
                with contextlib.suppress(UnreadableError):
                    found = divergences(diff, self.symbol, pair[0], self.subject.numbers, [crossing.name])
                    if (first := next(found, None)) is not None:
                        return first
        return None

    def _is_looked_up(self, crossing: Crossing) -> bool:
        """Return whether a crossing is a lookup of the argument's elements at indices that an argument gives."""
        first = self._divergence(crossing)
        if first is None or not looks_up(self.subject, first, self.symbol):
            return False
        self.looked_up.add(crossing.name)
        self.__dict__.pop("_reordered_run", None)
        return True

    def _keeps_shapes(self, crossing: Crossing) -> bool:
        """Return whether a crossing isn't merely one of sizes, such as the longest length to which all are padded."""
        change = self._change([crossing.name], self._order(crossing.pair, swap=False))
        run = self.subject.experiment.run(Intervention(inputs=change))
        pairs = zip(self.subject.base.events, run.events, strict=False)
        return run.follows(self.subject.base) and all(
            [value.shape for value in event.values] == [value.shape for value in other.values] for event, other in pairs
        )

    def _reduction(self, crossing: Crossing) -> ReplayedCall | None:
        """Return the first call that makes something without an axis of the batch of the argument."""
        downstream = self.subject.graph.downstream([crossing.name])
        calls = (event for event in self.subject.base.events if event.refs and event.refs[0] in downstream)
        numbers = self.subject.numbers
        return next((e for e in calls if not list(element_axes(tuple(e.values[0].shape), self.symbol, numbers))), None)

    def _first_in_other_order(self) -> ReplayedCall | None:
        """Return the first call whose result isn't reordered, in a run where all arguments are."""
        order = cycle(self.number)
        run = self.subject.experiment.run(Intervention(inputs=self._change(list(self.axes), order)))
        if not run.follows(self.subject.base):
            return None
        for event, other in zip(self.subject.base.events, run.events, strict=True):
            # indices into a folded axis grow with the element, and what nothing was written to yet is arbitrary
            if not reads_numbers(event) or event.unread or not event.values or event.values[0].dtype == torch.int64:
                continue
            if any(self.follows(a, b, order) is False for a, b in zip(event.values, other.values, strict=True)):
                return event
        return None

    def _fold(self, event: ReplayedCall, name: str) -> OutputRef | None:
        """Return the call that folded the argument's batch axis with others before it meets the scores."""
        graph = self.subject.graph
        path = graph.downstream([name])
        for sources, value in zip(event.sources, event.operand_values, strict=True):
            size = next((size for size in value.shape if size > self.number and size % self.number == 0), 0)
            calls = (call for call in graph.upstream(sources) if call.refs[0] in path)
            folded = list(itertools.takewhile(partial(_has_axis, size), calls))
            if folded:
                return folded[-1].refs[0]
        return None


def describe(arguments: BatchArguments, crossing: Crossing) -> Violation:
    """Return the violation for an argument whose element others use."""
    at, reduced = arguments.line(crossing)
    first, second = crossing.pair
    listed = ", ".join(map(str, crossing.reached[:6])) + (", …" if len(crossing.reached) > 6 else "")
    name = crossing.name
    if not crossing.swapped:
        what = f": {reduced.short_name} runs over the batch" if reduced is not None else ""
        message = f"batch element {first} of {name} affects {listed}{what}"
        hint = f"keep the batch axis of {name}: each element has its own"
        evidence = f"overwrote element {first} of {name} with element {second}"
        return Violation("AS101", message, at, hint, evidence)
    message = f"batch elements use {name} of others: elements {listed} use element {first} or {second}"
    event = arguments.subject.base.event(at) if at is not None else None
    if reduced is not None:
        hint = f"keep the batch axis of {name}, and index it with each element's own index"
    elif event is not None and event.name not in RESHAPES and event.numel > arguments.subject.base.inputs[name].numel():
        hint = "use repeat_interleave(H, dim=0) for an axis (B H), and repeat(H, …) for (H B)"
    else:
        hint = f"align the batch axis of {name} with the batch axis of what it meets here"
    return Violation("AS117", message, at, hint, f"swapped elements {first} and {second} of {name}")


def is_explained_as_mask(subject: Subject, name: str) -> bool:
    """Return whether an argument is a claimed mask whose mistake the rule on masks names."""
    if name not in subject.claims.masks:
        return False
    for explanation in explain_visibility(subject)[0]:
        if explanation.hypothesis is not None:
            if dict(explanation.hypothesis.masks).get(name) is not None:
                return True
        elif name in dict(explanation.right.masks):
            leaks = explanation.leaks(name)
            if leaks is not None and bool(leaks.any()):
                return True
    return False


def looks_up(subject: Subject, first: Divergence, symbol: str) -> bool:
    """Return whether a call takes or writes elements of the batch at indices that an integer argument gives."""
    event = first.summary or first.event
    if event.name not in _INDEXED or not event.operands:
        return False
    indices = [operand for operand in event.operands[1:] if operand.dtype in (torch.int64, torch.int32)]
    if event.name in {"getitem", "setitem"}:
        key = event.args[1] if isinstance(event.args[1], tuple) else (event.args[1],)
        axes = [axis for axis, _ in element_axes(tuple(event.operand_values[0].shape), symbol, subject.numbers)]
        indices = [one for axis, one in enumerate(key) if axis in axes and isinstance(one, Tensor)]
    integers = {name for name, value in subject.base.inputs.items() if not value.is_floating_point()}
    return any(
        _comes_from(subject, sources, integers)
        for operand, sources in zip(event.operands, event.sources, strict=True)
        if any(operand is index for index in indices)
    )


def _comes_from(subject: Subject, sources: Iterable[Producer], names: set[str]) -> bool:
    """Return whether one of these inputs gives numbers, without floating-point numbers in between."""
    wanted = set(sources)
    while wanted:
        source = wanted.pop()
        if not isinstance(source, OutputRef):
            if source in names:
                return True
        elif not subject.base.value(source).is_floating_point():
            event = subject.base.event(source)
            wanted |= {one for read in numbers_read(event) for one in read}
    return False


def _has_axis(size: int, call: ReplayedCall) -> bool:
    return size in call.values[0].shape


def _same(value: Tensor, axis: int, elements: Sequence[int] | range) -> bool:
    parts = [value.select(axis, element) for element in elements]
    return not any(differs(parts[0], part, 0.0).any() for part in parts[1:])
