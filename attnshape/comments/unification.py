"""Finds what the author's dimension names stand for: the sizes with which the fewest documented shapes are wrong.

Each name stands for one number in a call of the function. Candidates are the sizes that the documented shapes give
it, and the integer of that name in the code. Where the shapes contradict each other the majority is right, and where
there is none, the name's usual meaning decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from attnshape.comments.annotations import JaxtypingAnnotation
from attnshape.comments.notation import PRIME, AxisToken, Meaning, ShapeText, usual_meaning
from attnshape.comments.observed_shapes import FunctionCall, Occurrences, Shape
from attnshape.dims.arithmetic import Operation, Symbol
from attnshape.dims.expressions import AxisExpression
from attnshape.errors import AttnshapeError

Vector = tuple[int | None, ...]
"""A name's value in each call, None if nothing determines it."""

PROSE, LOOSE = 0.7, 0.9
"""Weights of a shape within prose, and of one that may describe several tensors; all others have 1."""
_ONE_OF_SEVERAL = 0.1
"""The weight of the sizes that each of several tensors gives a name, where any of them may be the documented one.

They only compete with what single tensors give it.
"""
_NOT_FROM_CODE, _UNUSUAL, _EXCHANGED, _EQUAL = 2.0, 0.6, 0.1, 0.05
"""The cost where a name isn't the code's own integer of that name, where it means what another name usually means,
where a name without a usual meaning has its usual value, and where two names of one shape have the same value.

A wrong shape costs its weight.
"""
_VAGUE = {"width", "height", "depth", "size"}
_MOST_COMBINATIONS = 3000
_MOST_CANDIDATES = 6

_SYMBOLS: dict[Meaning, tuple[str, ...]] = {
    "batch": ("B",),
    "heads": ("H", "Hkv"),
    "length": ("L", "Lq", "Lk", "Lp"),
    "head width": ("Dk", "Dv"),
    "width": ("D",),
}


@dataclass(frozen=True)
class ShapeConstraint:
    """Documented shapes, one of which must hold, and the shapes observed there in each call."""

    shapes: tuple[ShapeText, ...]
    observed: tuple[tuple[tuple[Shape, ...], ...], ...]
    """In each call, for each time that the place was reached, the shapes of which one must match."""
    weight: float = 1.0

    @cached_property
    def sole(self) -> ShapeText | None:
        """The one documented shape of the observed rank, where a single tensor was observed each time."""
        if any(len(options) != 1 for call in self.observed for options in call):
            return None
        ranks = {len(options[0]) for call in self.observed for options in call}
        fitting = [shape for shape in self.shapes if len(self.shapes) == 1 or {len(shape.axes)} == ranks]
        return fitting[0] if len(fitting) == 1 else None


@dataclass(frozen=True)
class DocumentedShape:
    """A shape that the source documents, at its place, with what it describes and what was observed there."""

    line: int
    column: int
    text: str
    subject: str
    """What it describes, in words: "`scores`", "the returned value"."""
    on_line: str
    """Its text as it stands on the line."""
    constraint: ShapeConstraint
    annotation: JaxtypingAnnotation | None = None
    elsewhere: tuple[ShapeConstraint, ...] = ()
    """What it may describe instead: a shape that holds there isn't wrong."""


def constrain(shapes: Sequence[ShapeText], occurrences: Occurrences, weight: float = 1.0) -> ShapeConstraint:
    """Return a constraint.

    Numbers of the author's own configuration, such as the 12 in `(B, 12, T)`, fit any size where the axis varies.
    """
    observed = tuple(tuple(tuple(options) for options in call) for call in occurrences)
    every = {shape for call in observed for options in call for shape in options}
    opened = []
    for documented in shapes:
        axes = list(documented.axes)
        for place, axis in enumerate(axes):
            sizes = {shape[place] for shape in every if len(shape) == len(axes)}
            if axis.kind == "number" and axis.text not in ("0", "1") and len(sizes) != 1:
                axes[place] = AxisToken(axis.text, "any")
        opened.append(replace(documented, axes=tuple(axes)))
    return ShapeConstraint(tuple(opened), observed, weight)


def without_remainders(constraint: ShapeConstraint, calls: Sequence[FunctionCall]) -> ShapeConstraint:
    """Return a constraint without the smaller last parts of what a loop divides into parts of one size.

    Code documents a chunk by its full size, also where that doesn't divide the length.
    """
    observed = tuple(
        _full_parts(occurrences, {*call.numbers.values(), *call.integers.values()})
        for occurrences, call in zip(constraint.observed, calls, strict=True)
    )
    return replace(constraint, observed=observed)


