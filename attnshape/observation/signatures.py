"""Infers what holds of variables in all runs: formulas for axes, and common symbols where calls differ.

A function may be called with queries and then with keys. An axis that was `Lq` in one call and `Lk` in another gets one
symbol wherever the two correspond: this is anti-unification (Plotkin 1970, "A note on inductive generalization"), with
a size symbol as the variable.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from attnshape.inference.assemble import solver_for
from attnshape.inference.solver import Formula, Solver, matched
from attnshape.model.trace import Known
from attnshape.observation.forms import (
    ANY_NUMBER,
    AxisForm,
    Form,
    FunctionForms,
    FunctionId,
    ItemsForm,
    OtherForm,
    TensorForm,
)
from attnshape.observation.watch import Invocation, ItemsValue, ObservedRun, TargetObservation, TensorValue, Value

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_SPARE = "NMKPQ"

Expressions = tuple[str | None, ...]
"""An axis's expression in each call of a function, None if there was no such axis."""


class CommonSymbols:
    """Chooses size symbols for axes that differ between calls, so that each means one size within any call.

    >>> symbols = CommonSymbols()
    >>> for axis in (["B", "B"], ["Lq", "Lk"], ["H*Lq", "H*Lk"]):
    ...     symbols.learn(axis)
    >>> symbols.choose(["B", "B"]), symbols.choose(["Lq", "Lk"]), symbols.choose(["H*Lq", "H*Lk"])
    ('B', 'L', 'H*L')
    """

    def __init__(self) -> None:
        self._same_in_all_calls: set[str | None] = set()
        """Symbols of expressions that all calls share."""
        self._differing_between_calls: list[Expressions] = []
        self._chosen: dict[Expressions, str] = {}

    def learn(self, texts: Sequence[str | None]) -> None:
        """Take note of an axis's expressions; every axis must be learned before the first symbol is chosen."""
        for symbols in _parts(texts):
            different = set(symbols) - {None}
            if len(different) == 1:
                self._same_in_all_calls |= different
            elif symbols not in self._differing_between_calls:
                self._differing_between_calls.append(symbols)

    def choose(self, texts: Sequence[str | None]) -> str | None:
        """Return the expression that holds in all calls, None if there is none."""
        there = [text for text in texts if text is not None]
        if len(set(there)) == 1:
            return there[0]
        common = [self._common(symbols) for symbols in _parts(texts)]
        names = iter(common)
        return _SYMBOL.sub(lambda _: next(names), there[0]) if common else None

    def _common(self, texts: Expressions) -> str:
        there = {text for text in texts if text is not None}
        if len(there) == 1:
            return there.pop()
        whole = next((symbols for symbols in self._differing_between_calls if _fits(texts, symbols)), texts)
        if whole not in self._chosen:
            self._chosen[whole] = self._new_symbol(whole)
        return self._chosen[whole]

    def _new_symbol(self, texts: Expressions) -> str:
        taken = self._same_in_all_calls | set(self._chosen.values())
        others = [one for one in self._differing_between_calls if one != texts and not _fits(one, texts)]
        shared = _prefix(texts)
        if shared and shared not in taken and all(_prefix(symbols) != shared for symbols in others):
            return shared
        own = [text for text in texts if text is not None and not any(text in symbols for symbols in others)]
        if free := [text for text in own if text not in taken]:
            return max(free, key=len)
        spare = (f"{symbol}{number}" for number in range(1, 100) for symbol in _SPARE)
        return next(symbol for symbol in spare if symbol not in taken)


def _parts(texts: Sequence[str | None]) -> list[Expressions]:
    """Return, for expressions that differ only in their symbols, the symbols at each place; else nothing."""
    there = [text for text in texts if text is not None]
    if len({_SYMBOL.sub("?", text) for text in there}) != 1:
        return []
    count = len(_SYMBOL.findall(there[0]))
    return list(zip(*(_SYMBOL.findall(text) if text is not None else [None] * count for text in texts), strict=True))


def _fits(texts: Expressions, whole: Expressions) -> bool:
    """Return whether `whole` has the same symbol in every call in which `texts` has one."""
    return all(a is None or a == b for a, b in zip(texts, whole, strict=True))


