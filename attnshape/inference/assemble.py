"""Puts one run's facts and the formulas from all runs together into steps with signatures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from attnshape.inference.formula import Formula, matched
from attnshape.inference.solve import Solver
from attnshape.inference.variation import Variation
from attnshape.model import Axis, Loop, NamedTensor, Reference, Source, Step, Storage, TargetOutput, TensorRecord
from attnshape.paths import display_path
from attnshape.tracing.raw import Place, RawTensor

ENOUGH_ROUNDS = 4
"""Rounds after which a sum or a rounded quotient isn't a coincidence."""


@dataclass(frozen=True)
class Assembled:
    """Inputs, steps and outputs with their formulas."""

    inputs: tuple[NamedTensor, ...]
    steps: tuple[Step, ...]
    loops: tuple[Loop, ...]
    outputs: tuple[TargetOutput, ...]
    unsure: bool
    """Whether a formula was found that another round should confirm."""
    missed: tuple[str, ...]
    """Where a number moved with the sizes and no formula gave it."""
    conditions: Mapping[str, Sequence[str]]
    """The comparisons of sizes under which formulas hold, and where these formulas are."""


class _Assembler:
    """Writes tensors with formulas, from the user's run and the small runs."""

    def __init__(self, variation: Variation, numbers: Mapping[str, int]) -> None:
        self.actual = variation.actual
        self.variation = variation
        self.numbers = numbers
        self.solver = Solver(
            variation.plan, len(variation.runs), [numbers for numbers, _ in variation.witnesses], variation.others
        )
        self.missed: list[str] = []
        self.conditions: dict[str, list[str]] = {}

    def inputs(self) -> tuple[NamedTensor, ...]:
        small = [dict(run.inputs) for _, run in self.variation.every]
        made = []
        for name, tensor in self.actual.inputs:
            others = [inputs[name] for inputs in small if name in inputs]
            made.append(NamedTensor(name, self._tensor(tensor, others if len(others) == len(small) else [], name)))
        return tuple(made)

    def steps(self) -> tuple[Step, ...]:
        return tuple(self._step(position) for position in range(len(self.actual.steps)))

    def loops(self) -> tuple[Loop, ...]:
        runs = [run.loops for _, run in self.variation.every]
        made = []
        for place, loop in enumerate(self.actual.loops):
            counts = [loops[place].count for loops in runs if len(loops) == len(self.actual.loops)]
            formula = self._solve(counts if len(counts) == len(runs) else [], loop.count, f"loop {place + 1}")
            made.append(Loop(loop.begin + 1, loop.end, loop.count, formula.text, formula.known))
        return tuple(made)

    def _step(self, position: int) -> Step:
        raw = self.actual.steps[position]
        runs = [run for _, run in self.variation.every] if position < self.variation.common else []
        outputs = []
        for place, output in enumerate(raw.outputs):
            small = [run.steps[position].outputs[place].tensor for run in runs]
            outputs.append(
                NamedTensor(
                    output.name, self._tensor(output.tensor, small, f"step {position + 1}"), output.by_use, output.inner
                )
            )
        return Step(
            index=position + 1,
            parent=raw.parent + 1 if raw.parent is not None else None,
            expression=(raw.place.expression if raw.place else "") or raw.operation,
            operation=raw.operation,
            module=raw.module,
            source=_source(raw.place),
            operands=tuple(raw.operands),
            outputs=tuple(outputs),
            opaque=raw.opaque or UNSET,
        )

    def _tensor(self, tensor: RawTensor, small: Sequence[RawTensor], where: str) -> TensorRecord:
        """Write one tensor; `small` holds it in each small run, and is empty where these took other steps."""
        axes = [
            self._solve([other.shape[axis] for other in small], size, f"{where}: axis {axis}")
            for axis, size in enumerate(tensor.shape)
        ]
        strides: list[str] = []
        if small and all(len(other.stride) == len(tensor.stride) for other in small):
            for axis, stride in enumerate(tensor.stride):
                seen = f"{where}: stride {axis}" if tensor.shape[axis] > 1 else None
                formula = self._solve([other.stride[axis] for other in small], stride, seen)
                strides.append(formula.text)
        else:
            strides = [
                _product_of(axes[place + 1 :], tensor.shape[place + 1 :], s) for place, s in enumerate(tensor.stride)
            ]
        return tensor_record(tensor, axes, strides)

    def _solve(self, values: Sequence[int], actual: int, where: str | None) -> Formula:
        if not values:
            return matched(actual, self.numbers)
        formula = self.solver.solve(tuple(values), actual)
        if formula.missed and where is not None:
            self.missed.append(where)
        if formula.where and where is not None:
            self.conditions.setdefault(formula.where, []).append(where)
        return formula


def assemble(variation: Variation, numbers: Mapping[str, int]) -> Assembled:
    """Return the user's run with the formulas that the small runs give."""
    assembler = _Assembler(variation, numbers)
    inputs, steps, loops = assembler.inputs(), assembler.steps(), assembler.loops()
    while assembler.solver.again():
        assembler.missed.clear()
        assembler.conditions.clear()
        inputs, steps, loops = assembler.inputs(), assembler.steps(), assembler.loops()
    outputs = tuple(TargetOutput(name, reference) for name, reference in variation.actual.returned)
    return Assembled(
        inputs,
        steps,
        loops,
        outputs,
        assembler.solver.unsure or bool(assembler.missed),
        tuple(assembler.missed),
        assembler.conditions,
    )


def tensor_record(tensor: RawTensor, axes: Sequence[Formula], strides: Sequence[str]) -> TensorRecord:
    """Return what was measured of a tensor with the formulas of its axes and strides."""
    return TensorRecord(
        signature=" ".join(formula.text for formula in axes),
        dtype=tensor.dtype,
        device=tensor.device,
        shape=tensor.shape,
        stride=tensor.stride,
        offset=tensor.offset,
        axes=tuple(
            Axis(formula.text, formula.known, formula.missed or formula.doubtful, formula.where) for formula in axes
        ),
        strides=tuple(strides),
        contiguous=tensor.contiguous,
        bytes=tensor.itemsize * math.prod(tensor.shape),
        storage=Storage(tensor.kind, tensor.of, tensor.root),
    )


def _source(place: Place | None) -> Source | None:
    return Source(display_path(place.file), place.line, place.column, place.function) if place is not None else None


def _product_of(axes: Sequence[Formula], shape: Sequence[int], stride: int) -> str:
    """Write a stride known from one run alone: as the product of the axes behind it where it is that."""
    if math.prod(shape) != stride:
        return str(stride)
    factors = [formula.text if formula.text.isalnum() else f"({formula.text})" for formula in axes]
    return "*".join(factor for factor in factors if factor != "1") or "1"


def reference_tensor(reference: Reference, inputs: Sequence[NamedTensor], steps: Sequence[Step]) -> TensorRecord | None:
    """Return the tensor that a reference means, where it is a step's output or an input."""
    if reference.step is not None:
        return steps[reference.step - 1].outputs[reference.output].tensor
    return next((named.tensor for named in inputs if named.name == reference.input), None)