def _full_parts(occurrences: tuple[tuple[Shape, ...], ...], sizes: Iterable[int]) -> tuple[tuple[Shape, ...], ...]:
    """Return the occurrences without those that are smaller along an axis: what one of the sizes leaves over."""
    shapes = [options[0] for options in occurrences if len(options) == 1]
    if len(shapes) < len(occurrences) or len(set(map(len, shapes))) != 1 or len(set(shapes)) == 1:
        return occurrences
    rests: list[set[int]] = []
    for by_axis in zip(*shapes, strict=True):
        rest, *more = sorted(set(by_axis))
        full = more[0] if len(more) == 1 else 0
        rests.append({rest} if any(total > full and total % full == rest for total in sizes if full) else set())
    full_parts = [
        (shape,) for shape in shapes if not any(size in rest for size, rest in zip(shape, rests, strict=True))
    ]
    return tuple(full_parts) or occurrences


def holds(constraint: ShapeConstraint, values: Mapping[str, Vector]) -> bool:
    """Return whether a documented shape holds in every call, each time."""
    return all(
        any(fits(documented.axes, shape, values, place) for documented in constraint.shapes for shape in options)
        for place, call in enumerate(constraint.observed)
        for options in call
    )


def fits(axes: Sequence[AxisToken], shape: Shape, values: Mapping[str, Vector], call: int) -> bool:
    """Return whether a shape is as documented where the names have their values of a call."""
    variadic = sum(axis.kind == "variadic" for axis in axes)
    if variadic > 1:
        return True
    if len(axes) - variadic > len(shape) or (not variadic and len(axes) != len(shape)):
        return False
    for place, axis in enumerate(axes):
        at, size = _index_in_shape(axes, place, shape), axis_size(axis, values, call)
        if at is not None and size is not None and shape[at] != size and not (axis.broadcast and shape[at] == 1):
            return False
    return True


def axis_size(axis: AxisToken, values: Mapping[str, Vector], call: int) -> int | None:
    """Return the documented size of an axis in a call, None if nothing determines it."""
    if axis.kind == "number":
        return int(axis.text)
    if axis.kind in ("any", "variadic"):
        return None
    numbers = {name: values[name][call] for name in axis.names if name in values}
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) < len(axis.names):
        return None
    if axis.tree is None:
        return known[axis.text]
    try:
        plain = {name.replace("'", PRIME): number for name, number in known.items()}
        return AxisExpression(axis.text, axis.tree).evaluate(plain)
    except AttnshapeError:  # it divides by 0
        return None


def _index_in_shape(axes: Sequence[AxisToken], place: int, shape: Shape) -> int | None:
    """Return which axis of a shape a documented axis stands for, None if the ranks don't fit."""
    open_at = next((at for at, axis in enumerate(axes) if axis.kind == "variadic"), None)
    if open_at is None:
        return place if len(axes) == len(shape) else None
    if len(axes) - 1 > len(shape):
        return None
    return place if place < open_at else len(shape) - len(axes) + place


@dataclass
class NameAssignment:
    """What each dimension name stands for, by call."""

    chosen: dict[str, Vector] = field(default_factory=dict)
    supported: dict[str, int] = field(default_factory=dict)
    """How many documented shapes that hold contain the name."""
    from_code: frozenset[str] = frozenset()
    """The names that are integers of the code's own."""
    constants: frozenset[str] = frozenset()
    """The names of attributes and constants that stay the same whatever the sizes."""

    @property
    def without_doubt(self) -> dict[str, Vector]:
        """The values without those of constants and vague names that no documented shape confirms.

        They may not be the sizes that the author has in mind: `width` may be the image's or the model's.
        """
        vague = self.constants | (self.from_code & _VAGUE)
        doubtful = {name for name in vague if not self.supported.get(name, 0)}
        return {name: vector for name, vector in self.chosen.items() if name not in doubtful}

    def is_known(self, name: str) -> bool:
        """Return whether the code, the usual meaning, or a shape that holds determines a name."""
        return name in self.from_code or usual_meaning(name) is not None or self.supported.get(name, 0) > 0


