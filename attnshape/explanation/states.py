"""Finds attention that sums keys times values in place of weights, by its steps and their numbers in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import prod
from string import ascii_letters

import torch
from torch import Tensor

from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.explanation.observed import RunValues
from attnshape.explanation.sentences import AxisSize, tensor_axes
from attnshape.explanation.stages import StepLinks
from attnshape.inference.dataflow import innermost
from attnshape.model.references import resolve
from attnshape.model.trace import Step, Trace
from attnshape.tracing import operations as ops

_VIEWS = ops.RESHAPES | ops.UNIT_AXES | ops.TRANSPOSES | ops.CASTS | ops.COPIES | {"getitem"}
_NONLINEAR = ops.NONLINEARITIES | ops.EXPONENTIALS
_ELEMENTWISE = _NONLINEAR | ops.ADDITIONS
_PRODUCTS = ops.MATMULS | {"einsum"}
_CLOSE = 1e-3


SummedAxes = tuple[list[AxisSize], AxisSize, AxisSize, AxisSize, AxisSize]
"""The axes of the batch, the queries, the keys, the features and the values."""


@dataclass(frozen=True)
class SummedFirst:
    """Attention without a softmax, which sums the products of keys and values before it multiplies the queries."""

    outer: Step
    """The step that multiplies keys and values."""
    running: Step | None
    """The step that adds these products up, token by token; None if each query reads the sum over all keys."""
    read: Step
    """The step that multiplies the queries by the sum."""
    division: Step
    """The step that divides by the sum of the weights, or multiplies by its inverse; that may be `read` itself."""
    maps: tuple[tuple[Step, ...], ...]
    """The steps that make the features of queries and of keys, one element at a time; empty if there are none."""
    queries: Tensor
    """(…, queries, features), in float64, as the keys (…, keys, features)."""
    keys: Tensor
    raw: tuple[Tensor, Tensor] | None
    """The queries and keys from which the features are made; None if there is no such map."""
    axes: SummedAxes | None = None
    """What the axes are, where an equation says so; None if they are in the order of a matrix product."""

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the products of queries and keys; those of hidden keys are 0."""
        products = queries @ keys.mT
        return products.tril() if self.running is not None else products


@dataclass(frozen=True)
class CorrectedState:
    """A state to which each token adds what its value differs by from what the state returns for its key."""

    decay: Step | None
    """The step that multiplies the state by a factor before it is read; None if there is none."""
    read: Step
    difference: Step
    outer: Step
    update: Step
    keys: Tensor
    """(tokens, …, features of keys), in float64, as the others."""
    values: Tensor
    """(tokens, …, features of values)."""
    rates: Tensor
    """The factor of each correction, (tokens, …)."""
    decays: Tensor
    """The factor of the state for each token, (tokens, …)."""
    start: Tensor
    """The state before the first token, (…, features of keys, features of values)."""

    def final(self, decays: Tensor, *, correct: bool = True) -> Tensor:
        """Return the state after all tokens with other factors, or if the old value weren't subtracted."""
        state = self.start
        for token, decay in enumerate(decays):
            state = self.written(decay[..., None, None] * state, token, correct=correct)
        return state

    def written(self, state: Tensor, token: int, *, correct: bool) -> Tensor:
        """Return a state after one token is written to it."""
        key, value = self.keys[token], self.values[token]
        old = self.returned(state, token) if correct else torch.zeros_like(value)
        return state + key.unsqueeze(-1) * (self.rates[token].unsqueeze(-1) * (value - old)).unsqueeze(-2)

    def returned(self, state: Tensor, token: int) -> Tensor:
        """Return what a state returns for a token's key."""
        return (self.keys[token].unsqueeze(-2) @ state).squeeze(-2)


@dataclass(frozen=True)
class _Chain:
    """The steps that may sum keys times values, before the numbers of a run say whether they do."""

    division: Step
    read: Step
    place: int
    """Which operand of `read` is the sum."""
    running: Step | None
    outer: Step


