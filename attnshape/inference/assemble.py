"""Combine the facts of one run with the formulas from all runs into steps with signatures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET

from attnshape.dims.expressions import AxisExpression
from attnshape.errors import exception_text
from attnshape.inference.small_runs import Samples
from attnshape.inference.solver import Formula, Solver, matched
from attnshape.model.trace import (
    Avoided,
    Axis,
    Known,
    Loop,
    NamedTensor,
    Reference,
    Source,
    Step,
    Storage,
    TargetOutput,
    TensorRecord,
    Trace,
)
from attnshape.runtime.files import display_path
from attnshape.tracing.raw import RawFailure, RawStep, RawTensor
from attnshape.tracing.tensor_access import UNINITIALIZED

_FUSED = ("scaled_dot_product_attention", ".flex_attention")

Where = tuple[str, int]
"""Where a number is measured, such as `step 3: axis 1`, and of which of the step's outputs."""
Formulas = Mapping[Where, Formula]
"""The formula of each number that the small runs have too."""


class _Assembler:
    """Writes tensors with formulas, from the user's run and the small runs."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._actual = samples.actual
        self._runs = [run for _, run in samples.every]
        self._solver = solver_for(samples)
        self.formulas: dict[Where, Formula] = {}
        self._write()
        while self._solver.again():
            self.formulas.clear()
            self._write()

    @property
    def settled(self) -> bool:
        """Whether no formula was found that another round should confirm, and none is missing."""
        return not self._solver.needs_more_runs and not any(formula.unsolved for _, formula in relevant(self.formulas))

    def _write(self) -> None:
        self.inputs = tuple(self._inputs())
        self.steps = tuple(self._step(position, step) for position, step in enumerate(self._actual.steps))
        self.loops = tuple(self._loops())

    def _inputs(self) -> Iterator[NamedTensor]:
        small = [dict(run.inputs) for run in self._runs]
        sizes = self._samples.plan.sizes
        for name, tensor in self._actual.inputs:
            others = [inputs[name] for inputs in small] if all(name in inputs for inputs in small) else []
            yield NamedTensor(name, self._tensor(tensor, others, name, written=sizes.inputs.get(name, ())))

    def _loops(self) -> Iterator[Loop]:
        runs = [run.loops for run in self._runs]
        alike = all(len(loops) == len(self._actual.loops) for loops in runs)
        for place, loop in enumerate(self._actual.loops):
            counts = [loops[place].count for loops in runs] if alike else []
            formula = self._solve(counts, loop.count, (f"loop {place + 1}", 0))
            if formula.text == "1":  # what other runs repeat
                continue
            modules = loop.modules or UNSET
            yield Loop(loop.begin + 1, loop.end, loop.count, formula.text, formula.known, modules)

    def _step(self, position: int, raw: RawStep) -> Step:
        at = raw.location
        runs = self._runs if position < self._samples.common else []
        outputs = []
        for place, output in enumerate(raw.outputs):
            small = [run.steps[position].outputs[place].tensor for run in runs]
            tensor = self._tensor(output.tensor, small, f"step {position + 1}", place)
            outputs.append(NamedTensor(output.name, tensor, output.named_by_use, output.inner))
        return Step(
            index=position + 1,
            parent=raw.parent + 1 if raw.parent is not None else None,
            expression=(at.expression if at else "") or raw.operation,
            operation=raw.operation,
            module=raw.module,
            source=Source(display_path(at.file), at.line, at.column, at.function) if at else None,
            operands=tuple(raw.operands),
            outputs=tuple(outputs),
            opaque=raw.opaque or UNSET,
        )

    def _tensor(
        self,
        tensor: RawTensor,
        small: Sequence[RawTensor],
        where: str,
        output: int = 0,
        written: Sequence[AxisExpression] = (),
    ) -> TensorRecord:
        """Write one tensor; `small` holds it in each small run, and is empty if these took different steps.

        `written` are the axes of an input as the user wrote them.
        """
        axes = [self._axis(tensor, small, axis, (f"{where}: axis {axis}", output)) for axis in range(len(tensor.shape))]
        for axis, expression in enumerate(written if len(written) == len(axes) else ()):
            if expression.text != axes[axis].text and not tensor.symbols:
                varies = any(other.shape[axis] != tensor.shape[axis] for other in small)
                unvaried: Known = "matched" if expression.symbols else "literal"
                axes[axis] = Formula(expression.text, "verified" if varies else unvaried)
                self.formulas[f"{where}: axis {axis}", output] = axes[axis]
        if small and all(len(other.stride) == len(tensor.stride) for other in small):
            strides = []
            for axis, stride in enumerate(tensor.stride):
                place = (f"{where}: stride {axis}", output)
                formula = self._solve([other.stride[axis] for other in small], stride, place)
                self.formulas[place] = replace(formula, arbitrary=tensor.shape[axis] <= 1)
                strides.append(formula.text)
        else:
            strides = [
                _product_of(axes[place + 1 :], tensor.shape[place + 1 :], s) for place, s in enumerate(tensor.stride)
            ]
        return tensor_record(tensor, axes, strides)

    def _axis(self, tensor: RawTensor, small: Sequence[RawTensor], axis: int, place: Where) -> Formula:
        if any(axis in one.symbols for one in (tensor, *small)):
            return Formula(tensor.symbols.get(axis, str(tensor.shape[axis])), "literal", unsolved=True)
        return self._solve([other.shape[axis] for other in small], tensor.shape[axis], place)

    def _solve(self, values: Sequence[int], actual: int, place: Where) -> Formula:
        if not values:
            return matched(actual, self._samples.plan.sizes.matchable)
        self.formulas[place] = self._solver.solve(tuple(values), actual)
        return self.formulas[place]


def assemble(header: Trace, samples: Samples) -> tuple[tuple[Trace, Formulas], bool]:
    """Return the header as a trace with the steps of the user's run, its formulas, and whether they are settled."""
    assembler = _Assembler(samples)
    trace = msgspec.structs.replace(
        header,
        inputs=assembler.inputs,
        steps=assembler.steps,
        loops=assembler.loops,
        outputs=tuple(TargetOutput(name, reference) for name, reference in samples.actual.returned),
    )
    return (trace, assembler.formulas), assembler.settled