def unify(constraints: Sequence[ShapeConstraint], calls: Sequence[FunctionCall]) -> NameAssignment:
    """Return what the names in a function's documented shapes stand for."""
    shapes = [shape for constraint in constraints for shape in constraint.shapes]
    names = dict.fromkeys(name for shape in shapes for name in shape.names)
    own = {name: tuple(call.integers.get(name) for call in calls) for name in names}
    from_code = frozenset(name for name, vector in own.items() if _is_known(vector))
    containing: dict[str, list[ShapeConstraint]] = {name: [] for name in names}
    for constraint in constraints:
        for name in {name for shape in constraint.shapes for name in shape.names}:
            containing[name].append(constraint)
    candidates = {name: _candidates(name, containing[name], own[name]) for name in names}
    for name, vectors in _solve_sums(constraints, candidates).items():
        new = [vector for vector in vectors if vector not in candidates[name]]
        candidates[name] = (candidates[name] + new)[:_MOST_CANDIDATES]
    usual = {
        symbol: tuple(call.numbers.get(symbol) for call in calls) for symbols in _SYMBOLS.values() for symbol in symbols
    }
    for name, options in candidates.items():
        meaning = usual_meaning(name)
        vectors = [usual[symbol] for symbol in _SYMBOLS[meaning]] if meaning is not None and options else []
        options += [vector for vector in vectors if None not in vector and vector not in options]
    possible = {name: options for name, options in candidates.items() if options}
    best = {name: options[0] for name, options in possible.items()}
    order = {name: place for place, name in enumerate(names)}
    undecided = [name for name, options in possible.items() if len(options) > 1]
    for within in _linked(undecided, constraints):
        around = {name for constraint in within for shape in constraint.shapes for name in shape.names}
        part = {name: possible[name] for name in sorted(around & possible.keys(), key=order.__getitem__)}
        best |= _minimize(part, functools.partial(_cost, within, own, usual))
    holding = [constraint.shapes for constraint in constraints if holds(constraint, best)]
    supported = Counter(name for shapes in holding for name in {name for shape in shapes for name in shape.names})
    varying = len({tuple(call.numbers.items()) for call in calls}) > 1
    constants = {name for name in from_code if len(set(own[name])) == 1 and all(name in call.outer for call in calls)}
    return NameAssignment(best, supported, from_code, frozenset(constants if varying else ()))


def _linked(names: Sequence[str], constraints: Sequence[ShapeConstraint]) -> Iterator[list[ShapeConstraint]]:
    """Yield the constraints that share some of these names, directly or through others: each such part is separate."""
    wanted = set(names)
    own = [wanted & {name for shape in one.shapes for name in shape.names} for one in constraints]
    places: dict[str, list[int]] = {name: [] for name in names}
    for place, shared in enumerate(own):
        for name in shared:
            places[name].append(place)
    seen: set[str] = set()
    for name in names:
        waiting, found = [name], set[int]()
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                found.update(places[other])
                waiting += (linked for place in places[other] for linked in own[place] - seen)
        if found:
            yield [constraints[place] for place in sorted(found)]


def _is_known(vector: Vector) -> bool:
    return any(number is not None for number in vector)


def _minimize(
    candidates: Mapping[str, Sequence[Vector]], cost: Callable[[Mapping[str, Vector]], float]
) -> dict[str, Vector]:
    """Return the values of least cost: of all combinations, or, where these are many, of local changes."""
    best = {name: options[0] for name, options in candidates.items()}
    undecided = [name for name, options in candidates.items() if len(options) > 1]
    if math.prod(len(candidates[name]) for name in undecided) <= _MOST_COMBINATIONS:
        choices = itertools.product(*(candidates[name] for name in undecided))
        return min((best | dict(zip(undecided, choice, strict=True)) for choice in choices), key=cost)
    least = cost(best)
    improved = True
    while improved:
        improved = False
        singles = [{name: option} for name in undecided for option in candidates[name]]
        swaps = [
            {name: best[other], other: best[name]}
            for name, other in itertools.combinations(undecided, 2)
            if best[other] in candidates[name] and best[name] in candidates[other]
        ]
        for change in (*singles, *swaps):
            changed = best | change
            if (now := cost(changed)) < least:
                best, least, improved = changed, now, True
    return best


def _candidates(name: str, constraints: Sequence[ShapeConstraint], own: Vector) -> list[Vector]:
    """Return the values that the code and the documented shapes give a name, those with the most support first."""
    votes = [(own, 3.0)] if _is_known(own) else []
    for constraint in constraints:
        for place, axis in enumerate(constraint.sole.axes if constraint.sole is not None else ()):
            if axis.kind == "name" and axis.text == name and _is_known(sizes := _sizes(constraint, place)):
                votes.append((sizes, constraint.weight))
    if votes:
        options = itertools.chain.from_iterable(_sizes_of_options(name, constraint) for constraint in constraints)
        votes += [(sizes, _ONE_OF_SEVERAL) for sizes in options]
    merged: list[tuple[Vector, float]] = []
    for vector, weight in sorted(votes, key=lambda vote: vote[0].count(None)):
        for place, (other, sum_) in enumerate(merged):
            if _agree(vector, other):
                both = tuple(a if a is not None else b for a, b in zip(other, vector, strict=True))
                merged[place] = (both, sum_ + weight)
                break
        else:
            merged.append((vector, weight))
    merged.sort(key=lambda vote: -vote[1])
    return [vector for vector, _ in merged[:_MOST_CANDIDATES]]


