"""Formulas for what each step of a trace costs, from what was counted in its runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from attnshape.cost.cached import cache_per_token
from attnshape.cost.estimate import sum_text
from attnshape.dims.expressions import parse_expression
from attnshape.dims.symbols import ORDER
from attnshape.inference.assemble import solver_for
from attnshape.inference.small_runs import Samples
from attnshape.inference.solver import Solver
from attnshape.model.trace import Cost, Quantity, Step, TotalCost, Trace
from attnshape.tracing.raw import RawCost, RawStep, RawTrace

_Kind = Literal["flops", "products", "moved", "temporary", "saved"]
_KINDS: tuple[_Kind, ...] = ("flops", "moved", "temporary", "saved")
_OF_ATTENTION = ("scores", "context")
_NOTHING = RawCost()
_LONGEST = 160
"""The most characters that a formula is shown with."""
_NAME = re.compile(r"[^\W\d]\w*")
Run = tuple[Mapping[str, int], RawTrace]
"""A run and its sizes."""


@dataclass(frozen=True)
class CountedRuns:
    """The runs of a trace, each with what its steps cost."""

    samples: Samples
    """The user's run and the small ones; of a series of equal blocks only one is left, as in the trace."""
    held_out: Run | None
    """A run at sizes from which no formula is inferred; one that is wrong there is dropped."""
    whole: Samples
    """The same samples with all blocks, which need not cost the same."""
    whole_held_out: Run | None
    on_cpu: bool
    """Whether the user's run was on the CPU, as the small ones are: its kernels may be others elsewhere."""


def with_costs(trace: Trace, runs: CountedRuns) -> Trace:
    """Return the trace with what its steps cost, each and together."""
    actual = runs.samples.actual
    counted = [place for place, step in enumerate(actual.steps) if step.cost is not None]
    if actual.cost is None or not counted:
        return trace
    formulas = _Formulas(runs.samples, runs.held_out, runs.on_cpu)
    inside = _counted_within(actual.steps)
    costs = {place: formulas.cost([place], place) for place in counted}
    costs |= {place: formulas.cost(leaves, place) for place, leaves in inside.items()}
    own = _OwnSymbols(trace)
    steps = tuple(
        replace(step, cost=own.written(costs[place], step)) if place in costs else step
        for place, step in enumerate(trace.steps)
    )
    total = _Formulas(runs.whole, runs.whole_held_out, runs.on_cpu).total()
    attention = [
        place
        for place in counted
        if trace.steps[place].role in _OF_ATTENTION or trace.steps[place].avoided is not UNSET
    ]
    total = replace(
        total,
        attention=_of_attention(formulas, counted, attention, total) if attention else UNSET,
        needless=_needless(actual, [run for _, run in runs.samples.every]) or UNSET,
        cache=cache_per_token(trace) or UNSET,
    )
    with_own = replace(trace, steps=steps, cost=total)
    differing = formulas.from_small_runs
    if not differing:
        return with_own
    note = (
        f"costs are those of the CPU's kernels, from small runs: on {trace.device} other kernels may run, "
        f"as in {', '.join(f'step {place + 1}' for place in sorted(differing)[:3])}{', …' * (len(differing) > 3)}"
    )
    return replace(with_own, notes=(*trace.notes, note))


def _of_attention(
    formulas: _Formulas, counted: Sequence[int], attention: Sequence[int], total: TotalCost
) -> Quantity | None:
    """Return the operations of the products for scores and context; None if iterations of a loop differ in theirs."""
    every = formulas.quantity("products", counted, frozenset())
    if every is None or total.products is None or every.value != total.products.value:
        return None
    return formulas.quantity("products", attention, frozenset())


def _needless(actual: RawTrace, small: Sequence[RawTrace]) -> float | None:
    """Return the share of the weights that are exactly 0: in the user's run, else in the small run with most weights.

    None if no mask makes any weight needless.
    """
    costs = [run.cost for run in (actual, *small) if run.cost is not None and run.cost.weights]
    if not costs:
        return None
    best = costs[0] if actual.cost is costs[0] else max(costs, key=lambda cost: cost.weights)
    return best.needless / best.weights or None


def _counted_within(steps: Sequence[RawStep]) -> dict[int, list[int]]:
    """Return, for each composite, the positions of the steps inside that were counted."""
    inside: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        parent = step.parent if step.cost is not None else None
        while parent is not None:
            inside.setdefault(parent, []).append(place)
            parent = steps[parent].parent
    return inside


