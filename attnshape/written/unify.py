"""Finds what the author's letters stand for: the sizes under which the fewest of a function's claims are wrong.

Each letter stands for one number in a call of the function. Candidates are the numbers that the claims themselves give
it, and the whole number of that name that the code has; where claims contradict each other the majority is right, and
where there is none, the usual meaning of the letter decides.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnshape.written.calls import Call, Shape
from attnshape.written.fitting import Demand, Vector, axis_of, holds
from attnshape.written.notation import Token
from attnshape.written.words import Meaning, meaning

_SURE, _USUAL, _SAME = 2.0, 0.6, 0.05
"""What it costs that a letter isn't the code's own number of that name; that it means what another usually does; that
two letters of one shape stand for one size. A claim that is wrong costs 1."""
_MOST = 3000
"""Assignments of the letters that are tried one by one."""

_SYMBOLS: dict[Meaning, tuple[str, ...]] = {
    "batch": ("B",),
    "heads": ("H", "Hkv"),
    "length": ("L", "Lq", "Lk", "Lp"),
    "head width": ("Dk", "Dv"),
    "width": ("D",),
}


@dataclass
class Letters:
    """What each letter stands for, by call."""

    chosen: dict[str, Vector] = field(default_factory=dict)
    supported: dict[str, int] = field(default_factory=dict)
    """How many claims that hold have the letter."""
    named: frozenset[str] = frozenset()
    """The letters that are whole numbers of the code's own."""

    def known(self, letter: str, beyond: int = 0) -> bool:
        """Say whether it is more than this one claim's word: the code's own, a usual one, or one of other claims."""
        return letter in self.named or meaning(letter) is not None or self.supported.get(letter, 0) > beyond


def unify(demands: Sequence[Demand], calls: Sequence[Call]) -> Letters:
    """Return what the letters of a function's claims stand for."""
    letters = list(dict.fromkeys(name for one in demands for group in one.groups for name in group.letters))
    own = {name: _own(name, calls) for name in letters}
    named = frozenset(name for name, vector in own.items() if any(number is not None for number in vector))
    candidates = {name: _candidates(name, demands, own[name], named) for name in letters}
    for name, vectors in _solved(demands, candidates).items():
        candidates[name] = (candidates[name] + [one for one in vectors if one not in candidates[name]])[:6]
    usual = {symbol: _symbol(symbol, calls) for symbols in _SYMBOLS.values() for symbol in symbols}
    for name, options in candidates.items():
        options += [one for one in _usually(name, usual) if options and one not in options]
    chosen = {name: options[0] for name, options in candidates.items() if options}
    open_ = [name for name, options in candidates.items() if len(options) > 1]
    state = _Search(demands, own, usual)
    count = 1
    for name in open_:
        count *= len(candidates[name])
    if count <= _MOST:
        best = min(
            (
                chosen | dict(zip(open_, choice, strict=True))
                for choice in itertools.product(*(candidates[n] for n in open_))
            ),
            key=state.cost,
            default=chosen,
        )
    else:
        best = _climbed(chosen, open_, candidates, state)
    supported: dict[str, int] = {}
    for one in demands:
        if holds(one, best):
            for name in {name for group in one.groups for name in group.letters}:
                supported[name] = supported.get(name, 0) + 1
    return Letters(best, supported, named)


def _climbed(
    chosen: dict[str, Vector], open_: Sequence[str], candidates: Mapping[str, Sequence[Vector]], state: _Search
) -> dict[str, Vector]:
    """Return the best assignment that changes of one or two letters lead to."""
    best, cost = dict(chosen), state.cost(chosen)
    improved = True
    while improved:
        improved = False
        singles = [{name: option} for name in open_ for option in candidates[name]]
        pairs = [
            {one: best[other], other: best[one]}
            for one, other in itertools.combinations(open_, 2)
            if best[other] in candidates[one] and best[one] in candidates[other]
        ]
        for change in (*singles, *pairs):
            tried = best | change
            if (now := state.cost(tried)) < cost:
                best, cost, improved = tried, now, True
    return best


def _usually(name: str, usual: Mapping[str, Vector]) -> list[Vector]:
    """Return what a letter stands for with most people, where it is known in every call."""
    own = meaning(name)
    return [usual[symbol] for symbol in (_SYMBOLS[own] if own is not None else ()) if None not in usual[symbol]]


