"""The sizes of one run: what was given, what is by default, what follows, and which sizes can vary on their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from attnshape import axis
from attnshape.axis import AxisExpression
from attnshape.dims import BY_LETTER, ORDER, flag_of
from attnshape.errors import AttnshapeError
from attnshape.model import Size

LARGEST = 2**40
"""No tensor has an axis this long; beyond it products leave 64 bits."""


@dataclass(frozen=True)
class Sizes:
    """Every symbol in use with its number, and how the dependent ones follow from the independent ones."""

    records: Mapping[str, Size]
    follows: Mapping[str, AxisExpression]
    """For each dependent symbol its expression; the rest are independent. In order of evaluation."""
    labels: frozenset[str] = frozenset()
    """Symbols that were given but that nothing in the target depends on: an axis can be matched to them, no more."""

    @property
    def numbers(self) -> dict[str, int]:
        """Symbol to number, in canonical order."""
        return {letter: record.size for letter, record in self.records.items()}

    @property
    def independent(self) -> tuple[str, ...]:
        """The symbols whose numbers can be chosen freely."""
        return tuple(letter for letter in self.records if letter not in self.follows and letter not in self.labels)

    def at(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return all numbers where the independent symbols have the chosen ones."""
        numbers = {letter: self.records[letter].size for letter in self.labels} | dict(chosen)
        for letter, expression in self.follows.items():
            numbers[letter] = expression.evaluate(numbers)
        return {letter: numbers[letter] for letter in self.records}


def positive(text: str, name: str) -> int:
    """Return a size as typed. Raises AttnshapeError where it isn't a whole number from 1 up."""
    try:
        size = int(text)
    except ValueError:
        raise AttnshapeError(f"{name} is {text[:40]!r}, expected a whole number", f"for example {name} 4") from None
    return check_positive(size, name)


def check_positive(size: int, name: str) -> int:
    """Return the size. Raises AttnshapeError where no tensor can have it."""
    if size < 1:
        example = f"{name}=4" if name.startswith("--dim ") else f"{name} 4"
        raise AttnshapeError(f"{name} is {size}, expected at least 1", f"for example {example}")
    if size > LARGEST:
        raise AttnshapeError(
            f"{name} is {size}, more than any tensor's axis can have ({LARGEST})", "give a smaller size"
        )
    return size


def own_letters(assignments: Collection[str]) -> dict[str, AxisExpression]:
    """Parse each `--dim NAME=EXPR`. Raises AttnshapeError where one isn't that."""
    own: dict[str, AxisExpression] = {}
    for text in assignments:
        name, equals, expression = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not expression:
            raise AttnshapeError(f"--dim {text!r} isn't NAME=EXPR", "for example --dim nh=4 --dim C=nh*hs")
        if name in BY_LETTER:
            raise AttnshapeError(
                f"--dim {text!r}: {name} is {BY_LETTER[name].meaning}", f"give it with {BY_LETTER[name].flag}"
            )
        if name == "torch":
            raise AttnshapeError(
                f"--dim {text!r}: torch is the library's name in --init and --with", "choose another letter"
            )
        own[name] = axis.parse(expression)
    return own


def resolve(used: Collection[str], given: Mapping[str, int], own: Mapping[str, AxisExpression]) -> Sizes:
    """Return the sizes of a target that uses these symbols.

    `given` holds the numbers from flags. Where D, H and Dk are all given they are independent; otherwise D = H*Dk.
    Raises AttnshapeError where a symbol is unknown or the numbers contradict each other.
    """
    letters = {*used, *given}
    for letter in sorted(letters - own.keys()):
        if letter not in BY_LETTER:
            raise AttnshapeError(
                f"{letter} isn't a size symbol", f"define it with --dim {letter}=4, or see: attnshape glossary"
            )
    depends = {*used} | {name for expression in own.values() for name in expression.symbols} | own.keys()
    letters |= depends
    numbers: dict[str, Size] = {
        letter: Size(check_positive(size, flag_of(letter)), "given") for letter, size in given.items()
    }
    follows: dict[str, AxisExpression] = {}
    _key_value_heads(letters, numbers)
    if "H" in depends and {"Hkv", "G"} & depends:
        follows["H"] = axis.parse("Hkv*G")
    _widths(letters, numbers)
    if (
        "H" in depends
        and {"D", "Dk"} & depends
        and {"D//H", "H*Dk", "D//Dk"} & {numbers[w].expression for w in ("D", "H", "Dk") if w in numbers}
    ):
        follows["D"] = axis.parse("H*Dk")
    waiting = (letters & BY_LETTER.keys()) - numbers.keys() - follows.keys()
    for letter in sorted(waiting, key=ORDER.__getitem__):
        default = BY_LETTER[letter].default
        numbers[letter] = Size(default if default is not None else 1, "default")
    _own(own, numbers, follows)
    order = sorted(
        numbers, key=lambda letter: (ORDER.get(letter, len(ORDER)), list(own).index(letter) if letter in own else 0)
    )
    parts = {name for expression in follows.values() for name in expression.symbols}
    labels = frozenset(numbers) - depends - parts - follows.keys()
    return Sizes({letter: numbers[letter] for letter in order}, follows, labels)