class _Steps:
    """The steps of a trace, by the operands that they make."""

    def __init__(self, trace: Trace, links: StepLinks) -> None:
        self._trace, self._links = trace, links

    def named(self, names: frozenset[str], operands: int = 2) -> Iterator[Step]:
        """Yield the steps of some operations that have at least so many operands."""
        for step in self._links.steps.values():
            if ops.base_name(step.operation) in names and len(step.operands) >= operands:
                yield step

    def made(self, step: Step, place: int) -> Step | None:
        """Return the step that computes an operand; those between them only view, cast or copy all of its elements."""
        index = innermost(self._trace.steps, step.operands[place]).step if place < len(step.operands) else None
        found = self._links.steps.get(index) if index is not None and index < step.index else None
        return self.made(found, 0) if found is not None and self._keeps_all(found) else found

    def _keeps_all(self, step: Step) -> bool:
        if not step.operands or len(step.outputs) != 1 or ops.base_name(step.operation) not in _VIEWS:
            return False
        given = resolve(self._trace, innermost(self._trace.steps, step.operands[0]))
        return given is not None and prod(given.tensor.shape) == prod(step.outputs[0].tensor.shape)

    def mapped(self, step: Step, place: int) -> tuple[Step, ...]:
        """Return the steps that change an operand's elements one by one before it is read, the first one first."""
        chain: list[Step] = []
        found = self.made(step, place)
        while found is not None and ops.base_name(found.operation) in _ELEMENTWISE and len(found.operands) == 1:
            chain.insert(0, found)
            found = self.made(found, 0)
        return tuple(chain) if any(ops.base_name(one.operation) in _NONLINEAR for one in chain) else ()


def may_have_state(trace: Trace) -> bool:
    """Return whether a run is worth observing, since a trace may have what this module finds."""
    steps = _Steps(trace, StepLinks(trace))
    return any(any(True for _ in found(steps)) for found in (_divided, _divided_equations, _divided_running, _updated))


def summed_first(trace: Trace, links: StepLinks, values: RunValues) -> SummedFirst | None:
    """Return the attention of a trace that sums keys times values first; None if its numbers show none."""
    steps = _Steps(trace, links)
    return (
        _summed_by_matrices(steps, values)
        or _summed_by_equations(trace, steps, values)
        or _summed_token_by_token(steps, values)
    )


def _summed_by_matrices(steps: _Steps, values: RunValues) -> SummedFirst | None:
    for chain in _divided(steps):
        numbers = [
            values.operand(step, place) for step in (chain.read, chain.outer, chain.division) for place in (0, 1)
        ]
        known = [one.double() for one in numbers if one is not None and one.is_floating_point() and one.ndim > 1]
        if len(known) < len(numbers):
            continue
        query, _, left, value, numerator, divisor = known
        key = left.mT
        if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
            continue
        weights = query @ key.mT
        if _same(numerator, weights @ value) and _same(divisor, weights.sum(-1, keepdim=True)):
            return _found(steps, values, chain, (0, 0), (query, key))
    return None


def _summed_by_equations(trace: Trace, steps: _Steps, values: RunValues) -> SummedFirst | None:
    """Return the same where einsum makes the sum or reads it, in any order of axes."""
    for chain in _divided_equations(steps):
        read, outer = chain.read, chain.outer
        read_call, outer_call, divided = values.call(read), values.call(outer), values.result(chain.division)
        if read_call is None or outer_call is None or divided is None:
            continue
        for query_place, key_place in product(range(len(read.operands)), range(2)):
            reads = _equation(read_call, query_place, chain.place)
            sums = _equation(outer_call, key_place, 1 - key_place)
            if reads is None or sums is None or divided.dim() != len(reads.out):
                continue
            query, key, value = (
                one.double()
                for one in (
                    reads.arranged(read_call.operand_values[query_place], reads.first, (reads.left, reads.shared)),
                    sums.arranged(outer_call.operand_values[key_place], sums.first, (sums.shared, sums.left)),
                    sums.arranged(outer_call.operand_values[1 - key_place], sums.second, (sums.shared, sums.right)),
                )
            )
            result = reads.arranged(divided, reads.out, (reads.left, reads.right)).double()
            if not _fit(query, key, value) or not _same(result, _averages(query @ key.mT, value)):
                continue
            axes = _axes_of(trace, read, outer, reads, sums, (query_place, key_place))
            return _found(steps, values, chain, (query_place, key_place), (query, key), axes)
    return None