class _Formulas:
    """Solves for what steps cost."""

    def __init__(self, samples: Samples, held_out: Run | None, on_cpu: bool) -> None:
        self._samples = samples
        self._actual = samples.actual
        self._small = samples.every
        self._checked = [*samples.every, *([held_out] if held_out is not None else [])]
        self._solver = _prepared(solver_for(samples), samples)
        self._sizes = samples.plan.sizes.numbers
        self._held_out = held_out if not on_cpu else None
        self._small_solver = solver_for(samples, held_out[0]) if held_out is not None and not on_cpu else None
        self.from_small_runs: set[int] = set()
        """The positions of the steps whose cost was counted otherwise in the user's run, with other kernels."""

    def cost(self, places: Sequence[int], row: int) -> Cost:
        """Return what the steps at some positions cost, in one iteration of the loops around the row that has them."""
        around = frozenset(n for n, loop in enumerate(self._actual.loops) if loop.begin <= row < loop.end)
        return self._cost(places, around)

    def total(self) -> TotalCost:
        """Return what the whole run cost; formulas only where they give what was counted in every run."""
        places = [place for place, step in enumerate(self._actual.steps) if step.cost is not None]
        counted = self._actual.cost or _NOTHING
        every: tuple[_Kind, ...] = (*_KINDS, "products")
        kinds = {kind: self._as_counted(kind, self.quantity(kind, places, frozenset())) for kind in every}
        return replace(TotalCost(parameters=self._parameters(), unknown=counted.unknown), **kinds)

    def quantity(self, kind: _Kind, places: Sequence[int], once: frozenset[int]) -> Quantity | None:
        """Return one kind of cost of steps, in one iteration of the loops `once`; None if it isn't known."""
        own = _terms(self._actual, kind, places, once)
        if own is None:
            return None
        text = self._formula(kind, places, once, own)
        if text is None and self._small_solver is not None:
            text = self._formula_of_small_runs(kind, places, once)
        if text is None:
            return Quantity(sum(own))
        value = parse_expression(text).evaluate(self._sizes)
        if value != sum(own):
            self.from_small_runs |= {*places} if len(places) == 1 else set()
        return Quantity(value, text)

    def _cost(self, places: Sequence[int], once: frozenset[int]) -> Cost:
        unknown = [name for place in places for name in _cost_at(self._actual, place).unknown]
        kinds = {kind: self.quantity(kind, places, once) for kind in _KINDS}
        return Cost(**kinds, unknown=tuple(dict.fromkeys(unknown)))

    def _formula(self, kind: _Kind, places: Sequence[int], once: frozenset[int], own: Sequence[int]) -> str | None:
        """Return the formula that gives what was counted in all runs, the user's too."""
        small = self._terms_of_small_runs(kind, places, once)
        text = _solved(self._solver, [*small, own]) if small is not None else None
        return text if text is not None and self._gives(text, kind, places, once) else None

    def _formula_of_small_runs(self, kind: _Kind, places: Sequence[int], once: frozenset[int]) -> str | None:
        """Return the formula that gives what was counted in the small runs, and in the one held out."""
        small = self._terms_of_small_runs(kind, places, once)
        assert self._held_out is not None and self._small_solver is not None
        last = _terms(self._held_out[1], kind, places, once)
        return _solved(self._small_solver, [*small, last]) if small is not None and last is not None else None

    def _terms_of_small_runs(
        self, kind: _Kind, places: Sequence[int], once: frozenset[int]
    ) -> list[tuple[int, ...]] | None:
        if not self._small or any(place >= self._samples.common for place in places):
            return None
        small = [_terms(run, kind, places, once) for _, run in self._small]
        known = [terms for terms in small if terms is not None]
        return known if len(known) == len(small) else None

    def _gives(self, text: str, kind: _Kind, places: Sequence[int], once: frozenset[int]) -> bool:
        """Return whether a formula gives what was counted in every small run, and in the one held out."""
        expression = parse_expression(text)
        return all(
            (terms := _terms(run, kind, places, once)) is not None and expression.evaluate(sizes) == sum(terms)
            for sizes, run in self._checked
            if all(place < len(run.steps) for place in places)
        )

    def _parameters(self) -> Quantity:
        """Return the number of elements of all parameters."""
        own = self._actual.trained
        runs = [*(run.trained for _, run in self._small), own]
        return Quantity(sum(own), _solved(self._solver, runs) if self._samples.complete else None)

    def _as_counted(self, kind: _Kind, quantity: Quantity | None) -> Quantity | None:
        """Return a total, with a formula that gives what all operations of each run cost.

        That of the steps may not: the iteration of a loop that is shown need not stand for the others, and some
        operations may be no steps.
        """
        terms = getattr(self._actual.cost, kind)
        if terms is None:
            return None
        if quantity is not None and quantity.expression is not None and self._small_solver is not None:
            return quantity
        # a small run on the CPU may not even be built, where the user's own is on the meta device
        small = [getattr(run.cost, kind, None) for _, run in self._small]
        known = [one for one in small if one is not None]
        texts = [quantity.expression if quantity is not None else None]
        if self._samples.complete and len(known) == len(small):
            texts.append(_solved(self._solver, [*known, terms]))
        runs = [*self._checked, (self._sizes, self._actual)]
        counted = [(sizes, getattr(run.cost, kind, None)) for sizes, run in runs]
        for text in filter(None, texts):
            expression = parse_expression(text)
            if all(every is not None and expression.evaluate(sizes) == sum(every) for sizes, every in counted):
                return Quantity(sum(terms), text)
        return Quantity(sum(terms))


