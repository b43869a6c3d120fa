"""From what variables held in several runs to what holds in all of them: formulas, and letters that stand for several.

A function may be called with queries and then with keys. Of an axis that was `Lq` in one call and `Lk` in another the
annotation can still say that it is the same wherever it stands: this is anti-unification (Plotkin 1970, "A note on
inductive generalization"), with a size symbol in the place of the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnshape.inference.formula import Formula, matched
from attnshape.inference.solve import Solver
from attnshape.model import Known
from attnshape.variables.forms import (
    ANY_NUMBER,
    AxisForm,
    Form,
    FunctionForms,
    ItemsForm,
    OtherForm,
    TensorForm,
)
from attnshape.variables.letters import Letters
from attnshape.variables.observe import Observed, Run
from attnshape.variables.values import SeenItems, SeenOther, SeenTensor, Value
from attnshape.variables.watch import Function, Invocation

Held = list[list[Value]]
"""What a variable held in one call: in each run, the user's last, each time that it was bound."""
Read = Callable[[Invocation], list[Value]]


@dataclass(frozen=True)
class _Case:
    """One observed target, with the formulas of its numbers."""

    observed: Observed
    solver: Solver

    @property
    def runs(self) -> list[Run]:
        return [*self.observed.small, self.observed.actual]

    def formula(self, numbers: Sequence[int]) -> Formula:
        """Return the formula of a number from what it was in each run."""
        *small, actual = numbers
        variation = self.observed.variation
        if not small or len(small) != len(variation.every):
            return matched(actual, variation.plan.sizes.numbers)
        return self.solver.solve(tuple(small), actual)


def signatures(observed: Sequence[Observed]) -> list[FunctionForms]:
    """Return what holds of each function's variables in every call of every observed target."""
    cases = [_Case(one, _solver(one)) for one in observed]
    functions = dict.fromkeys(
        call.function for case in cases for run in case.runs for call in run.invocations if run is not None
    )
    made = [_of_function(function, cases) for function in functions]
    while any([case.solver.again() for case in cases]):  # noqa: C419 - each must be asked
        made = [_of_function(function, cases) for function in functions]
    return made


def _solver(observed: Observed) -> Solver:
    variation = observed.variation
    return Solver(
        variation.plan, len(variation.runs), [numbers for numbers, _ in variation.witnesses], variation.others
    )


def _of_function(function: Function, cases: Sequence[_Case]) -> FunctionForms:
    calls = [(case, call) for case in cases for call in _calls(function, case)]
    letters = Letters()

    def forms(reads: Mapping[object, Read]) -> dict[object, _Gathered]:
        held = {key: [(case, _held(call, read)) for case, call in calls] for key, read in reads.items()}
        return {key: _gather(values) for key, values in held.items()}

    every = [one for _, call in calls for run in call for one in run]
    arguments = forms({name: _argument(name) for one in every for name in one.arguments})
    stores = forms(
        {(b.line, b.column, b.name): _store(b.line, b.column, b.name) for one in every for b in one.bindings}
    )
    results = forms({line: _result(line) for one in every for line, _ in one.results})
    whole = forms({"": lambda call: [value for _, value in call.results]})
    for gathered in (arguments, stores, results, whole):
        for one in gathered.values():
            one.teach(letters)
    return FunctionForms(
        function,
        {str(name): one.form(letters) for name, one in arguments.items()},
        {key: one.form(letters) for key, one in stores.items()},  # type: ignore[misc]  # keys are those that were given
        {int(line): one.form(letters) for line, one in results.items()},  # type: ignore[call-overload]  # likewise
        whole[""].form(letters) if results else None,
    )


def _calls(function: Function, case: _Case) -> list[list[list[Invocation]]]:
    """Return the calls of a function, each with its invocation in every run; all in one where runs differ in number."""
    by_run = [[one for one in run.invocations if one.function == function] for run in case.runs]
    counts = {len(calls) for calls in by_run}
    if len(counts) == 1:
        return [[[calls[place]] for calls in by_run] for place in range(counts.pop())]
    return [by_run]


def _held(call: list[list[Invocation]], read: Read) -> Held:
    return [[value for one in run for value in read(one)] for run in call]


def _argument(name: str) -> Read:
    return lambda call: [call.arguments[name]] if name in call.arguments else []


def _store(line: int, column: int, name: str) -> Read:
    return lambda call: [b.value for b in call.bindings if (b.line, b.column, b.name) == (line, column, name)]


def _result(line: int) -> Read:
    return lambda call: [value for at, value in call.results if at == line]


