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
from attnshape.observation.watch import (
    Invocation,
    ItemsValue,
    ObservedRun,
    OtherValue,
    TargetObservation,
    TensorValue,
    Value,
)

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
        self._same_in_all_calls: set[str] = set()
        """Symbols of expressions that all calls share."""
        self._differing_between_calls: list[Expressions] = []
        self._chosen: dict[Expressions, str] = {}

    def learn(self, texts: Sequence[str | None]) -> None:
        """Take note of an axis's expressions; every axis must be learned before the first symbol is chosen."""
        for one in _parts(texts):
            if len({text for text in one if text is not None}) == 1:
                self._same_in_all_calls |= {text for text in one if text is not None}
            elif one not in self._differing_between_calls:
                self._differing_between_calls.append(one)

    def choose(self, texts: Sequence[str | None]) -> str | None:
        """Return the expression that holds in all calls, None if there is none."""
        there = [text for text in texts if text is not None]
        if len(set(there)) == 1:
            return there[0]
        parts = _parts(texts)
        if not parts:
            return None
        names = iter([self._common(one) for one in parts])
        return _SYMBOL.sub(lambda _: next(names), there[0])

    def _common(self, texts: Expressions) -> str:
        there = {text for text in texts if text is not None}
        if len(there) == 1:
            return there.pop()
        whole = next((one for one in self._differing_between_calls if _fits(texts, one)), texts)
        if whole not in self._chosen:
            self._chosen[whole] = self._new_symbol(whole)
        return self._chosen[whole]

    def _new_symbol(self, texts: Expressions) -> str:
        taken = self._same_in_all_calls | set(self._chosen.values())
        others = [one for one in self._differing_between_calls if one != texts and not _fits(one, texts)]
        shared = _prefix(texts)
        if shared and shared not in taken and all(_prefix(one) != shared for one in others):
            return shared
        own = [text for text in texts if text is not None and not any(text in one for one in others)]
        free = [text for text in dict.fromkeys(own) if text not in taken]
        if free:
            return max(free, key=len)
        return next(
            f"{symbol}{number}" for number in range(1, 100) for symbol in _SPARE if f"{symbol}{number}" not in taken
        )


def _parts(texts: Sequence[str | None]) -> list[Expressions]:
    """Return, for expressions that differ only in their symbols, the symbols at each place; else nothing."""
    there = [text for text in texts if text is not None]
    if len({_SYMBOL.sub("?", text) for text in there}) != 1:
        return []
    symbols = [_SYMBOL.findall(text) if text is not None else None for text in texts]
    count = len(_SYMBOL.findall(there[0]))
    return [tuple(one[place] if one is not None else None for one in symbols) for place in range(count)]


def _fits(texts: Expressions, whole: Expressions) -> bool:
    """Return whether `whole` has the same symbol in every call in which `texts` has one."""
    pairs = list(zip(texts, whole, strict=True))
    return all(a is None or a == b for a, b in pairs)


