"""What the probes look at: a target at one set of small sizes, its attention, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnshape.attention.core import Core, FusedCore, cores, fused_cores
from attnshape.attention.flow import Flow
from attnshape.attention.following import Moved
from attnshape.attention.measured import MeasuredCore, measure
from attnshape.attention.numbers import is_pattern, others_at, others_except
from attnshape.claims import Claims
from attnshape.model import Source
from attnshape.paths import display_path, installed_package
from attnshape.replaying.bench import Bench, Change, Run
from attnshape.replaying.letters import LENGTHS, holds
from attnshape.replaying.replay import Address, Replace
from attnshape.tracing.raw import Place, RawStep

Made = TypeVar("Made")
_PACKAGE = Path(__file__).resolve().parent.parent
_WIDTHS = ("D", "H", "Hkv", "G", "Dk", "Dv")


class Subject:
    """A target at one set of sizes."""

    def __init__(self, bench: Bench, claims: Claims, other: Mapping[str, int] | None) -> None:
        """`other` are sizes that differ in lengths only, None where there are none."""
        self.bench = bench
        self.claims = claims
        self.other = other
        self.numbers = dict(bench.numbers)
        if {"Hkv", "G"} <= self.numbers.keys():
            self.numbers["H"] = self.numbers["Hkv"] * self.numbers["G"]
        self._kept: dict[Callable[[Subject], Any], Any] = {}
        if "H" not in self.numbers:
            self._take_heads_from_products()

    def _take_heads_from_products(self) -> None:
        """Where heads have another letter, take their number from what queries and keys share beside the batch."""
        batch = self.numbers.get(self.batch or "", 0)
        shared = [{core.scores.result.shape[axis] for axis in core.scores.shared} - {1, batch} for core in self.cores]
        queries = [core.tensor("query").shape for core in self.fused]
        shared += [{shape[1]} - {1, batch} for shape in queries if len(shape) == 4]
        sizes = set.union(*shared) if shared else set()
        if len(sizes) == 1:
            (heads,) = sizes
            folded = batch > 1 and heads % batch == 0
            self.numbers["H"] = heads // batch if folded else heads

    def once(self, make: Callable[[Subject], Made]) -> Made:
        """Return what a function makes of the subject, made only the first time."""
        if make not in self._kept:
            self._kept[make] = make(self)
        made: Made = self._kept[make]
        return made

    @property
    def base(self) -> Run:
        """The unchanged run."""
        return self.bench.base

    @cached_property
    def steady(self) -> bool:
        """Whether a run with nothing changed makes the same numbers again."""
        again = Moved(self.base, self.bench.run(), self.bench.tolerance)
        return again.comparable and not any(bool(mask.any()) for _, mask in again.returned())

    @cached_property
    def flow(self) -> Flow:
        """What flows where in it."""
        return Flow(self.base, set(self.inputs))

    @cached_property
    def cores(self) -> list[Core]:
        """Its attentions whose scores can be seen."""
        return cores(self.flow)

    @cached_property
    def fused(self) -> list[FusedCore]:
        """Its fused attentions."""
        return fused_cores(self.flow)

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
        """Its attentions with what was measured of them."""
        return measure(self.bench, self.cores)

    @cached_property
    def returned_memory(self) -> set[int]:
        """The memory of what the target returned."""
        return {tensor.untyped_storage()._cdata for tensor in self.base.results}

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that carry numbers: of floating point, else whole numbers."""
        masks = {name for name, meaning in self.claims.arguments.items()}
        every = {
            name: value
            for name, value in self.base.inputs.items()
            if name not in masks and value.numel() and not is_pattern(value)
        }
        floating = {name: value for name, value in every.items() if value.is_floating_point()}
        # what has no batch, beside what has one, are weights
        batched = {n: v for n, v in floating.items() if any(holds(size, "B", self.numbers) for size in v.shape)}
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
            found = [letter for letter in LENGTHS if letter in self.numbers]
            found = found or [self._symbol(1) or self._unnamed_length()]
        return tuple(letter for letter in found if letter is not None and letter != self.batch)

    def _unnamed_length(self) -> str | None:
        """Give the axis behind the batch a symbol, where it has none of its own."""
        for value in self.inputs.values():
            if value.ndim == 3:
                self.numbers["L"] = value.shape[1]
                return "L"
        return None

    def _symbol(self, axis: int) -> str | None:
        """Return which symbol an axis of the first input of three axes or more is."""
        for value in self.inputs.values():
            if value.ndim >= 3:
                return next(
                    (
                        letter
                        for letter, number in self.numbers.items()
                        if number == value.shape[axis] and letter not in _WIDTHS
                    ),
                    None,
                )
        return None

    def at_index(self, letter: str, index: int) -> dict[str, Replace]:
        """Return the changes of all inputs that have a symbol's axis, at one index of it."""
        return self._changes(letter, index, others_at)

    def except_index(self, letter: str, index: int) -> dict[str, Replace]:
        """Return the changes of all inputs that have a symbol's axis, at all indices of it but one."""
        return self._changes(letter, index, others_except)

    def _changes(self, letter: str, index: int, of: Callable[[int, int, int], Replace]) -> dict[str, Replace]:
        found: dict[str, Replace] = {}
        for name, value in self.inputs.items():
            axis = self.axis_of(value, letter)
            folded = axis is not None and value.shape[axis] != self.numbers[letter]
            # in which order tokens were folded with something else can't be known
            if axis is not None and not (folded and letter != self.batch):
                fold = value.shape[axis] // self.numbers[letter]
                found[name] = of(axis, index * fold, fold)
        return found

    def axis_of(self, value: Tensor, letter: str) -> int | None:
        """Return the axis of a tensor that stands for a symbol: its very size, else a multiple."""
        sizes = list(value.shape)
        if self.numbers.get(letter) in sizes:
            return sizes.index(self.numbers[letter])
        return next((axis for axis, size in enumerate(sizes) if holds(size, letter, self.numbers)), None)

    def moved(self, change: Change) -> Moved:
        """Return what a change moves."""
        return Moved(self.base, self.bench.run(change), self.bench.tolerance)

    def step(self, address: Address | None) -> RawStep | None:
        """Return the recorded step of a call, or that of the traced code around it where a library makes it."""
        step = self.bench.steps.get(address.order) if address is not None else None
        while step is not None and step.library and step.parent is not None:
            step = self.bench.raw.steps[step.parent]
        return step

    def place(self, address: Address | None) -> Place | None:
        """Return where in the source a call stands."""
        step = self.step(address)
        return step.place if step is not None else None

    def source(self, address: Address | None) -> Source | None:
        """Return where in the source a call stands, as it is shown."""
        return shown(self.place(address))


def shown(place: Place | None) -> Source | None:
    """Return a place as it is shown: under a name by which its file can be read from the current folder."""
    if place is None:
        return None
    name = display_path(place.file)
    own = installed_package(place.file) is None and str(_PACKAGE) not in place.file
    if own and not Path(name).exists():
        name = place.file
    return Source(name, place.line, place.column, place.function)