def _solved(solver: Solver, runs: Sequence[Sequence[int]]) -> str | None:
    """Return the sum of formulas that give the terms of each run; None if there is none.

    Where one run has more terms than another, as of heads in a loop, equal ones count as one term.
    """
    if len({len(terms) for terms in runs}) > 1:
        runs = [[count * term for term, count in Counter(terms).items()] for terms in runs]
        if len({len(terms) for terms in runs}) > 1:
            return None
    counts: Counter[str] = Counter()
    for *values, own in zip(*runs, strict=True):
        formula = solver.solve(tuple(values), own)
        if formula.unsolved or formula.doubtful or formula.condition:
            return None
        counts[formula.text] += 1
    text = sum_text(counts)
    return text if len(text) <= _LONGEST else None


class _OwnSymbols:
    """Writes formulas in the symbols of a step's own tensors: `2*B*H*L*L*Dk` for scores, not `2*B*L*L*D`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._products: dict[str, tuple[str, str]] = {}
        """Each symbol that is a product of two others: D is H*Dk where Dk is given as D//H."""
        for symbol, size in trace.sizes.items():
            whole, slashes, part = (size.expression or "").partition("//")
            if slashes and whole in trace.sizes and part in trace.sizes:
                self._products[whole] = (part, symbol)

    def written(self, cost: Cost, step: Step) -> Cost:
        """Return the cost of a step in the symbols of its results and operands."""
        own = self._symbols(step)
        return replace(cost, **{kind: self._quantity(getattr(cost, kind), own) for kind in _KINDS})

    def _quantity(self, quantity: Quantity | None, own: frozenset[str]) -> Quantity | None:
        if quantity is None or quantity.expression is None or not quantity.value:
            return quantity
        text = _NAME.sub(lambda found: self._factors(found[0], own), quantity.expression)
        return replace(quantity, expression=_in_order(text))

    def _factors(self, symbol: str, own: frozenset[str]) -> str:
        pair = self._products.get(symbol)
        return "*".join(pair) if pair is not None and symbol not in own and own.issuperset(pair) else symbol

    def _symbols(self, step: Step) -> frozenset[str]:
        tensors = [output.tensor for output in step.outputs]
        inputs = {named.name: named.tensor for named in self._trace.inputs}
        for operand in step.operands:
            if operand.step is not None:
                tensors += [self._trace.steps[operand.step - 1].outputs[operand.output].tensor]
            elif operand.input in inputs:
                tensors.append(inputs[operand.input])
        return frozenset(_NAME.findall(" ".join(tensor.signature for tensor in tensors)))


def _in_order(text: str) -> str:
    """Return a sum of products with the symbols of each product in the usual order; another expression as it is.

    >>> _in_order("2*B*L*L*H*Dk+64*L*B"), _in_order("4*B*L*H*Dk*(Lp+L)")
    ('2*B*H*L*L*Dk+64*B*L', '4*B*H*L*Dk*(Lp+L)')
    """
    if not _PLAIN_SUM.fullmatch(text):
        return text
    products = [_FACTOR.findall(product) for product in _PRODUCT.findall(text)]
    return "+".join("*".join(sorted(factors, key=_place)) for factors in products)


_FACTOR = re.compile(r"\w+|\([^()]*\)")
_PRODUCT = re.compile(rf"(?:(?:{_FACTOR.pattern})\*?)+")
_PLAIN_SUM = re.compile(rf"{_PRODUCT.pattern}(?:\+{_PRODUCT.pattern})*")


def _place(factor: str) -> int:
    """Return the place of a factor in a product: a number, then the symbols, then sums."""
    return -1 if factor.isdecimal() else ORDER.get(factor, len(ORDER) + factor.startswith("("))


def _prepared(solver: Solver, samples: Samples) -> Solver:
    """Return the solver once it has solved for the axes: sums among them are then part of formulas as they stand."""
    small = [run.steps for _, run in samples.every]
    for place, step in enumerate(samples.actual.steps[: samples.common] if small else ()):
        for number, output in enumerate(step.outputs):
            for axis, size in enumerate(output.tensor.shape):
                solver.solve(tuple(steps[place].outputs[number].tensor.shape[axis] for steps in small), size)
    return solver


def _cost_at(run: RawTrace, place: int) -> RawCost:
    return run.steps[place].cost or _NOTHING


def _terms(run: RawTrace, kind: _Kind, places: Sequence[int], once: frozenset[int]) -> tuple[int, ...] | None:
    """Return the terms of what steps cost in a run, in all iterations of the loops around them but for those `once`.

    None if one of them isn't known.
    """
    every = list(_scaled(run, kind, places, once))
    return None if None in every else tuple(term for term in every if term)


def _scaled(run: RawTrace, kind: _Kind, places: Sequence[int], once: frozenset[int]) -> Iterator[int | None]:
    for place in places:
        loops = [loop.count for n, loop in enumerate(run.loops) if n not in once and loop.begin <= place < loop.end]
        terms = getattr(_cost_at(run, place), kind) if place < len(run.steps) else None
        yield from (term * math.prod(loops) for term in terms) if terms is not None else (None,)