def _sizes_of_options(name: str, constraint: ShapeConstraint) -> Iterator[Vector]:
    """Yield, by call, the sizes that a name has in each of several tensors, if all calls have as many of them."""
    if constraint.sole is not None or len(constraint.shapes) != 1:
        return
    axes = constraint.shapes[0].axes
    places = [place for place, axis in enumerate(axes) if axis.kind == "name" and axis.text == name]
    by_call = [[shape for shape in call[0] if len(shape) == len(axes)] for call in constraint.observed if call]
    if len(by_call) < len(constraint.observed) or len(set(map(len, by_call))) != 1:
        return
    for option in zip(*by_call, strict=True):
        yield from (tuple(shape[place] for shape in option) for place in places)


def _solve_sums(
    constraints: Sequence[ShapeConstraint], candidates: Mapping[str, Sequence[Vector]]
) -> dict[str, list[Vector]]:
    """Return the values that sums, such as `P+T`, give for one of their names where the other's is known."""
    vectors: dict[str, list[Vector]] = {}
    for constraint in constraints:
        for place, axis in enumerate(constraint.sole.axes if constraint.sole is not None else ()):
            match axis.tree:
                case Operation("+", Symbol(left), Symbol(right)):
                    for name, other in ((left, right), (right, left)):
                        for known in candidates[other][:1]:
                            pairs = zip(_sizes(constraint, place), known, strict=True)
                            rest = tuple(a - b if a is not None and b is not None else None for a, b in pairs)
                            vectors.setdefault(name, []).append(rest)
    return vectors


def _agree(one: Vector, other: Vector) -> bool:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return bool(pairs) and all(a == b for a, b in pairs)


def _sizes(constraint: ShapeConstraint, place: int) -> Vector:
    """Return, by call, the size of an axis of the sole documented shape, None if it isn't the same throughout."""
    axes = constraint.sole.axes if constraint.sole is not None else ()
    vector: list[int | None] = []
    for call in constraint.observed:
        indices = [(_index_in_shape(axes, place, options[0]), options[0]) for options in call]
        sizes = {shape[at] if at is not None else None for at, shape in indices}
        vector.append(sizes.pop() if len(sizes) == 1 else None)
    return tuple(vector)


def _cost(
    constraints: Sequence[ShapeConstraint],
    own: Mapping[str, Vector],
    usual: Mapping[str, Vector],
    values: Mapping[str, Vector],
) -> float:
    """Return the cost of giving the names certain values."""
    cost = sum(constraint.weight for constraint in constraints if not holds(constraint, values))
    for name, vector in values.items():
        if _is_known(own[name]) and not _agree(vector, own[name]):
            cost += _NOT_FROM_CODE
        cost += _UNUSUAL * _is_unusual(name, vector, usual)
        cost += _EXCHANGED * _is_exchanged(name, values, usual)
    for constraint in constraints:
        for a, b in itertools.combinations(sorted(set(constraint.shapes[0].names)), 2):
            cost += _EQUAL * (a in values and b in values and _agree(values[a], values[b]))
    return cost


def _is_unusual(name: str, vector: Vector, usual: Mapping[str, Vector]) -> bool:
    """Return whether a name stands for what another name usually means, and not for its own meaning."""
    meaning = usual_meaning(name)

    def is_one_of(symbols: Sequence[str]) -> bool:
        return any(_agree(vector, usual[symbol]) for symbol in symbols)

    return meaning is not None and not is_one_of(_SYMBOLS[meaning]) and any(map(is_one_of, _SYMBOLS.values()))


def _is_exchanged(name: str, values: Mapping[str, Vector], usual: Mapping[str, Vector]) -> bool:
    """Return whether a name without a usual meaning has the usual value of this one, which has another."""
    meaning = usual_meaning(name)
    if meaning is None:
        return False
    vectors = [usual[symbol] for symbol in _SYMBOLS[meaning]]

    def is_usual(vector: Vector) -> bool:
        return any(_agree(vector, other) for other in vectors)

    return not is_usual(values[name]) and any(
        usual_meaning(other) is None and is_usual(vector) for other, vector in values.items()
    )