def are_settled(samples: Samples) -> bool:
    """Return whether the formulas of all numbers need no more runs."""
    return _Assembler(samples).settled


def relevant(formulas: Formulas) -> Iterator[tuple[str, Formula]]:
    """Yield the formulas with where they are, except strides that mean nothing."""
    return ((where, formula) for (where, _), formula in formulas.items() if not formula.arbitrary)


def solver_for(samples: Samples, last: Mapping[str, int] | None = None) -> Solver:
    """Return the solver for numbers that were measured in all samples.

    `last` are the sizes of another run whose numbers come last, in the place of the user's.
    """
    validation = [numbers for numbers, _ in samples.validation]
    return Solver(samples.plan, len(samples.runs), validation, samples.diverging, last)


def tensor_record(tensor: RawTensor, axes: Sequence[Formula], strides: Sequence[str]) -> TensorRecord:
    """Return what was measured of a tensor with the formulas of its axes and strides."""
    return TensorRecord(
        signature="..." if tensor.layout == UNINITIALIZED else " ".join(formula.text for formula in axes),
        dtype=tensor.dtype,
        device=tensor.device,
        shape=tensor.shape,
        stride=tensor.stride,
        offset=tensor.offset,
        axes=tuple(
            Axis(formula.text, formula.known, formula.unsolved or formula.doubtful, formula.condition)
            for formula in axes
        ),
        strides=tuple(strides),
        contiguous=tensor.contiguous,
        bytes=tensor.bytes,
        layout=tensor.layout or UNSET,
        storage=Storage(tensor.kind, tensor.of, tensor.root),
    )


def _product_of(axes: Sequence[Formula], shape: Sequence[int], stride: int) -> str:
    """Write a stride known from one run alone: as the product of the axes after it if it equals that."""
    if math.prod(shape) != stride:
        return str(stride)
    factors = [formula.text if formula.text.isalnum() else f"({formula.text})" for formula in axes]
    return "*".join(factor for factor in factors if factor != "1") or "1"