def _own(name: str, calls: Sequence[Call]) -> Vector:
    return tuple(call.integers.get(name) for call in calls)


def _symbol(symbol: str, calls: Sequence[Call]) -> Vector:
    return tuple(call.numbers.get(symbol) for call in calls)


def _candidates(name: str, demands: Sequence[Demand], own: Vector, named: frozenset[str]) -> list[Vector]:
    votes: list[tuple[Vector, float]] = [(own, 3.0)] if name in named else []
    for one in demands:
        votes += [(vector, one.weight) for vector in _votes(name, one)]
    merged: list[tuple[Vector, float]] = []
    for vector, weight in sorted(votes, key=lambda vote: sum(number is None for number in vote[0])):
        for place, (other, sum_) in enumerate(merged):
            if _agree(vector, other):
                merged[place] = (
                    tuple(a if a is not None else b for a, b in zip(other, vector, strict=True)),
                    sum_ + weight,
                )
                break
        else:
            merged.append((vector, weight))
    merged.sort(key=lambda one: -one[1])
    return [vector for vector, _ in merged[:6]]


def _solved(demands: Sequence[Demand], candidates: Mapping[str, Sequence[Vector]]) -> dict[str, list[Vector]]:
    """Return what sums, `P+T`, give for one of their letters where the other is known."""
    found: dict[str, list[Vector]] = {}
    for one, group in ((one, one.sole) for one in demands):
        tokens = group.tokens if group is not None else ()
        for place, token in enumerate(tokens):
            match token.tree:
                case ast.BinOp(left=ast.Name(id=left), op=ast.Add(), right=ast.Name(id=right)):
                    sums = tuple(_number(tokens, place, call) for call in one.measured)
                    for name, other in ((left, right), (right, left)):
                        for known in candidates[other][:1]:
                            pairs = zip(sums, known, strict=True)
                            rest = tuple(a - b if a is not None and b is not None else None for a, b in pairs)
                            found.setdefault(name, []).append(rest)
    return found


def _agree(one: Vector, other: Vector) -> bool:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return bool(pairs) and all(a == b for a, b in pairs)


def _votes(name: str, one: Demand) -> list[Vector]:
    """Return the numbers that a claim gives a letter, by each of its axes that is just this letter."""
    group = one.sole
    if group is None:
        return []
    found = []
    for place, token in enumerate(group.tokens):
        if token.kind == "letter" and token.text == name:
            numbers = tuple(_number(group.tokens, place, call) for call in one.measured)
            if any(number is not None for number in numbers):
                found.append(numbers)
    return found


def _number(tokens: Sequence[Token], place: int, call: Sequence[Sequence[Shape]]) -> int | None:
    """Return the size of the axis that a token stands for, None where it isn't one number throughout the call."""
    numbers = set()
    for options in call:
        at = axis_of(tokens, place, options[0])
        numbers.add(options[0][at] if at is not None else None)
    return numbers.pop() if len(numbers) == 1 else None


@dataclass(frozen=True)
class _Search:
    demands: Sequence[Demand]
    own: Mapping[str, Vector]
    usual: Mapping[str, Vector]

    def cost(self, chosen: Mapping[str, Vector]) -> float:
        """Return what is wrong under an assignment of the letters."""
        wrong = sum(one.weight for one in self.demands if not holds(one, chosen))
        for name, vector in chosen.items():
            if any(number is not None for number in self.own[name]) and not _agree(vector, self.own[name]):
                wrong += _SURE
            wrong += _USUAL * self._unusual(name, vector)
        for one in self.demands:
            for a, b in itertools.combinations(sorted(set(one.groups[0].letters)), 2):
                wrong += _SAME * (a in chosen and b in chosen and _agree(chosen[a], chosen[b]))
        return wrong

    def _unusual(self, name: str, vector: Vector) -> bool:
        """Say whether a letter stands for what another usually does, and not for what it does itself."""
        own = meaning(name)
        if own is None or any(_agree(vector, self.usual[symbol]) for symbol in _SYMBOLS[own]):
            return False
        others = (symbol for other, symbols in _SYMBOLS.items() if other != own for symbol in symbols)
        return any(_agree(vector, self.usual[symbol]) for symbol in others)
