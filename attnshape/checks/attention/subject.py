"""What the rules check: a target at one set of small sizes, its attention, and the claims about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, RunGraph, cores, fused_cores
from attnshape.checks.attention.elementwise import MeasuredCore, measure_cores
from attnshape.checks.attention.perturbation import PerturbationDiff, is_pattern, others_at, others_except
from attnshape.checks.interventions.experiment import Experiment, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.interventions.small_sizes import LENGTHS, involves
from attnshape.model.trace import Source
from attnshape.options.claims import Claims
from attnshape.runtime.files import display_path, installed_package
from attnshape.tracing.raw import RawStep, SourceLocation

Cached = TypeVar("Cached")
_PACKAGE = Path(__file__).resolve().parents[2]
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")


class Subject:
    """A target at one set of sizes, with what is known about it."""

    def __init__(self, experiment: Experiment, claims: Claims, other: Mapping[str, int] | None) -> None:
        """`other` is a set of sizes that differs in lengths only, or None."""
        self.experiment = experiment
        self.claims = claims
        self.other = other
        self.numbers = dict(experiment.numbers)
        if {"Hkv", "G"} <= self.numbers.keys():
            self.numbers["H"] = self.numbers["Hkv"] * self.numbers["G"]
        self._kept: dict[Callable[[Subject], Any], Any] = {}
        if "H" not in self.numbers:
            self._take_heads_from_products()

    def _take_heads_from_products(self) -> None:
        """Take the number of heads from the axes that queries and keys share, if no symbol gives it."""
        batch = self.numbers.get(self.batch or "", 0)
        shared = [{core.scores.result.shape[axis] for axis in core.scores.shared} - {1, batch} for core in self.cores]
        queries = [core.tensor("query").shape for core in self.fused]
        shared += [{shape[1]} - {1, batch} for shape in queries if len(shape) == 4]
        sizes = set.union(*shared) if shared else set()
        if len(sizes) == 1:
            (heads,) = sizes
            folded = batch > 1 and heads % batch == 0
            self.numbers["H"] = heads // batch if folded else heads

    def cached(self, make: Callable[[Subject], Cached]) -> Cached:
        """Return a function's result for the subject, computed only once."""
        if make not in self._kept:
            self._kept[make] = make(self)
        made: Cached = self._kept[make]
        return made

    @property
    def base(self) -> ReplayRun:
        """The unchanged run."""
        return self.experiment.base

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether a second unchanged run gives the same numbers."""
        again = PerturbationDiff(self.base, self.experiment.run(), self.experiment.tolerance)
        return again.comparable and not any(bool(mask.any()) for _, mask in again.returned())

    @cached_property
    def graph(self) -> RunGraph:
        """The data flow of the unchanged run."""
        return RunGraph(self.base, set(self.inputs))

    @cached_property
    def cores(self) -> list[Core]:
        """Its attentions whose scores are visible."""
        return cores(self.graph)

    @cached_property
    def fused(self) -> list[FusedCore]:
        """Its fused attentions."""
        return fused_cores(self.graph)

    @property
    def attentions(self) -> list[Core | FusedCore]:
        """All of its attentions."""
        return [*self.cores, *self.fused]

    @property
    def head_sizes(self) -> set[int]:
        """The sizes of axes that hold heads: alone, or folded with the batch."""
        heads = {self.numbers.get("H", 0), self.numbers.get("Hkv", 0)} - {0, 1}
        return heads | {one * self.numbers.get(self.batch or "", 0) for one in heads}

    @cached_property
    def measured(self) -> list[MeasuredCore]:
        """Its attentions with their measured maps."""
        return measure_cores(self.experiment, self.cores)

    @cached_property
    def returned_memory(self) -> set[int]:
        """The storages of the tensors that the target returned."""
        return {tensor.untyped_storage()._cdata for tensor in self.base.results}

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that carry data: floating-point tensors, else integer ones."""
        masks = {name for name, meaning in self.claims.arguments.items()}
        every = {
            name: value
            for name, value in self.base.inputs.items()
            if name not in masks and value.numel() and not is_pattern(value)
        }
        floating = {name: value for name, value in every.items() if value.is_floating_point()}
        # if some tensors have a batch axis, those without one are weights
        batched = {n: v for n, v in floating.items() if any(involves(size, "B", self.numbers) for size in v.shape)}
        return batched or floating or {name: value for name, value in every.items() if value.dtype != torch.bool}

    @cached_property
    def batch(self) -> str | None:
        """The symbol of the batch."""
        if self.claims.seq_first:
            return self._symbol(1)
        return "B" if "B" in self.numbers else self._symbol(0)

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """The symbols of the lengths that inputs have."""
        if self.claims.seq_first:
            found = [self._symbol(0)]
        else:
            found = [symbol for symbol in LENGTHS if symbol in self.numbers]
            found = found or [self._symbol(1) or self._unnamed_length()]
        return tuple(symbol for symbol in found if symbol is not None and symbol != self.batch)

    def _unnamed_length(self) -> str | None:
        """Give the axis after the batch the symbol L, if it has none."""
        for value in self.inputs.values():
            if value.ndim == 3:
                self.numbers["L"] = value.shape[1]
                return "L"
        return None

    def _symbol(self, axis: int) -> str | None:
        """Return the symbol of an axis of the first input with three axes or more."""
        for value in self.inputs.values():
            if value.ndim >= 3:
                return next(
                    (
                        symbol
                        for symbol, number in self.numbers.items()
                        if number == value.shape[axis] and symbol not in _WIDTHS
                    ),
                    None,
                )
        return None

    def at_index(self, symbol: str, index: int) -> dict[str, Replace]:
        """Return replacements of all inputs that have a symbol's axis, which change one index of it."""
        return self._changes(symbol, index, others_at)

    def except_index(self, symbol: str, index: int) -> dict[str, Replace]:
        """Return replacements of all inputs that have a symbol's axis, which change every index of it but one."""
        return self._changes(symbol, index, others_except)

    def _changes(self, symbol: str, index: int, of: Callable[[int, int, int], Replace]) -> dict[str, Replace]:
        found: dict[str, Replace] = {}
        for name, value in self.inputs.items():
            axis = self.axis_of(value, symbol)
            folded = axis is not None and value.shape[axis] != self.numbers[symbol]
            # in which order tokens were folded with something else can't be known
            if axis is not None and not (folded and symbol != self.batch):
                fold = value.shape[axis] // self.numbers[symbol]
                found[name] = of(axis, index * fold, fold)
        return found

    def axis_of(self, value: Tensor, symbol: str) -> int | None:
        """Return the axis of a tensor that has a symbol's size, else a multiple of it."""
        sizes = list(value.shape)
        if self.numbers.get(symbol) in sizes:
            return sizes.index(self.numbers[symbol])
        return next((axis for axis, size in enumerate(sizes) if involves(size, symbol, self.numbers)), None)

    def perturb(self, change: Intervention) -> PerturbationDiff:
        """Run with an intervention, and return which elements of the results differ."""
        return PerturbationDiff(self.base, self.experiment.run(change), self.experiment.tolerance)

    def step(self, ref: OutputRef | None) -> RawStep | None:
        """Return the recorded step of a call, or the traced code's step around it where a library makes the call."""
        step = self.experiment.steps.get(ref.order) if ref is not None else None
        while step is not None and step.library and step.parent is not None:
            step = self.experiment.raw.steps[step.parent]
        return step

    def place(self, ref: OutputRef | None) -> SourceLocation | None:
        """Return a call's location in the source."""
        step = self.step(ref)
        return step.location if step is not None else None

    def source(self, ref: OutputRef | None) -> Source | None:
        """Return a call's location in the source, as it is reported."""
        return displayed_source(self.place(ref))


def displayed_source(place: SourceLocation | None) -> Source | None:
    """Return a location as it is reported: with a path that can be read from the current directory."""
    if place is None:
        return None
    name = display_path(place.file)
    own = installed_package(place.file) is None and str(_PACKAGE) not in place.file
    if own and not Path(name).exists():
        name = place.file
    return Source(name, place.line, place.column, place.function)