def reference_tensor(reference: Reference, inputs: Sequence[NamedTensor], steps: Sequence[Step]) -> TensorRecord | None:
    """Return the tensor that a reference means, where it is a step's output or an input."""
    if reference.step is not None:
        return steps[reference.step - 1].outputs[reference.output].tensor
    return next((named.tensor for named in inputs if named.name == reference.input), None)


def with_avoided(steps: Sequence[Step], inputs: Sequence[NamedTensor]) -> tuple[Step, ...]:
    """Return the steps, fused ones with the scores that they never make: the query's axes, the last one the keys'."""
    return tuple(_with_scores(step, steps, inputs) if step.operation.endswith(_FUSED) else step for step in steps)


def _with_scores(step: Step, steps: Sequence[Step], inputs: Sequence[NamedTensor]) -> Step:
    if len(step.operands) < 2:  # what it works on isn't seen where it failed
        return step
    query, key = (reference_tensor(operand, inputs, steps) for operand in step.operands[:2])
    if query is None or key is None or len(query.axes) < 2 or len(key.axes) < 2:
        return step
    signature = " ".join([*(axis.expression for axis in query.axes[:-1]), key.axes[-2].expression])
    width = query.bytes // max(math.prod(query.shape), 1)
    count = math.prod(query.shape[:-1]) * key.shape[-2]
    return msgspec.structs.replace(step, avoided=Avoided(signature, count * width))


@dataclass(frozen=True)
class SimilarFailures:
    """The small runs that failed in the same way as the user's, and the formulas of their numbers."""

    actual: RawFailure
    numbers: Mapping[str, int]
    failures: tuple[RawFailure, ...] = ()
    """One for each round and validation run of the solver; empty if they differ in how they fail."""
    solver: Solver | None = None

    def formula(self, values: Sequence[int], actual: int) -> Formula:
        """Return the formula of a quantity from its number in each small run and in the user's."""
        if self.solver is None or len(values) != len(self.failures):
            return matched(actual, self.numbers)
        return self.solver.solve(tuple(values), actual)

    def operands(self, inputs: Sequence[NamedTensor], steps: Sequence[Step]) -> list[TensorRecord]:
        """Return each operand's record: the one that an input or a step has where it is that, else a new one."""
        records = []
        for position, operand in enumerate(self.actual.operands):
            tensor = operand.tensor
            known = reference_tensor(tensor.of, inputs, steps) if tensor.of is not None else None
            if known is None or (known.shape, known.stride) != (tensor.shape, tensor.stride):
                small = [failure.operands[position].tensor for failure in self.failures]
                axes = [
                    Formula(tensor.symbols[axis], "literal", unsolved=True)
                    if axis in tensor.symbols
                    else self.formula([other.shape[axis] for other in small], size)
                    for axis, size in enumerate(tensor.shape)
                ]
                strides = [
                    self.formula([twin.stride[axis] for twin in small], stride).text if small else str(stride)
                    for axis, stride in enumerate(tensor.stride)
                ]
                known = tensor_record(tensor, axes, strides)
            records.append(known)
        return records


def similar_failures(actual: RawFailure, samples: Samples) -> SimilarFailures:
    """Return the small runs that failed at the same call as the user's."""
    numbers = samples.plan.sizes.matchable
    call, rounds = _call(actual), len(samples.runs)
    similar = [(sizes, f) for sizes, run in samples.every if (f := run.failure) is not None and _call(f) == call]
    if rounds < 2 or any(run.failure is None or _call(run.failure) != call for run in samples.runs):
        return SimilarFailures(actual, numbers)
    solver = Solver(samples.plan, rounds, [sizes for sizes, _ in similar[rounds:]])
    return SimilarFailures(actual, numbers, tuple(failure for _, failure in similar), solver)


def _call(failure: RawFailure) -> tuple[object, ...]:
    """Return what two failures at the same call share: operation, place, message, and the ranks of the operands."""
    place = failure.location
    at = (place.file, place.line, place.column) if place is not None else None
    ranks = [len(operand.tensor.stride or operand.tensor.shape) for operand in failure.operands]
    words = re.sub(r"\d+", "0", exception_text(failure.error))
    return (failure.operation, at, ranks, type(failure.error), words)
