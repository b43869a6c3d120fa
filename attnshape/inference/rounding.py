"""Quotients rounded down or up, with a number added above or behind, and paddings to a multiple."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Values = tuple[int, ...]
_DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
_ALL_OFFSETS = 8
"""Up to this divisor every number that can be added above is tried; beyond it only those that round up or down."""
_LARGEST_ADDEND = 64


def roundings(values: Values, bases: Sequence[tuple[str, Values]], more: Sequence[tuple[str, Values]]) -> Iterator[str]:
    """Yield each rounded quotient of a base and a number, or of a base and one of `more`, that gives the values."""
    if min(values) < 1 or len(set(values)) < 2:
        return
    divisors = [(str(number), tuple(number for _ in values)) for number in _DIVISORS]
    for name, above in bases:
        for divisor, below in (*divisors, *more):
            if divisor != name:
                yield from _quotients(values, name, above, divisor, below)


def _quotients(values: Values, name: str, above: Values, divisor: str, below: Values) -> Iterator[str]:
    if min(below) < 2:
        return
    # a quotient that is the same everywhere would make any number of any divisor
    if len({high // low for high, low in zip(above, below, strict=True)}) < 2:
        return
    up = tuple(-(-high // low) for high, low in zip(above, below, strict=True))
    if values == tuple(number * low for number, low in zip(up, below, strict=True)):
        yield f"-(-{_inner(name)}//{_inner(divisor)})*{_inner(divisor)}"
    if divisor.isdecimal() and int(divisor) <= _ALL_OFFSETS:
        shifts = {shift: tuple(shift for _ in values) for shift in range(int(divisor))}
    else:
        shifts = {0: tuple(0 for _ in values), -1: tuple(low - 1 for low in below)}
    for shift, added in shifts.items():
        rest = {
            value - (high + more) // low for value, high, more, low in zip(values, above, added, below, strict=True)
        }
        if len(rest) == 1 and abs(addend := rest.pop()) <= _LARGEST_ADDEND:
            yield _written(name, divisor, shift, addend)


def _written(name: str, divisor: str, shift: int, addend: int) -> str:
    """Write a quotient rounded down after `shift` was added above, -1 for what rounds up, plus a number.

    >>> [_written("L", "4", *numbers) for numbers in ((0, 1), (3, 0), (1, -1))]
    ['L//4+1', '-(-L//4)', '(L-3)//4']
    """
    base, below = _inner(name), _inner(divisor)
    behind = f"{addend:+d}" if addend else ""
    if shift == 0:
        return f"{base}//{below}{behind}"
    if shift == -1 or shift == int(divisor) - 1:
        return f"-(-{base}//{below}){behind}"
    return f"({name}{shift + addend * int(divisor):+d})//{below}"


def _inner(text: str) -> str:
    return text if text.isalnum() else f"({text})"