def _summed_token_by_token(steps: _Steps, values: RunValues) -> SummedFirst | None:
    """Return the same where the products of keys and values are added up, so that a query sees no later key."""
    for chain in _divided_running(steps):
        made, reads, divided = values.call(chain.outer), values.call(chain.read), values.result(chain.division)
        added = values.call(chain.running) if chain.running is not None else None
        if made is None or added is None or reads is None or divided is None or not added.values:
            continue
        outer, read = _factors(made), _factors(reads)
        token = _added_axis(added)
        if outer is None or read is None or token is None or len(outer.out) != added.values[0].dim():
            continue
        names = dict(zip(read.terms[chain.place], outer.out, strict=False))
        if reads.operand_values[chain.place].shape != added.values[0].shape or len(names) != len(outer.out):
            continue
        read = read.renamed(names)
        query_place = next(place for place in range(2) if place != chain.place)
        for key_place in (0, 1):
            key_term, value_term = outer.terms[key_place], outer.terms[1 - key_place]
            own, wide = (
                [letter for letter in term if letter in outer.out and letter not in other]
                for term, other in ((key_term, value_term), (value_term, key_term))
            )
            if len(own) != 1 or len(wide) != 1 or outer.out[token] in (*own, *wide):
                continue
            batch_letters = [letter for letter in outer.out if letter not in (*own, *wide, outer.out[token])]
            rows = "".join([*batch_letters, outer.out[token]])
            query = _arranged(reads.operand_values[query_place], read.terms[query_place], rows + own[0])
            key = _arranged(made.operand_values[key_place], key_term, rows + own[0])
            value = _arranged(made.operand_values[1 - key_place], value_term, rows + wide[0])
            result = _arranged(divided, read.out, rows + wide[0])
            if query is None or key is None or value is None or result is None:
                continue
            if _fit(query, key, value) and _same(result, _averages((query @ key.mT).tril(), value)):
                axes = dict(zip(outer.out, tensor_axes(chain.outer.outputs[0].tensor), strict=True))
                *batch, tokens, features, width = (axes[letter] for letter in (*rows, own[0], wide[0]))
                places, of = (query_place, key_place), (batch, tokens, tokens, features, width)
                return _found(steps, values, chain, places, (query, key), of)
    return None


