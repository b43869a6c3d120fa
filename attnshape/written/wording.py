"""A measured shape in the author's letters, and in the notation of what was written."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from attnshape.written.calls import Call, Shape
from attnshape.written.fitting import Demand, Vector
from attnshape.written.notation import Group
from attnshape.written.unify import Letters

_LARGEST_FACTOR = 4


def in_letters(
    shape: Shape, place: int, one: Demand, group: Group, letters: Letters, calls: Sequence[Call]
) -> tuple[str, ...]:
    """Return a shape, measured in the call at a place, by the author's letters, the claim's first, then the sizes'.

    A letter is taken where it gives the number in every call that had one shape there; else the number is returned.
    """
    vectors = [_measured(one, axis, len(shape)) for axis in range(len(shape))]
    names = _names(group, letters, calls)
    return tuple(
        _axis(number, vector if vector[place] == number else _only(number, place, len(calls)), names)
        for number, vector in zip(shape, vectors, strict=True)
    )


def written_like(axes: Sequence[str], group: Group, dims: bool) -> str:
    """Return the axes in the notation of a written shape; `dims` says that it is a dims string of jaxtyping's."""
    text = group.text
    if dims:
        return f'"{" ".join(axes)}"'
    if text.startswith("["):
        return f"[{', '.join(axes)}]"
    if group.bracketed:
        return tuple_of(axes)
    if " x " in text:
        return " x ".join(axes)
    return ", ".join(axes) if "," in text else " ".join(axes)


def tuple_of(axes: Sequence[str]) -> str:
    """Return the axes as Python writes a shape.

    >>> tuple_of(["B", "T"]), tuple_of(["T"]), tuple_of([])
    ('(B, T)', '(T,)', '()')
    """
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


def _measured(one: Demand, axis: int, rank: int) -> Vector:
    """Return an axis's size in each call that had one shape of that many axes there."""
    found: list[int | None] = []
    for call in one.measured:
        shapes = {shape for options in call for shape in options}
        sizes = {shape[axis] for shape in shapes if len(shape) == rank} if len(shapes) == 1 else set()
        found.append(sizes.pop() if sizes else None)
    return tuple(found)


def _only(number: int, place: int, count: int) -> Vector:
    return tuple(number if at == place else None for at in range(count))


def _names(group: Group, letters: Letters, calls: Sequence[Call]) -> dict[str, Vector]:
    """Return what each letter stands for, the claim's and those of most claims first, then the sizes' own symbols."""
    order = sorted(letters.chosen, key=lambda name: (name not in group.letters, -letters.supported.get(name, 0)))
    found: dict[str, Vector] = {name: letters.chosen[name] for name in order}
    symbols = dict.fromkeys(symbol for call in calls for symbol in call.numbers)
    return found | {name: tuple(call.numbers.get(name) for call in calls) for name in symbols if name not in found}


def _axis(number: int, sizes: Vector, names: Mapping[str, Vector]) -> str:
    if number == 1:
        return "1"
    for name, vector in names.items():
        if _gives(sizes, vector, 1):
            return name
    for (one, first), (other, second) in itertools.combinations(names.items(), 2):
        product = tuple(a * b if a and b and a > 1 < b else None for a, b in zip(first, second, strict=True))
        if _gives(sizes, product, 1):
            return f"{one}*{other}"
    for factor, (name, vector) in itertools.product(range(2, _LARGEST_FACTOR + 1), names.items()):
        if _gives(sizes, vector, factor):
            return f"{factor}*{name}"
    return str(number)


def _gives(sizes: Vector, vector: Vector, factor: int) -> bool:
    """Say whether a letter times a factor is the axis's size wherever this is known."""
    return all(
        size is None or (number is not None and size == factor * number)
        for size, number in zip(sizes, vector, strict=True)
    )
