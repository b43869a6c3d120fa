"""Arguments of calls that are no tensors, with a formula where they follow from the sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from attnshape.inference.assemble import solver_for
from attnshape.inference.small_runs import Samples
from attnshape.inference.solver import Solver
from attnshape.model.trace import UNKNOWN_FORMULA, Argument, Step
from attnshape.tracing.arguments import Plain, named_arguments
from attnshape.tracing.operations import NUMBERS_SEEN_IN_RESULT, SELECTIONS, base_name
from attnshape.tracing.raw import RawStep

_LEFT_OUT = NUMBERS_SEEN_IN_RESULT | SELECTIONS
"""Operations whose numbers say only which shape the result has, or which elements."""
_CLOSE = 1e-9


def with_arguments(steps: Sequence[Step], samples: Samples) -> tuple[Step, ...]:
    """Return the steps of the user's run with the arguments of their calls."""
    finder = _Formulas(samples)
    return tuple(
        replace(step, arguments=tuple(finder.arguments(place, raw)))
        for place, (step, raw) in enumerate(zip(steps, samples.actual.steps, strict=True))
    )


class _Formulas:
    """Writes arguments as formulas in the sizes, from the user's run and the small runs."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._runs = [run for _, run in samples.every]
        self._solver: Solver | None = None

    def arguments(self, position: int, raw: RawStep) -> Iterator[Argument]:
        """Yield the arguments of one step."""
        if not raw.arguments or base_name(raw.operation) in _LEFT_OUT:
            return
        known = position < self._samples.common
        small = [dict(run.steps[position].arguments) for run in self._runs] if known else []
        for (place, value), argument in zip(raw.arguments, named_arguments(raw.function, raw.arguments), strict=True):
            if argument is None:
                continue
            others = [arguments[place] for arguments in small if place in arguments]
            formula = self._formula(value, others if len(others) == len(small) else [])
            yield Argument(argument.name, repr(value), formula, argument.is_default)

    def _formula(self, value: Plain, others: Sequence[Plain]) -> str | None:
        """Return the formula of a value that varies with the sizes; None of one that doesn't, or is no number."""
        if isinstance(value, (bool, str)) or (others and all(other == value for other in others)):
            return None
        if not others or isinstance(value, tuple) or any(isinstance(other, (bool, str, tuple)) for other in others):
            return UNKNOWN_FORMULA
        every = [float(number) for number in (*others, value) if not isinstance(number, (str, tuple))]
        for text, inverse in _FORMS:
            counts = [inverse(number) for number in every]
            if all(count is not None and abs(count - round(count)) <= _CLOSE * count for count in counts):
                whole = [round(count) for count in counts if count is not None]
                found = self._solve(whole[:-1], whole[-1])
                if found is not None:
                    return text.format(found)
        return UNKNOWN_FORMULA

    def _solve(self, values: Sequence[int], actual: int) -> str | None:
        if self._solver is None:
            self._solver = solver_for(self._samples)
        formula = self._solver.solve(tuple(values), actual)
        return formula.text if formula.known == "verified" and not formula.unsolved else None


def _count(number: float, power: float) -> float | None:
    """Return a number to a power, if it is positive and finite as a size must be."""
    return number**power if 1e-12 < number < 1e12 and math.isfinite(number) else None


_FORMS: tuple[tuple[str, Callable[[float], float | None]], ...] = (
    ("{}", lambda number: _count(number, 1.0)),
    ("1/({})", lambda number: _count(number, -1.0)),
    ("sqrt({})", lambda number: _count(number, 2.0)),
    ("1/sqrt({})", lambda number: _count(number, -2.0)),
)
"""How a number may follow from a size, and how the size follows from the number."""