def _averages(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value / weights.sum(-1, keepdim=True)


def _found(
    steps: _Steps,
    values: RunValues,
    chain: _Chain,
    places: tuple[int, int],
    features: tuple[Tensor, Tensor],
    axes: SummedAxes | None = None,
) -> SummedFirst:
    """Return what a chain computes; `places` are those of the queries and the keys among what its products read."""
    maps = (steps.mapped(chain.read, places[0]), steps.mapped(chain.outer, places[1]))
    return SummedFirst(
        outer=chain.outer,
        running=chain.running,
        read=chain.read,
        division=chain.division,
        maps=maps if all(maps) else (),
        queries=features[0],
        keys=features[1],
        raw=_raw(values, maps, features),
        axes=axes,
    )


def _raw(
    values: RunValues, maps: tuple[tuple[Step, ...], ...], features: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Return what the features of queries and keys are made from, with the same order of axes; None if unknown."""
    found = []
    for steps, made in zip(maps, features, strict=True):
        given, result = (values.operand(steps[0]), values.result(steps[-1])) if steps else (None, None)
        if given is None or result is None or given.shape != result.shape or result.dim() != made.dim():
            return None
        orders = (order for order in permutations(range(made.dim())) if result.permute(order).shape == made.shape)
        order = next((order for order in orders if torch.equal(result.permute(order).double(), made)), None)
        if order is None:
            return None
        found.append(given.permute(order).double())
    return found[0], found[1]


def _fit(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and query.shape[-1] == key.shape[-1]


def _axes_of(
    trace: Trace, read: Step, outer: Step, reads: _Equation, sums: _Equation, places: tuple[int, int]
) -> SummedAxes | None:
    """Return the axes by the letters of the equations; None if some are unknown."""
    query, key, value = (
        resolve(trace, innermost(trace.steps, step.operands[at]))
        for step, at in ((read, places[0]), (outer, places[1]), (outer, 1 - places[1]))
    )
    if query is None or key is None or value is None:
        return None
    letters = (reads.first, sums.first, sums.second)
    of_query, of_key, of_value = (
        dict(zip(some, tensor_axes(one.tensor), strict=False))
        for some, one in zip(letters, (query, key, value), strict=True)
    )
    batch = [of_key[letter] for letter in sums.batch]
    return batch, of_query[reads.left], of_key[sums.shared], of_key[sums.left], of_value[sums.right]


@dataclass(frozen=True)
class _Equation:
    """The product of two operands of an einsum as one of matrices, by the letters of their axes."""

    first: str
    second: str
    out: str
    left: str
    """The axis of the first operand only, which the result has."""
    shared: str
    """The axis over which the product sums."""
    right: str
    """The axis of the second operand only, which the result has."""

    @property
    def batch(self) -> str:
        """The axes that both operands and the result have, in the order of the result."""
        return "".join(letter for letter in self.out if letter in self.first and letter in self.second)

    def arranged(self, tensor: Tensor, letters: str, last: tuple[str, str]) -> Tensor:
        """Return a tensor with the axes of the batch first, then the two given ones."""
        return tensor.permute([letters.index(letter) for letter in (*self.batch, *last)])


def _equation(call: ReplayedCall, first: int, second: int) -> _Equation | None:
    """Return what an einsum, or a product of matrices, does with two of its operands.

    None if it isn't a product of matrices, or if another operand does more than to multiply the rows of its result.
    """
    terms = _terms(call)
    if terms is None or first == second or max(first, second) >= len(terms) - 1:
        return None
    *given, out = terms
    one, other = given[first], given[second]
    left = [letter for letter in one if letter in out and letter not in other]
    right = [letter for letter in other if letter in out and letter not in one]
    shared = [letter for letter in one if letter in other and letter not in out]
    more = [term for place, term in enumerate(given) if place not in (first, second)]
    if [len(left), len(right), len(shared)] != [1, 1, 1] or len(one) + len(other) != 2 * len(out):
        return None
    if any(letter in (*right, *shared) for term in more for letter in term):
        return None
    return _Equation(one, other, out, left[0], shared[0], right[0])


def _terms(call: ReplayedCall) -> list[str] | None:
    """Return the letters of each operand's axes and of the result's; None if they are unknown."""
    operands = call.operand_values
    if ops.base_name(call.operation) in ops.MATMULS:
        ranks = {operand.dim() for operand in operands}
        if len(ranks) != 1 or len(operands) != 2:
            return None
        batch = ascii_letters[3 : 3 + max(ranks) - 2]
        return [f"{batch}ab", f"{batch}bc", f"{batch}ac"]
    text = call.args[0] if call.args else None
    if not isinstance(text, str) or "->" not in text:
        return None
    given, _, out = text.replace(" ", "").partition("->")
    terms = [*given.split(","), out]
    ranks_of = [*(operand.dim() for operand in operands), call.values[0].dim() if call.values else 0]
    if len(terms) != len(ranks_of):
        return None
    free = [letter for letter in ascii_letters if letter not in text]
    spread = []
    for term, rank in zip(terms, ranks_of, strict=True):
        omitted = rank - len(term.replace("...", ""))
        spread.append(term.replace("...", "".join(free[:omitted])))
        if len(spread[-1]) != rank or len({*spread[-1]}) != rank:
            return None
    return spread


@dataclass(frozen=True)
class _Factors:
    """The letters of the axes of two operands and of their product; an axis that is broadcast has its own."""

    terms: tuple[str, ...]
    out: str

    def renamed(self, names: dict[str, str]) -> _Factors:
        """Return the same with other letters; those without a new one get letters that nothing else has."""
        rest = (letter for letter in ascii_letters if letter not in names.values())
        table = {ord(one): names.get(one) or next(rest) for one in dict.fromkeys("".join((*self.terms, self.out)))}
        return _Factors(tuple(term.translate(table) for term in self.terms), self.out.translate(table))


def _factors(call: ReplayedCall) -> _Factors | None:
    """Return the letters of a product of two operands, by einsum, of matrices, or of numbers; None if unknown."""
    if ops.base_name(call.operation) not in ops.MULTIPLICATIONS:
        terms = _terms(call)
        return _Factors(tuple(terms[:-1]), terms[-1]) if terms is not None and len(terms) == 3 else None
    shape = call.values[0].shape if call.values else ()
    if len(call.operand_values) != 2 or any(one.dim() != len(shape) for one in call.operand_values):
        return None
    letters = iter(ascii_letters)
    out = "".join(islice(letters, len(shape)))
    terms = [
        "".join(own if size == whole else next(letters) for own, size, whole in zip(out, one.shape, shape, strict=True))
        for one in call.operand_values
    ]
    return _Factors(tuple(terms), out)


def _arranged(tensor: Tensor, letters: str, order: str) -> Tensor | None:
    """Return a tensor with its axes in this order, in float64; None if others than those of size 1 are left over."""
    if tensor.dim() == len(letters):
        tensor = tensor.squeeze([place for place, letter in enumerate(letters) if letter not in order])
    kept = [letter for letter in letters if letter in order]
    if tensor.dim() != len(kept) or {*kept} != {*order}:
        return None
    return tensor.permute([kept.index(letter) for letter in order]).double()


def _added_axis(call: ReplayedCall) -> int | None:
    """Return the axis along which a running sum adds."""
    axis = call.keywords.get("dim", call.args[1] if len(call.args) > 1 else None)
    return axis % call.values[0].dim() if isinstance(axis, int) else None


def corrected_state(trace: Trace, links: StepLinks, values: RunValues) -> CorrectedState | None:
    """Return the state of a trace that tokens correct; None if its numbers show none."""
    for update, place, outer, difference, read in _updated(_Steps(trace, links)):
        calls = [values.calls(step) for step in (update, outer, difference)]
        if len({len(one) for one in calls}) != 1 or len(calls[0]) < 2:
            continue
        old = [call.operand_values[place].double() for call in calls[0]]
        new = [call.values[0].double() for call in calls[0]]
        rows = [_row_and_column(call) for call in calls[1]]
        known = [one for one in rows if one is not None]
        if len(known) < len(rows):
            continue
        key, correction = (torch.stack(one) for one in zip(*known, strict=True))
        value, returned = (torch.stack([call.operand_values[at].double() for call in calls[2]]) for at in (0, 1))
        misses = value - returned
        rates = (correction * misses).sum(-1) / misses.square().sum(-1)
        previous = [torch.zeros_like(new[0]), *new[:-1]]
        factors = torch.stack([_factor(*pair) for pair in zip(old, previous, strict=True)])
        factors[0] = 1.0
        carried = [factor[..., None, None] * state for factor, state in zip(factors, previous, strict=True)]
        decay = _Steps(trace, links).made(update, place)
        found = CorrectedState(
            decay=decay if decay is not None and not _same(factors, torch.ones_like(factors)) else None,
            read=read,
            difference=difference,
            outer=outer,
            update=update,
            keys=key,
            values=value,
            rates=rates,
            decays=factors,
            start=torch.zeros_like(new[0]),
        )
        follows = all(
            _same(old[token], carried[token])
            and _same(returned[token], found.returned(old[token], token))
            and _same(new[token], found.written(old[token], token, correct=True))
            for token in range(len(old))
        )
        if follows:
            return found
    return None


def _row_and_column(call: ReplayedCall) -> tuple[Tensor, Tensor] | None:
    """Return the factors of an outer product: those of the rows and those of the columns of its result."""
    factors = _factors(call)
    if factors is None or len(factors.out) < 2:
        return None
    batch, row, column = factors.out[:-2], factors.out[-2], factors.out[-1]
    for place in (0, 1):
        pair = [
            _arranged(call.operand_values[at], factors.terms[at], batch + letter)
            for at, letter in ((place, row), (1 - place, column))
        ]
        if pair[0] is not None and pair[1] is not None:
            return pair[0], pair[1]
    return None


def _divided(steps: _Steps) -> Iterator[_Chain]:
    """Yield each division of a product of matrices that reads another one."""
    for division in steps.named(ops.DIVISIONS):
        read = steps.made(division, 0)
        if read is None or ops.base_name(read.operation) not in ops.MATMULS:
            continue
        outer = steps.made(read, 1)
        if outer is not None and ops.base_name(outer.operation) in ops.MATMULS and len(outer.operands) == 2:
            yield _Chain(division, read, 1, None, outer)


def _divided_equations(steps: _Steps) -> Iterator[_Chain]:
    """Yield each division of a product that reads a product; one of the two is an einsum.

    It may divide in the same call, by an operand that is an inverse.
    """
    for read in steps.named(_PRODUCTS):
        for place in range(len(read.operands)):
            outer = steps.made(read, place)
            if outer is None or len(outer.operands) != 2:
                continue
            names = {ops.base_name(read.operation), ops.base_name(outer.operation)}
            if not names <= _PRODUCTS or "einsum" not in names:
                continue
            if len(read.operands) > 2:
                yield _Chain(read, read, place, None, outer)
                continue
            for division in _divisions(steps, read):
                yield _Chain(division, read, place, None, outer)


def _divided_running(steps: _Steps) -> Iterator[_Chain]:
    """Yield each division of a product that reads a running sum of products, of einsum or of numbers."""
    for read in steps.named(_PRODUCTS):
        for place in range(len(read.operands)):
            running = steps.made(read, place)
            if len(read.operands) != 2 or running is None or ops.base_name(running.operation) != "cumsum":
                continue
            outer = steps.made(running, 0)
            kind = ops.base_name(outer.operation) if outer is not None else ""
            if outer is None or kind not in ops.MULTIPLICATIONS | {"einsum"} or len(outer.operands) != 2:
                continue
            for division in _divisions(steps, read):
                yield _Chain(division, read, place, running, outer)


def _divisions(steps: _Steps, read: Step) -> Iterator[Step]:
    """Yield the steps that divide a product, or multiply it."""
    for division in steps.named(ops.DIVISIONS | ops.MULTIPLICATIONS):
        if any(steps.made(division, at) is read for at in range(2)):
            yield division


def _updated(steps: _Steps) -> Iterator[tuple[Step, int, Step, Step, Step]]:
    """Yield each sum of a state and an outer product, with the state's place, the product, difference and reading."""
    for update in steps.named(ops.ADDITIONS):
        for place in (0, 1):
            outer = steps.made(update, 1 - place)
            kind = ops.base_name(outer.operation) if outer is not None else ""
            if outer is None or kind not in ops.MULTIPLICATIONS | {"einsum"} or len(outer.operands) != 2:
                continue
            for at in (0, 1):
                difference = _subtraction(steps, outer, at)
                read = steps.made(difference, 1) if difference is not None else None
                if difference is not None and read is not None and _reads(steps, read, update, place):
                    yield update, place, outer, difference, read


def _reads(steps: _Steps, read: Step, update: Step, place: int) -> bool:
    """Return whether a product, or the sum of one, reads the state that an update adds to."""
    if ops.base_name(read.operation) == "sum":
        made = steps.made(read, 0)
        if made is None or ops.base_name(made.operation) not in ops.MULTIPLICATIONS:
            return False
        read = made
    elif ops.base_name(read.operation) not in _PRODUCTS:
        return False
    state = steps.made(update, place)
    return any(
        operand == update.operands[place] or (state is not None and steps.made(read, at) is state)
        for at, operand in enumerate(read.operands)
    )


def _subtraction(steps: _Steps, outer: Step, place: int) -> Step | None:
    """Return the subtraction whose result, perhaps times a factor, an outer product reads."""
    found = steps.made(outer, place)
    reads = [found]
    if found is not None and ops.base_name(found.operation) in ops.MULTIPLICATIONS:
        reads = [steps.made(found, at) for at in range(len(found.operands))]
    return next(
        (
            one
            for one in reads
            if one is not None and ops.base_name(one.operation) in ops.SUBTRACTIONS and len(one.operands) == 2
        ),
        None,
    )


def _factor(state: Tensor, previous: Tensor) -> Tensor:
    """Return the factor by which a state, (…, rows, columns), is the previous one; 1 where that is 0."""
    total = previous.square().sum((-2, -1))
    return torch.where(total > 0, (state * previous).sum((-2, -1)) / total, 1.0)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not bool(torch.isfinite(one).all()):
        return False
    return float((one - other).abs().max()) <= _CLOSE * max(float(other.abs().max()), _CLOSE)