def _prefix(texts: Expressions) -> str:
    columns = zip(*(text for text in texts if text is not None), strict=False)
    return "".join(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


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
        if not small or len(small) != len(variation.every):
            return matched(actual, variation.plan.sizes.numbers)
        return self.solver.solve(tuple(small), actual)


def infer_forms(observed: Sequence[TargetObservation]) -> list[FunctionForms]:
    """Return what holds of each function's variables in every call of every observed target."""
    cases = [_Case(one, solver_for(one.variation)) for one in observed]
    functions = dict.fromkeys(
        call.function for case in cases for run in case.runs for call in run.invocations if run is not None
    )
    made = [_of_function(function, cases) for function in functions]
    # every solver must take its turn, so that none loses its sums
    while sum(case.solver.again() for case in cases):
        made = [_of_function(function, cases) for function in functions]
    return made


def _of_function(function: FunctionId, cases: Sequence[_Case]) -> FunctionForms:
    calls = [(case, call) for case in cases for call in _calls(function, case)]
    symbols = CommonSymbols()

    def gather(values_of: Callable[[Invocation], Iterable[tuple[_Key, Value]]]) -> dict[_Key, _Gathered]:
        """Return what was held under each key in each call."""
        keys = dict.fromkeys(key for _, call in calls for run in call for one in run for key, _ in values_of(one))
        gathered = {}
        for key in keys:
            held = [
                (case, [[value for one in run for own, value in values_of(one) if own == key] for run in call])
                for case, call in calls
            ]
            gathered[key] = _gather(held)
            gathered[key].learn_into(symbols)
        return gathered

    arguments = gather(lambda call: call.arguments.items())
    stores = gather(lambda call: (((one.line, one.column, one.name), one.value) for one in call.bindings))
    results = gather(lambda call: call.results)
    whole = gather(lambda call: ((None, value) for _, value in call.results))
    return FunctionForms(
        function,
        {name: one.form(symbols) for name, one in arguments.items()},
        {place: one.form(symbols) for place, one in stores.items()},
        {line: one.form(symbols) for line, one in results.items()},
        whole[None].form(symbols) if whole else None,
    )


def _calls(function: FunctionId, case: _Case) -> list[list[list[Invocation]]]:
    """Return a function's calls, each with its invocation in every run; as one call if the runs differ in number."""
    by_run = [[one for one in run.invocations if one.function == function] for run in case.runs]
    if len({len(calls) for calls in by_run}) == 1:
        return [[[one] for one in call] for call in zip(*by_run, strict=True)]
    return [by_run]


@dataclass
class _Gathered:
    """What a variable held in each call, before common symbols are chosen."""

    types: frozenset[str]
    optional: bool
    dtypes: frozenset[str] = frozenset()
    axes: tuple[tuple[Formula | None, ...], ...] | None = None
    """For a tensor, each axis's formula in each call; None for a call without the tensor."""
    open_at: int | None = None
    """The axis before which calls have any number of axes."""
    items: tuple[_Gathered, ...] | None = None
    kind: str = ""

    def learn_into(self, symbols: CommonSymbols) -> None:
        """Have the common symbols learn every axis's formulas."""
        for axis in self.axes or ():
            symbols.learn([one.text if one is not None else None for one in axis])
        for item in self.items or ():
            item.learn_into(symbols)

    def form(self, symbols: CommonSymbols) -> Form:
        """Return what holds in every call."""
        if self.axes is not None:
            axes = [_axis(axis, symbols) for axis in self.axes]
            if self.open_at is not None:
                axes.insert(self.open_at, AxisForm(ANY_NUMBER))
            return Form(TensorForm(self.dtypes, tuple(axes)), self.optional)
        if self.items is not None:
            return Form(ItemsForm(self.kind, tuple(item.form(symbols) for item in self.items)), self.optional)
        return Form(OtherForm(self.types), self.optional)


def _axis(formulas: tuple[Formula | None, ...], symbols: CommonSymbols) -> AxisForm:
    there = [one for one in formulas if one is not None]
    if not there or any(one.unsolved or one.condition is not None for one in there):
        return AxisForm(None)
    text = symbols.choose([one.text if one is not None else None for one in formulas])
    sure = [one.known if not one.doubtful else "matched" for one in there]
    known: Known = "matched" if "matched" in sure else "verified" if "verified" in sure else "literal"
    return AxisForm(text, known)


def _gather(calls: Sequence[tuple[_Case, HeldValues]]) -> _Gathered:
    values = [value for _, held in calls for run in held for value in run]
    present = [value for value in values if value is not None]
    types = frozenset(_type(value) for value in present) or frozenset(["NoneType"])
    gathered = _Gathered(types, len(present) < len(values))
    tensors = [value for value in present if isinstance(value, TensorValue)]
    items = [value for value in present if isinstance(value, ItemsValue)]
    if tensors and len(tensors) == len(present):
        gathered.dtypes = frozenset(one.dtype for one in tensors)
        gathered.axes, gathered.open_at = _gather_axes(calls, {len(one.shape) for one in tensors})
    elif items and len(items) == len(present) and len({(one.kind, len(one.items)) for one in items}) == 1:
        gathered.kind = items[0].kind
        gathered.items = tuple(
            _gather([(case, _part(held, place)) for case, held in calls]) for place in range(len(items[0].items))
        )
    return gathered


def _part(held: HeldValues, place: int) -> HeldValues:
    return [[value.items[place] for value in run if isinstance(value, ItemsValue)] for run in held]


def _type(value: Value) -> str:
    match value:
        case TensorValue():
            return "Tensor"
        case ItemsValue(kind=name) | OtherValue(type=name):
            return name
    return type(value).__name__


def _gather_axes(
    calls: Sequence[tuple[_Case, HeldValues]], ranks: set[int]
) -> tuple[tuple[tuple[Formula | None, ...], ...], int | None]:
    """Return each axis's formulas; where ranks differ, of the axes on which all calls agree, and the gap's place."""
    least = min(ranks)
    front = [tuple(_formula(case, held, axis) for case, held in calls) for axis in range(least)]
    if len(ranks) == 1:
        return tuple(front), None
    back = [tuple(_formula(case, held, axis - least) for case, held in calls) for axis in range(least)]
    kept = next((axis for axis in range(least) if not _agree(front[axis])), least)
    behind = next((count for count in range(least - kept) if not _agree(back[least - 1 - count])), least - kept)
    return (*front[:kept], *back[least - behind :]), kept


def _agree(formulas: Iterable[Formula | None]) -> bool:
    known = [one for one in formulas if one is not None]
    return len({one.text for one in known}) == 1 and not any(one.unsolved for one in known)


_DIFFERS = Formula("_", "literal", unsolved=True)


def _formula(case: _Case, held: HeldValues, axis: int) -> Formula | None:
    """Return an axis's formula in one call, None if no run had a tensor."""
    sizes = [{one.shape[axis] for one in run if isinstance(one, TensorValue)} for run in held]
    if not any(sizes):
        return None
    if any(len(numbers) > 1 for numbers in sizes) or not sizes[-1]:
        return _DIFFERS
    known = [numbers.pop() for numbers in sizes if numbers]
    if len(known) < len(sizes):  # some runs took another branch
        return matched(known[-1], case.observed.variation.plan.sizes.numbers)
    return case.formula(known)
