"""The sizes of one run: given, default and derived ones, and which of them can vary independently."""

from __future__ import annotations

import keyword
import math
import operator
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from msgspec.structs import replace as with_fields

from attnshape.dims.expressions import AxisExpression, parse_expression, parse_size_expression
from attnshape.dims.symbols import ORDER, SYMBOLS_BY_NAME, require_known, size_option
from attnshape.errors import AttnshapeError, Text
from attnshape.model.trace import Size

LARGEST = 2**40
"""No tensor has an axis this long; beyond it products leave 64 bits."""


@dataclass(frozen=True)
class Sizes:
    """Every symbol in use with its size, and how the dependent sizes follow from the independent ones."""

    records: Mapping[str, Size]
    follows: Mapping[str, AxisExpression]
    """The expression of each dependent symbol, in order of evaluation."""
    labels: frozenset[str] = frozenset()
    """Symbols that the user gave but that the target doesn't depend on: axes are only matched to them."""
    inputs: Mapping[str, Sequence[AxisExpression]] = field(default_factory=dict)
    """The axes of the target's inputs, as the user wrote them."""
    named: frozenset[str] = frozenset()
    """The symbols that the target itself names, which others may follow from."""
    literals: frozenset[int] = frozenset()
    """The whole numbers in the target's own arguments, such as a slice's length: no chosen size should equal one."""

    @property
    def matchable(self) -> dict[str, int]:
        """The symbols to which axes may be matched: not those of a size that the user wrote as a number."""
        written = {axis.evaluate({}) for axes in self.inputs.values() for axis in axes if not axis.symbols}
        return {symbol: size for symbol, size in self.numbers.items() if size not in written}

    @property
    def numbers(self) -> dict[str, int]:
        """The size of each symbol, in canonical order."""
        return {symbol: record.size for symbol, record in self.records.items()}

    @property
    def independent(self) -> tuple[str, ...]:
        """The symbols whose sizes can be chosen freely."""
        return tuple(symbol for symbol in self.records if symbol not in self.follows and symbol not in self.labels)

    def at(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return all sizes for chosen sizes of the independent symbols."""
        numbers = {symbol: self.records[symbol].size for symbol in self.labels} | dict(chosen)
        for symbol, expression in self.follows.items():
            numbers[symbol] = expression.evaluate(numbers)
        return {symbol: numbers[symbol] for symbol in self.records}


def check_size(symbol: str, size: object) -> int:
    """Return a size as an integer. Raises AttnshapeError if no tensor's axis can have it."""
    example = "for example ", size_option(symbol, 4)
    if isinstance(size, (bool, str)) or not hasattr(size, "__index__"):
        raise AttnshapeError((size_option(symbol), f" is {size!r}, expected a whole number"), example)
    number = operator.index(size)
    shown = str(number) if abs(number) < LARGEST**3 else "a far too large number"
    if number < 1:
        raise AttnshapeError((size_option(symbol), f" is {shown}, expected at least 1"), example)
    if number > LARGEST:
        raise AttnshapeError(
            (size_option(symbol), f" is {shown}, more than any tensor's axis can have ({LARGEST})"),
            "give a smaller size",
        )
    return number


def check_sizes(sizes: Mapping[str, int | str]) -> None:
    """Raise AttnshapeError if a symbol's size is no integer, or if a dimension's name or expression is invalid."""
    for name, size in sizes.items():
        if not _is_own(name, size):
            check_size(name, size)
        elif not name.isidentifier():
            raise AttnshapeError(f"the size {name[:40]!r} isn't a name", "name it like a variable: nh, seq_len")
        elif name == "torch":
            raise AttnshapeError(
                (size_option("torch"), ": torch names the library in Python expressions"), "choose another name"
            )
        elif (usable := _usable_in_python(name)) != name:
            raise AttnshapeError(
                (size_option(name), f": Python expressions can't use the name {name}"), f"name it {usable}"
            )
        elif not (expression := parse_size(name, size)).symbols:
            _evaluate_size(name, expression, {})


def _is_own(name: str, size: int | str) -> bool:
    """Return whether a size is of the user's own symbol, or defines one of the catalog's by an expression."""
    symbol = SYMBOLS_BY_NAME.get(name)
    return symbol is None or (isinstance(size, str) and not symbol.is_general)


def _usable_in_python(name: str) -> str:
    """Return the name as Python reads it, and with an underscore if it is a keyword."""
    plain = unicodedata.normalize("NFKC", name)
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def parse_size(name: str, size: int | str) -> AxisExpression:
    """Return the size of a user's own dimension as an expression. Raises AttnshapeError if it is none."""
    if not isinstance(size, str):
        return parse_expression(str(check_size(name, size)))
    try:
        return parse_size_expression(size)
    except AttnshapeError as error:
        raise error.prefixed(size_option(name), ": ") from None


def _evaluate_size(name: str, expression: AxisExpression, numbers: Mapping[str, int]) -> int:
    try:
        size = expression.evaluate(numbers)
    except AttnshapeError as error:
        raise error.prefixed(size_option(name), ": ") from None
    return check_size(name, size)


def evaluate_sizes(
    expressions: Mapping[str, AxisExpression],
    known: Mapping[str, int],
    undefined: Callable[[str, str], tuple[str, Text]],
) -> dict[str, int]:
    """Return the number of each expression by name, in order of evaluation: they may use each other and `known`.

    Raises AttnshapeError if one needs a symbol without a number; `undefined` returns, for the name and the symbol, what
    the message says after the size, and the hint.
    """
    waiting, numbers = dict(expressions), dict(known)
    evaluated: dict[str, int] = {}
    while waiting:
        ready = [name for name, expression in waiting.items() if numbers.keys() >= {*expression.symbols}]
        if not ready:
            name, expression = next(iter(waiting.items()))
            missing = next(symbol for symbol in expression.symbols if symbol not in numbers)
            problem, hint = undefined(name, missing)
            raise AttnshapeError((size_option(name, expression.text), problem), hint)
        for name in ready:
            evaluated[name] = numbers[name] = _evaluate_size(name, waiting.pop(name), numbers)
    return evaluated


def resolve(
    used: Collection[str], given: Mapping[str, int | str], defaults: Mapping[str, int] = MappingProxyType({})
) -> Sizes:
    """Return the sizes of a target that depends on the symbols in `used`, for the sizes that the user gave.

    Where D, H and Dk are all given they are independent; otherwise D = H*Dk. `defaults` are the sizes of the user's own
    symbols that need not be given.

    Raises AttnshapeError if a symbol is unknown, or the numbers contradict each other.
    """
    check_sizes(given)
    own = {name: parse_size(name, size) for name, size in {**defaults, **given}.items() if _is_own(name, size)}
    _refuse_unknown({*used}, own)
    depends = {*used} | {name for expression in own.values() for name in expression.symbols} | own.keys()
    numbers: dict[str, Size] = {
        symbol: Size(check_size(symbol, size), "given") for symbol, size in given.items() if not _is_own(symbol, size)
    }
    symbols = depends | numbers.keys()
    follows: dict[str, AxisExpression] = {}
    _key_value_heads(symbols, numbers)
    if "H" in depends and {"Hkv", "G"} & depends and "Hkv" in numbers:
        follows["H"] = parse_expression("Hkv*G")
    _widths(symbols, numbers)
    if (
        "H" in depends
        and {"D", "Dk"} & depends
        and {"D//H", "H*Dk", "D//Dk"} & {numbers[w].expression for w in ("D", "H", "Dk") if w in numbers}
    ):
        follows["D"] = parse_expression("H*Dk")
    waiting = (symbols & SYMBOLS_BY_NAME.keys()) - numbers.keys() - follows.keys() - own.keys()
    for symbol in sorted(waiting, key=ORDER.__getitem__):
        _default(symbol, numbers)
    known = {symbol: record.size for symbol, record in numbers.items()}
    for name, size in evaluate_sizes(own, known, _undefined).items():
        if own[name].symbols:
            numbers[name] = Size(size, "derived", own[name].text)
            follows[name] = own[name]
        else:
            numbers[name] = Size(size, "given" if name in given else "default")
    place = {**ORDER, **{name: len(ORDER) + index for index, name in enumerate(own)}}
    order = sorted(numbers, key=place.__getitem__)
    parts = {name for expression in follows.values() for name in expression.symbols}
    labels = frozenset(numbers) - depends - parts - follows.keys()
    return Sizes({symbol: numbers[symbol] for symbol in order}, follows, labels, named=frozenset(used))


def _refuse_unknown(used: set[str], own: Mapping[str, AxisExpression]) -> None:
    for symbol in sorted(used - own.keys() - SYMBOLS_BY_NAME.keys()):
        raise AttnshapeError(
            f"{symbol} isn't a size symbol", ("define it, ", size_option(symbol, 4), ", or see: attnshape glossary")
        )
    known = [*SYMBOLS_BY_NAME, *own]
    for name, expression in own.items():
        require_known(expression.symbols, known, size_option(name, expression.text))


def _default(symbol: str, numbers: dict[str, Size]) -> int:
    """Return the size of a symbol, which becomes its default where it has none yet."""
    default = SYMBOLS_BY_NAME[symbol].default
    numbers.setdefault(symbol, Size(default if default is not None else 1, "default"))
    return numbers[symbol].size


def _key_value_heads(symbols: set[str], numbers: dict[str, Size]) -> None:
    """Apply H = G*Hkv where key/value heads are in use beside query heads.

    Where Hkv isn't in use, and G doesn't divide H, G is a letter that means something else.
    """
    if "G" not in symbols and not {"H", "Hkv"} <= symbols:
        return
    if "Hkv" not in symbols and {"H", "G"} <= numbers.keys() and numbers["H"].size % numbers["G"].size:
        return
    symbols |= {"H", "Hkv", "G"}
    if {"H", "Hkv", "G"} <= numbers.keys():
        if numbers["H"].size != numbers["Hkv"].size * numbers["G"].size:
            raise AttnshapeError(
                f"the sizes contradict each other: H = G*Hkv = {numbers['G'].size}*{numbers['Hkv'].size} = "
                f"{numbers['G'].size * numbers['Hkv'].size}, but H is {numbers['H'].size}",
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


def _widths(symbols: set[str], numbers: dict[str, Size]) -> None:
    """Apply D = H*Dk where two of them are in use, unless all three are given or H doesn't divide D."""
    if "H" not in symbols or not {"D", "Dk"} & symbols or {"D", "H", "Dk"} <= numbers.keys() & symbols:
        return
    if {"D", "Dk"} <= numbers.keys():
        heads = _exact("D", "Dk", numbers["D"].size, numbers["Dk"].size)
        _derive("H", "D//Dk", heads, numbers)
        return
    heads = _default("H", numbers)
    if "D" in numbers:
        if numbers["D"].size % heads == 0:
            _derive("Dk", "D//H", numbers["D"].size // heads, numbers)
        elif "Dk" not in symbols:
            return
        else:
            _exact("D", "H", numbers["D"].size, heads)
    elif "Dk" in numbers:
        _derive("D", "H*Dk", heads * numbers["Dk"].size, numbers)
    elif "D" in symbols:
        width = _default("D", numbers)
        if width % heads:
            numbers.pop("D")
            _derive("D", "H*Dk", heads * _default("Dk", numbers), numbers)
        else:
            _derive("Dk", "D//H", width // heads, numbers)


def _derive(symbol: str, expression: str, size: int, numbers: dict[str, Size]) -> None:
    numbers[symbol] = Size(check_size(symbol, size), "derived", expression)


def _exact(whole: str, part: str, size: int, divisor: int) -> int:
    if size % divisor:
        raise AttnshapeError(
            f"the sizes contradict each other: {whole}/{part} = {size}/{divisor} leaves {size % divisor}",
            ("choose ", size_option(whole), " as a multiple of ", size_option(part)),
        )
    return size // divisor


def _undefined(name: str, missing: str) -> tuple[str, Text]:
    return (
        f" needs {missing}, which has no number or needs {name} itself",
        (f"define {missing} first: ", size_option(missing, 4)),
    )


_MANY_WEIGHTS, _MANY_SCORES = 2**25, 10**8
"""Elements below which memory is not estimated: in a weight of the widest size, and in an upper bound of the scores."""
_FACTORS = (8, 64)
"""The largest factor that a proxy keeps of its size, the cheaper first."""
_KEPT = 12
"""A size up to this one stays as it is."""
_LARGEST_STEP = 96
_MOST = 2**25
"""No product of four of the sizes that can be chosen freely is larger: the runs are to stay small."""
_OF_A_MODEL = 8
"""With more sizes than that, no tensor has an axis of each of the largest."""

_NO_LENGTHS = ("B", "H", "Hkv", "G", "D", "Dk", "Dv", "Hi", "Di", "Din", "Dout", "Dr", "Dc", "Dcq", "Ns", "Nb")


def is_length(name: str) -> bool:
    """Return whether an unknown may be a length or a window, which grow on their own."""
    return name.partition("/")[0] not in _NO_LENGTHS


def are_large(sizes: Sizes) -> bool:
    """Return whether tensors of these sizes could be large: weights of the widest size, scores of the longest."""
    free = sorted(((sizes.records[name].size, is_length(name)) for name in sizes.independent), reverse=True)
    longest = max((size for size, length in free if length), default=1)
    scores = longest * math.prod(size for size, _ in free[:3])
    return scores >= _MANY_SCORES or max(sizes.numbers.values(), default=1) ** 2 >= _MANY_WEIGHTS


def proxy_sizes(
    sizes: Sizes, kept: Collection[str] = (), counts: Mapping[str, int] = MappingProxyType({})
) -> Iterator[Sizes]:
    """Yield smaller sizes at which the code should take the same steps; the symbols in `kept` keep their sizes.

    Those in `counts`, which only count steps that repeat, get the numbers there. A whole model has more sizes than any
    of its tensors has axes, so that its smallest proxy is taken in any case.
    """
    free = {symbol: sizes.records[symbol].size for symbol in sizes.independent}
    whole = {sizes.records[symbol].size for symbol in kept}
    proxies: list[tuple[int, Sizes]] = []
    for factor in _FACTORS:
        smaller = _smaller(sorted({*free.values()}), factor, whole)
        chosen = {symbol: counts.get(symbol, smaller[size]) for symbol, size in free.items()}
        try:
            numbers = sizes.at(chosen)
        except AttnshapeError:  # an author's own expression has no value there
            continue
        records = {symbol: with_fields(record, size=numbers[symbol]) for symbol, record in sizes.records.items()}
        proxies.append((math.prod(sorted(chosen.values())[-4:]), replace(sizes, records=records)))
    small = [proxy for most, proxy in proxies if most <= _MOST]
    yield from small or [proxy for _, proxy in proxies[:1] if len(free) > _OF_A_MODEL]


def _smaller(sizes: list[int], factor: int, kept: Collection[int] = ()) -> dict[int, int]:
    """Return for each size, in rising order, a smaller one that keeps its factors and its place.

    >>> _smaller([2, 8, 128, 1000000], 8)
    {2: 2, 8: 8, 128: 16, 1000000: 24}
    """
    chosen: dict[int, int] = {}
    last = 0
    for size in sizes:
        step = math.gcd(size, factor)
        for other, small in chosen.items():
            if size % other == 0 and math.lcm(step, small) <= _LARGEST_STEP:
                step = math.lcm(step, small)
        last = size if size <= _KEPT or size in kept else min(size, (last // step + 1) * step)
        chosen[size] = last
    return chosen
