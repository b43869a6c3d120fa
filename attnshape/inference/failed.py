"""What the small runs tell of the call that failed: its operands' formulas, and those of its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnshape.inference.assemble import reference_tensor, tensor_record
from attnshape.inference.formula import Formula, matched
from attnshape.inference.solve import Solver
from attnshape.inference.variation import Variation
from attnshape.model import NamedTensor, Step, TensorRecord
from attnshape.tracing.raw import RawFailure, RawTensor


@dataclass(frozen=True)
class Alike:
    """The small runs that failed in the same way as the user's, and the formulas of what was measured in them."""

    actual: RawFailure
    numbers: Mapping[str, int]
    failures: tuple[RawFailure, ...] = ()
    """One for each round and witness of the solver; empty where they don't fail alike."""
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
                known = self._record(tensor, [failure.operands[position].tensor for failure in self.failures])
            records.append(known)
        return records

    def _record(self, tensor: RawTensor, small: Sequence[RawTensor]) -> TensorRecord:
        axes = [self.formula([one.shape[axis] for one in small], size) for axis, size in enumerate(tensor.shape)]
        strides = [
            self.formula([one.stride[axis] for one in small], stride).text if small else str(stride)
            for axis, stride in enumerate(tensor.stride)
        ]
        return tensor_record(tensor, axes, strides)


def alike(actual: RawFailure, variation: Variation, numbers: Mapping[str, int]) -> Alike:
    """Return what is known of a failure from the small runs, as far as these failed at the same call."""
    rounds = [run.failure for run in variation.runs]
    kept = [failure for failure in rounds if failure is not None and _same_call(failure, actual)]
    if len(kept) < len(rounds) or len(kept) < 2:
        return Alike(actual, numbers)
    witnesses = [
        (sizes, run.failure)
        for sizes, run in variation.witnesses
        if run.failure is not None and _same_call(run.failure, actual)
    ]
    solver = Solver(variation.plan, len(kept), [sizes for sizes, _ in witnesses])
    return Alike(actual, numbers, (*kept, *(failure for _, failure in witnesses)), solver)


def _same_call(one: RawFailure, other: RawFailure) -> bool:
    """Say whether two failures are of one operation at one place, in the same words, with operands of equal ranks."""
    return _call(one) == _call(other)


def _call(failure: RawFailure) -> tuple[object, ...]:
    place = failure.place
    at = (place.file, place.line, place.column) if place is not None else None
    ranks = [len(operand.tensor.stride or operand.tensor.shape) for operand in failure.operands]
    words = re.sub(r"\d+", "0", str(failure.error))
    return (failure.operation, at, ranks, type(failure.error), words)