def _default(letter: str, numbers: dict[str, Size]) -> int:
    """Take the default of a symbol into the numbers, unless it has one already."""
    default = BY_LETTER[letter].default
    numbers.setdefault(letter, Size(default if default is not None else 1, "default"))
    return numbers[letter].size


def _key_value_heads(letters: set[str], numbers: dict[str, Size]) -> None:
    """H = G*Hkv where key/value heads are in use beside others."""
    if "G" not in letters and not {"H", "Hkv"} <= letters:
        return
    letters |= {"H", "Hkv", "G"}
    if {"H", "Hkv", "G"} <= numbers.keys():
        if numbers["H"].size != numbers["Hkv"].size * numbers["G"].size:
            raise AttnshapeError(
                f"the sizes contradict each other: H = G*Hkv = {numbers['G'].size}*{numbers['Hkv'].size} = "
                f"{numbers['G'].size * numbers['Hkv'].size}, but --heads is {numbers['H'].size}",
                "leave one of the three out",
            )
    elif "G" in numbers and "H" not in numbers:
        _derive("H", "G*Hkv", _default("Hkv", numbers) * numbers["G"].size, numbers)
    elif "G" in numbers:
        _derive("Hkv", "H//G", _exact("H", "G", _default("H", numbers), numbers["G"].size), numbers)
    else:
        heads = _default("H", numbers)
        if "Hkv" not in numbers and heads % _default("Hkv", numbers):
            numbers["Hkv"] = Size(1, "default")
        _derive("G", "H//Hkv", _exact("H", "Hkv", heads, numbers["Hkv"].size), numbers)


def _widths(letters: set[str], numbers: dict[str, Size]) -> None:
    """D = H*Dk where two of them are in use, unless all three are given or D is no multiple of H."""
    if "H" not in letters or not {"D", "Dk"} & letters or {"D", "H", "Dk"} <= numbers.keys() & letters:
        return
    if {"D", "Dk"} <= numbers.keys():
        heads = _exact("D", "Dk", numbers["D"].size, numbers["Dk"].size)
        _derive("H", "D//Dk", heads, numbers)
        return
    heads = _default("H", numbers)
    if "D" in numbers:
        if numbers["D"].size % heads == 0:
            _derive("Dk", "D//H", numbers["D"].size // heads, numbers)
        elif "Dk" not in letters:
            return
        else:
            _exact("D", "H", numbers["D"].size, heads)
    elif "Dk" in numbers:
        _derive("D", "H*Dk", heads * numbers["Dk"].size, numbers)
    elif "D" in letters:
        width = _default("D", numbers)
        if width % heads:
            numbers.pop("D")
            _derive("D", "H*Dk", heads * _default("Dk", numbers), numbers)
        else:
            _derive("Dk", "D//H", width // heads, numbers)


def _derive(letter: str, expression: str, size: int, numbers: dict[str, Size]) -> None:
    numbers[letter] = Size(check_positive(size, flag_of(letter)), "derived", expression)


def _exact(whole: str, part: str, size: int, divisor: int) -> int:
    if size % divisor:
        raise AttnshapeError(
            f"the sizes contradict each other: {whole}/{part} = {size}/{divisor} leaves {size % divisor}",
            f"choose {flag_of(whole)} as a multiple of {flag_of(part)}",
        )
    return size // divisor


def _own(own: Mapping[str, AxisExpression], numbers: dict[str, Size], follows: dict[str, AxisExpression]) -> None:
    """The author's letters: a number is a size of its own, an expression follows from others."""
    waiting = dict(own)
    while waiting:
        ready = [name for name, expression in waiting.items() if all(s in numbers for s in expression.symbols)]
        if not ready:
            name, expression = next(iter(waiting.items()))
            missing = [symbol for symbol in expression.symbols if symbol not in numbers]
            raise AttnshapeError(
                f"--dim {name}={expression.text} needs {missing[0]}, which has no number or needs {name} itself",
                f"define {missing[0]} first: --dim {missing[0]}=4",
            )
        for name in ready:
            expression = waiting.pop(name)
            size = expression.evaluate({letter: record.size for letter, record in numbers.items()})
            check_positive(size, f"--dim {name}")
            if expression.symbols:
                numbers[name] = Size(size, "derived", expression.text)
                follows[name] = expression
            else:
                numbers[name] = Size(size, "given")
