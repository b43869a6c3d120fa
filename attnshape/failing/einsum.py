"""An einsum equation whose letters stand for different sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from attnshape.failing.finding import Candidate, Finding
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import axes, place, quoted, size
from attnshape.tracing.raw import RawCall


def einsum(scene: Scene) -> Finding | None:
    """Explain an einsum in which a letter stands for two sizes, or an operand's axes aren't as many as its letters."""
    equation = scene.argument(0)
    if scene.operation != "einsum" or not isinstance(equation, str):
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(scene.parties):
        return Finding(f"the equation has {len(terms)} terms for {len(scene.parties)} operands")
    pairs = list(zip(terms, scene.parties, strict=True))
    for term, party in pairs:
        if "." not in term and len(term) != party.rank:
            return Finding(f"the term {term} names {len(term)} axes: {quoted(party)} has {axes(party)}")
    return _letter(equation, pairs)


def _letter(equation: str, pairs: list[tuple[str, Party]]) -> Finding | None:
    seen: dict[str, tuple[Party, int]] = {}
    for term, party in pairs:
        for axis, letter in _letters(term, party.rank):
            earlier = seen.setdefault(letter, (party, axis))
            sizes = {earlier[0].shape[earlier[1]], party.shape[axis]}
            if len(sizes - {1}) < 2:
                continue
            words = [
                f"{place(at, one.rank)} of {quoted(one)} is {size(one, at)}" for one, at in (earlier, (party, axis))
            ]
            marked: dict[int, tuple[int, ...]] = {earlier[0].place: (earlier[1],)}
            marked[party.place] = (*marked.get(party.place, ()), axis)
            return Finding(
                f"the axes that einsum calls {letter} differ: {', '.join(words)}",
                marked,
                tuple(_exchanges(equation, [term for term, _ in pairs])),
            )
    return None


def _letters(term: str, rank: int) -> Iterator[tuple[int, str]]:
    """Yield each letter of a term with the axis that it names."""
    before, dots, after = term.partition("...")
    yield from enumerate(before)
    if dots:
        yield from enumerate(after, rank - len(after))


def _exchanges(equation: str, terms: list[str]) -> Iterator[Candidate]:
    """Yield the equations in which two letters of one term are exchanged; of the last term first."""
    _, arrow, output = equation.replace(" ", "").partition("->")
    for rank, position in enumerate(reversed(range(len(terms)))):
        term = terms[position]
        for one, other in itertools.combinations(range(len(term)), 2):
            if "." in term:
                continue
            letters = list(term)
            letters[one], letters[other] = term[other], term[one]
            changed = [*terms[:position], "".join(letters), *terms[position + 1 :]]
            yield _candidate(f"{','.join(changed)}{arrow}{output}", rank)


def _candidate(equation: str, rank: int) -> Candidate:
    def call(call: RawCall) -> RawCall:
        return replace(call, args=(equation, *call.args[1:]))

    return Candidate(f"the equation '{equation}'", call=call, rank=rank)