@dataclass
class _Gathered:
    """What a variable held in each call, before letters are chosen for what differs."""

    dtypes: frozenset[str]
    axes: tuple[tuple[Formula | None, ...], ...] | None
    """For a tensor, of each axis the formula in each call; None for a call in which there was none."""
    open_at: int | None
    """Before which axis any number of axes may stand."""
    items: tuple[_Gathered, ...] | None
    kind: str
    types: frozenset[str]
    optional: bool

    def teach(self, letters: Letters) -> None:
        """Tell which formulas an axis has, so that letters are chosen apart from one another."""
        for axis in self.axes or ():
            letters.learn([one.text if one is not None else None for one in axis])
        for item in self.items or ():
            item.teach(letters)

    def form(self, letters: Letters) -> Form:
        """Return what holds in every call."""
        if self.axes is not None:
            axes = [_axis(axis, letters) for axis in self.axes]
            if self.open_at is not None:
                axes.insert(self.open_at, AxisForm(ANY_NUMBER))
            return Form(TensorForm(self.dtypes, tuple(axes)), self.optional)
        if self.items is not None:
            return Form(ItemsForm(self.kind, tuple(item.form(letters) for item in self.items)), self.optional)
        return Form(OtherForm(self.types), self.optional)


def _axis(formulas: tuple[Formula | None, ...], letters: Letters) -> AxisForm:
    there = [one for one in formulas if one is not None]
    if not there or any(one.missed or one.where is not None for one in there):
        return AxisForm(None)
    text = letters.choose([one.text if one is not None else None for one in formulas])
    sure = [one.known if not one.doubtful else "matched" for one in there]
    known: Known = "matched" if "matched" in sure else "proved" if "proved" in sure else "literal"
    return AxisForm(text, known)


def _gather(calls: Sequence[tuple[_Case, Held]]) -> _Gathered:
    values = [value for _, held in calls for run in held for value in run]
    optional = any(value is None for value in values)
    there = [value for value in values if value is not None]
    types = frozenset(_type(value) for value in there) or frozenset(["NoneType"])
    empty = _Gathered(frozenset(), None, None, None, "", types, optional)
    if not there:
        return empty
    tensors = [value for value in there if isinstance(value, SeenTensor)]
    if len(tensors) == len(there):
        return _tensors(calls, tensors, optional)
    items = [value for value in there if isinstance(value, SeenItems)]
    if len(items) == len(there) and len({(one.kind, len(one.items)) for one in items}) == 1:
        parts = tuple(
            _gather([(case, _part(held, place)) for case, held in calls]) for place in range(len(items[0].items))
        )
        return _Gathered(frozenset(), None, None, parts, items[0].kind, types, optional)
    return empty


def _part(held: Held, place: int) -> Held:
    return [[value.items[place] for value in run if isinstance(value, SeenItems)] for run in held]


def _type(value: Value) -> str:
    match value:
        case SeenTensor():
            return "Tensor"
        case SeenItems(kind=kind):
            return kind
        case SeenOther(type=name):
            return name
    return type(value).__name__


def _tensors(calls: Sequence[tuple[_Case, Held]], tensors: Sequence[SeenTensor], optional: bool) -> _Gathered:
    dtypes = frozenset(one.dtype for one in tensors)
    ranks = {len(one.shape) for one in tensors}
    least = min(ranks)
    if len(ranks) == 1:
        axes = tuple(_formulas(calls, place) for place in range(least))
        return _Gathered(dtypes, axes, None, None, "", frozenset(["Tensor"]), optional)
    front = [_formulas(calls, place) for place in range(least)]
    back = [_formulas(calls, place - least) for place in range(least)]
    kept = next((place for place in range(least) if not _agree(front[place])), least)
    behind = next((count for count in range(least - kept) if not _agree(back[least - 1 - count])), least - kept)
    axes = (*front[:kept], *back[least - behind :])
    return _Gathered(dtypes, axes, kept, None, "", frozenset(["Tensor"]), optional)


def _agree(formulas: Iterable[Formula | None]) -> bool:
    return len({one.text for one in formulas if one is not None and not one.missed}) == 1 and not any(
        one.missed for one in formulas if one is not None
    )


def _formulas(calls: Sequence[tuple[_Case, Held]], axis: int) -> tuple[Formula | None, ...]:
    return tuple(_formula(case, held, axis) for case, held in calls)


_DIFFERS = Formula("_", "literal", missed=True)


def _formula(case: _Case, held: Held, axis: int) -> Formula | None:
    """Return an axis's formula in one call, None where the variable was no tensor in any run."""
    sizes = [{one.shape[axis] for one in run if isinstance(one, SeenTensor)} for run in held]
    if not any(sizes):
        return None
    if any(len(numbers) > 1 for numbers in sizes) or not sizes[-1]:
        return _DIFFERS
    known = [numbers.pop() for numbers in sizes if numbers]
    if len(known) < len(sizes):  # some runs took another branch
        return matched(known[-1], case.observed.variation.plan.sizes.numbers)
    return case.formula(known)
