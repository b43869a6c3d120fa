"""The sets of sizes that a target of pyproject.toml lists: `sizes = [{ B = 2, L = 10 }, { B = 1, L = 1 }]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnshape import axis
from attnshape.axis import AxisExpression
from attnshape.dims import BY_LETTER, ORDER, SYMBOLS
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.sizes import LARGEST

SizeSet = Mapping[str, int]
"""Letter to number, in canonical order."""
Wrong = Callable[[str, str], AttnshapeError]
"""Makes the error of the key, from what is wrong with it and the way out."""

_LONGEST = 20
_EXAMPLE = "for example sizes = [{ B = 2, L = 10 }, { B = 1, L = 1 }]"
_LETTERS = {word: symbol.letter for symbol in SYMBOLS for word in (symbol.flag, symbol.flag.removeprefix("--"))}


def size_sets(value: Any, flags: Mapping[str, list[str]], wrong: Wrong) -> tuple[SizeSet, ...]:
    """Return the sets of sizes; `flags` are those of the same target, as texts.

    An expression is worked out from the other numbers of its set, and of the target.
    Raises what `wrong` makes where a set can't be one.
    """
    tables = [value] if isinstance(value, dict) else value
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise wrong("isn't a table of sizes, or a list of such tables", _EXAMPLE)
    if not tables:
        raise wrong("is an empty list", f"leave it out, or list the sizes, {_EXAMPLE}")
    own = {text.partition("=")[0].strip(): text.partition("=")[2].strip() for text in flags.get("dim", [])}
    beside = own | {symbol.letter: flags.get(symbol.flag.removeprefix("--"), [""])[0] for symbol in SYMBOLS}
    known = {letter: int(text) for letter, text in beside.items() if text.isdecimal() and len(text) < _LONGEST}
    found: list[SizeSet] = []
    for place, table in enumerate(tables, 1):

        def at(what: str, hint: str, which: str = f"has in its set {place} " if len(tables) > 1 else "has ") -> Any:
            return wrong(which + what, hint)

        if not table:
            raise at("no sizes", f"list some, {_EXAMPLE}")
        for letter in table:
            _refuse_unknown(letter, own, flags, at)
        one = _worked_out({letter: _parsed(letter, item, at) for letter, item in table.items()}, known, at)
        if one in found:
            raise wrong(f"has the set {said(one)} twice", "list each set once")
        found.append(one)
    return tuple(found)


def said(sizes: SizeSet) -> str:
    """Return a set of sizes in words.

    >>> said({"B": 1, "L": 10})
    'B=1 L=10'
    """
    return " ".join(f"{letter}={size}" for letter, size in sizes.items())


def _refuse_unknown(letter: str, own: Mapping[str, str], flags: Mapping[str, list[str]], at: Wrong) -> None:
    if letter in BY_LETTER:
        key = BY_LETTER[letter].flag.removeprefix("--")
        if key in flags:
            raise at(
                f"{letter}, which the key {key} of the same target gives too",
                f"keep one: {key}, or {letter} in each set",
            )
    elif letter in _LETTERS:
        raise at(f"{letter[:40]!r}, which isn't a letter", f"write {_LETTERS[letter]}, as in a signature")
    elif letter not in own:
        hint = nearest(letter, [*BY_LETTER, *own], "the letters are")
        raise at(f"{letter[:40]!r}, which isn't a size symbol", f"{hint} (or add your own: dim = {{ T = 4 }})")


def _parsed(letter: str, item: Any, at: Wrong) -> AxisExpression:
    if isinstance(item, int) and not isinstance(item, bool):
        item = str(_fitting(letter, item, at))
    if not isinstance(item, str):
        raise at(f"{letter} = {str(item)[:40]}, expected a whole number or an expression", f"for example {letter} = 4")
    try:
        return axis.parse(item)
    except AttnshapeError as error:
        raise at(f"{letter} = {item[:40]!r}: {error.message}", error.hint or f"for example {letter} = 4") from None


def _fitting(letter: str, size: int, at: Wrong) -> int:
    if not 1 <= size <= LARGEST:
        shown = str(size) if abs(size) <= 10 * LARGEST else "a far larger number"
        raise at(f"{letter} = {shown}, expected a whole number from 1 up to {LARGEST}", f"for example {letter} = 4")
    return size


def _worked_out(expressions: Mapping[str, AxisExpression], known: Mapping[str, int], at: Wrong) -> SizeSet:
    """Return the set with a number for each letter; `known` are those that the target has beside it."""
    numbers = {letter: size for letter, size in known.items() if letter not in expressions}
    waiting = dict(expressions)
    while waiting:
        ready = [one for one, expression in waiting.items() if all(part in numbers for part in expression.symbols)]
        if not ready:
            letter, expression = next(iter(waiting.items()))
            missing = next(part for part in expression.symbols if part not in numbers)
            raise at(
                f"{letter} = {expression.text!r}, and {missing} has no number there",
                f"add {missing} to the set, for example {missing} = 4",
            )
        for letter in ready:
            expression = waiting.pop(letter)
            try:
                size = expression.evaluate(numbers)
            except AttnshapeError as error:
                raise at(f"{letter} = {error.message}", error.hint or f"for example {letter} = 4") from None
            numbers[letter] = _fitting(letter, size, at)
    order = sorted(expressions, key=lambda letter: (ORDER.get(letter, len(ORDER)), letter))
    return {letter: numbers[letter] for letter in order}