def _prefix(texts: Expressions) -> str:
    columns = zip(*(text for text in texts if text is not None), strict=False)
    return "".join(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


_FEWEST_ROUNDS = 2
"""Fewer show nothing of how a number depends on the sizes."""
HeldValues = list[list[Value]]
"""What a variable held in one call: in each run, the user's last, each value that was bound to it."""
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class _Case:
    """One observed target, with the solver for its numbers."""

    observed: TargetObservation
    solver: Solver

    @property
    def runs(self) -> list[ObservedRun]:
        return [*self.observed.small, self.observed.actual]

    def formula(self, numbers: Sequence[int]) -> Formula:
        """Return the formula of a number from its value in each run."""
        *small, actual = numbers
        variation = self.observed.variation
        if len(variation.runs) < _FEWEST_ROUNDS:
            return matched(actual, variation.plan.sizes.matchable)
        return self.solver.solve(tuple(small), actual)


def infer_forms(observed: Sequence[TargetObservation]) -> list[FunctionForms]:
    """Return what holds of each function's variables in every call of every observed target."""
    cases = [_Case(observation, solver_for(observation.variation)) for observation in observed]
    functions = dict.fromkeys(call.function for case in cases for run in case.runs for call in run.invocations)
    forms = [_of_function(function, cases) for function in functions]
    # not `any`, which would skip later solvers: each must take part in every round to keep its sums
    while sum(case.solver.again() for case in cases):
        forms = [_of_function(function, cases) for function in functions]
    return forms


def _of_function(function: FunctionId, cases: Sequence[_Case]) -> FunctionForms:
    calls = [(case, call) for case in cases for call in _calls(function, case)]
    symbols = CommonSymbols()

    def gather(values_of: Callable[[Invocation], Iterable[tuple[_Key, Value]]]) -> dict[_Key, Callable[[], Form]]:
        """Return, by key, what makes the form of the values under it; all must be gathered before any is made."""
        held: dict[_Key, list[HeldValues]] = {}
        for place, (_, call) in enumerate(calls):
            for number, run in enumerate(call):
                for key, value in (pair for invocation in run for pair in values_of(invocation)):
                    if key not in held:
                        held[key] = [[[] for _ in runs] for _, runs in calls]
                    held[key][place][number].append(value)
        forms = {}
        for key, values in held.items():
            forms[key] = _gather([(case, of_call) for (case, _), of_call in zip(calls, values, strict=True)], symbols)
        return forms

    arguments = gather(lambda call: call.arguments.items())
    stores = gather(lambda call: (((store.line, store.column, store.name), store.value) for store in call.bindings))
    results = gather(lambda call: call.results)
    whole = gather(lambda call: ((None, value) for _, value in call.results))
    return FunctionForms(
        function,
        {name: form() for name, form in arguments.items()},
        {place: form() for place, form in stores.items()},
        {line: form() for line, form in results.items()},
        whole[None]() if whole else None,
        next((invocation.unwatched_from for _, call in calls for run in call for invocation in run), None),
    )


def _calls(function: FunctionId, case: _Case) -> list[list[list[Invocation]]]:
    """Return a function's calls, each with its invocation in every run; as one call if the runs differ in number."""
    by_run = [[call for call in run.invocations if call.function == function] for run in case.runs]
    if len({len(calls) for calls in by_run}) == 1:
        return [[[invocation] for invocation in call] for call in zip(*by_run, strict=True)]
    return [by_run]


_Axis = tuple[Formula | None, ...]
"""An axis's formula in each call; None for a call without the tensor."""


def _texts(axis: _Axis) -> list[str | None]:
    return [formula.text if formula is not None else None for formula in axis]


def _axis(axis: _Axis, symbols: CommonSymbols) -> AxisForm:
    formulas = [formula for formula in axis if formula is not None]
    if not formulas or any(formula.unsolved or formula.condition is not None for formula in formulas):
        return AxisForm(None)
    sure = {"matched" if formula.doubtful else formula.known for formula in formulas}
    known: Known = "matched" if "matched" in sure else "verified" if "verified" in sure else "literal"
    return AxisForm(symbols.choose(_texts(axis)), known)


def _gather(calls: Sequence[tuple[_Case, HeldValues]], symbols: CommonSymbols) -> Callable[[], Form]:
    """Have the common symbols learn what a variable held in each call, and return what then makes its form."""
    values = [value for _, held in calls for run in held for value in run]
    present = [value for value in values if value is not None]
    optional = len(present) < len(values)
    tensors = [value for value in present if isinstance(value, TensorValue)]
    items = [value for value in present if isinstance(value, ItemsValue)]
    if tensors and len(tensors) == len(present):
        dtypes = frozenset(tensor.dtype for tensor in tensors)
        axes, open_at = _gather_axes(calls, {len(tensor.shape) for tensor in tensors})
        for axis in axes:
            symbols.learn(_texts(axis))

        def tensor_form() -> Form:
            forms = [_axis(axis, symbols) for axis in axes]
            if open_at is not None:
                forms.insert(open_at, AxisForm(ANY_NUMBER))
            return Form(TensorForm(dtypes, tuple(forms)), optional)

        return tensor_form
    if items and len(items) == len(present) and len({(value.kind, len(value.items)) for value in items}) == 1:
        places = range(len(items[0].items))
        parts = [_gather([(case, _part(held, place)) for case, held in calls], symbols) for place in places]
        return lambda: Form(ItemsForm(items[0].kind, tuple(form() for form in parts)), optional)
    return lambda: Form(OtherForm(), optional)


def _part(held: HeldValues, place: int) -> HeldValues:
    return [[value.items[place] for value in run if isinstance(value, ItemsValue)] for run in held]


def _gather_axes(calls: Sequence[tuple[_Case, HeldValues]], ranks: set[int]) -> tuple[tuple[_Axis, ...], int | None]:
    """Return each axis's formulas; where ranks differ, of the axes on which all calls agree, and the gap's place."""
    least = min(ranks)
    front = [tuple(_formula(case, held, axis) for case, held in calls) for axis in range(least)]
    if len(ranks) == 1:
        return tuple(front), None
    back = [tuple(_formula(case, held, axis - least) for case, held in calls) for axis in range(least)]
    kept = next((axis for axis in range(least) if not _agree(front[axis])), least)
    behind = next((count for count in range(least - kept) if not _agree(back[least - 1 - count])), least - kept)
    return (*front[:kept], *back[least - behind :]), kept


def _agree(axis: _Axis) -> bool:
    formulas = [formula for formula in axis if formula is not None]
    return len({formula.text for formula in formulas}) == 1 and not any(formula.unsolved for formula in formulas)


_DIFFERS = Formula("_", "literal", unsolved=True)


def _formula(case: _Case, held: HeldValues, axis: int) -> Formula | None:
    """Return an axis's formula in one call, None if no run had a tensor."""
    sizes = [{value.shape[axis] for value in run if isinstance(value, TensorValue)} for run in held]
    if not any(sizes):
        return None
    if any(len(numbers) > 1 for numbers in sizes) or not sizes[-1]:
        return _DIFFERS
    known = [numbers.pop() for numbers in sizes if numbers]
    if len(known) < len(sizes):  # some runs took another branch
        return matched(known[-1], case.observed.variation.plan.sizes.matchable)
    return case.formula(known)
