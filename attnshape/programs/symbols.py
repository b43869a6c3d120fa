"""Describes captured attention as a target: numbers become size symbols, and values Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from attnshape.dims.expressions import parse_tensor
from attnshape.errors import AttnshapeError
from attnshape.model.program import (
    CapturedAttention,
    CapturedTensor,
    Instance,
    Integer,
    Items,
    Plain,
    Table,
    Unknown,
    Value,
)
from attnshape.options.spec import TargetSpec
from attnshape.proposals import conventions

_OF_MODELS = ("H", "Hkv", "Dk", "Dv", "D", "W")
"""The symbols of sizes that constructors get; lengths are capacities there."""


class _UnwritableError(Exception):
    """A value can't be written as Python."""


@dataclass
class _Sizes:
    """The numbers of symbols, as they are found out."""

    numbers: dict[str, int] = field(default_factory=dict)

    def take(self, symbol: str, number: int) -> bool:
        """Give a symbol this number, unless it has another one; return whether it has this one then."""
        return self.numbers.setdefault(symbol, number) == number

    def expression(self, number: int) -> str | None:
        """Return the symbol, or the product of symbols, of a width; None if it is none of them."""
        n = self.numbers
        for symbol in ("D", "Dk", "Dv"):
            if n.get(symbol) == number:
                return symbol
        heads, width = n.get("H"), n.get("D")
        if heads and width and width % heads == 0 and width // heads == number:
            return "D//H"
        for heads_symbol in ("H", "Hkv"):
            for width_symbol in ("Dk", "Dv"):
                if n.get(heads_symbol, 0) * n.get(width_symbol, 0) == number:
                    return f"{heads_symbol}*{width_symbol}"
        if width and number % width == 0 and 1 < number // width <= 4:
            return f"{number // width}*D"
        return None


def describe_target(target: str, captured: CapturedAttention) -> Iterator[TargetSpec]:
    """Yield the descriptions of a target that construct and call it as the program did, the most general first.

    Each has the sizes of the program's first call. Constructor arguments that can't be written are left out, and are
    then worked out as for any target.
    """
    yielded: list[TargetSpec] = []
    for two_lengths in (True, False):
        for literal in (False, True):
            sizes = _Sizes()
            init = _init(captured, sizes, literal)
            try:
                inputs, arguments = _call(captured, sizes, two_lengths)
                used = _used(init, inputs, arguments)
                numbers = {name: number for name, number in sizes.numbers.items() if name in used or init is None}
                spec = TargetSpec(target, init, inputs=inputs, arguments=arguments, sizes=numbers)
                spec.require_known_symbols()
            except (_UnwritableError, AttnshapeError):
                continue
            if spec not in yielded:
                yielded.append(spec)
                yield spec


def first_sizes(captured: CapturedAttention) -> dict[str, int]:
    """Return the sizes of the first call, as far as they are known."""
    sizes = _Sizes()
    _init(captured, sizes, False)
    for name, value in captured.arguments.items():
        if isinstance(value, CapturedTensor):
            _axes(name, value, sizes, captured, two_lengths=True)
    return sizes.numbers


def why_unwritable(captured: CapturedAttention) -> str:
    """Return which argument can't be written as Python; empty if all can."""
    for name, value in captured.arguments.items():
        if (kind := _unknown_in(value)) is not None:
            return f"its argument {name} is a {kind}, which can't be written as Python"
    return ""


def _unknown_in(value: Value) -> str | None:
    match value:
        case Unknown(kind=kind):
            return kind
        case Items(values=values):
            return next((found for one in values if (found := _unknown_in(one)) is not None), None)
        case Table(values=table):
            return next((found for one in table.values() if (found := _unknown_in(one)) is not None), None)
        case Instance(name="", fields=_):
            return "configuration"
    return None


def _used(init: str | None, inputs: Mapping[str, str], arguments: Mapping[str, str]) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", " ".join([init or "", *inputs.values(), *arguments.values()])))


# constructor arguments


def _init(captured: CapturedAttention, sizes: _Sizes, literal: bool) -> str | None:
    """Return the arguments of the constructor; None if they aren't known, or one can't be written."""
    if captured.constructor is None:
        for name, number in captured.attributes.items():
            _collect(name, Integer(number), sizes)
        return None
    for name, value in captured.constructor.items():
        _collect(name, value, sizes)
    parts: list[str] = []
    positions = list(captured.positional)
    try:
        for name, value in captured.constructor.items():
            text = _python(name, value, sizes, literal)
            if name.startswith("*"):
                parts.append(f"*{text}")
            elif positions and positions[0] == name:
                positions.pop(0)
                parts.append(text)
            else:
                positions.clear()
                parts.append(f"{name}={text}")
    except _UnwritableError:
        return None
    return ", ".join(parts) or None


def _collect(name: str, value: Value, sizes: _Sizes) -> None:
    """Give the symbols their numbers, from the names of parameters and fields."""
    match value:
        case Integer(value=number) if number > 0:
            symbol = conventions.size_of(name)
            if symbol in _OF_MODELS:
                sizes.take(symbol, number)
        case Instance(fields=fields):
            for key, one in fields.items():
                _collect(key, one, sizes)
        case Table(values=table):
            for key, one in table.items():
                _collect(key, one, sizes)


def _python(name: str, value: Value, sizes: _Sizes, literal: bool) -> str:
    """Return a value as Python, in which integers are size symbols where their names and numbers say so."""
    match value:
        case Plain(text=text):
            return text
        case Integer(value=number):
            return str(number) if literal else _number(name, number, sizes)
        case Items(kind=kind, values=values):
            inner = ", ".join(_python("", one, sizes, literal=True) for one in values)
            return f"[{inner}]" if kind == "list" else f"({inner},)" if len(values) == 1 else f"({inner})"
        case Table(values=table):
            return "{" + ", ".join(f"{key!r}: {_python(key, one, sizes, literal)}" for key, one in table.items()) + "}"
        case Instance(name=kind, fields=fields):
            writable = {key: one for key, one in fields.items() if kind or not _has_unknown(one)}
            inner = ", ".join(f"{key}={_python(key, one, sizes, literal)}" for key, one in writable.items())
            return f"{kind or 'SimpleNamespace'}({inner})"
        case _:
            raise _UnwritableError


def _has_unknown(value: Value) -> bool:
    return isinstance(value, Unknown) or (isinstance(value, Items) and any(_has_unknown(one) for one in value.values))


def _number(name: str, number: int, sizes: _Sizes) -> str:
    symbol = conventions.size_of(name)
    if symbol in _OF_MODELS and sizes.numbers.get(symbol) == number:
        return symbol
    if symbol in (*_OF_MODELS, "4*D"):
        return sizes.expression(number) or str(number)
    return str(number)


# the call


def _call(captured: CapturedAttention, sizes: _Sizes, two_lengths: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the descriptions of the tensors, and the other arguments as Python."""
    inputs: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for name, value in captured.arguments.items():
        if name.startswith("*"):
            raise _UnwritableError
        if not isinstance(value, CapturedTensor):
            arguments[name] = _argument(value, sizes)
        elif value.same_as:
            arguments[name] = value.same_as
        elif (written := _with_known_numbers(name, value, sizes)) is not None:
            arguments[name] = written
        else:
            inputs[name] = _described(name, value, sizes, captured, two_lengths)
    return inputs, arguments


def _argument(value: Value, sizes: _Sizes) -> str:
    """Return an argument that is no tensor itself; a tensor inside gets numbers of its own."""
    match value:
        case CapturedTensor():
            axes = [_inner_axis(size, sizes) if size > 1 else "1" for size in value.shape]
            if len(axes) > 1:
                axes[-1] = sizes.expression(value.shape[-1]) or axes[-1]
            return f"torch.rand({', '.join(axes)})"
        case Items(kind=kind, values=values):
            inner = ", ".join(_argument(one, sizes) for one in values)
            return f"[{inner}]" if kind == "list" else f"({inner},)" if len(values) == 1 else f"({inner})"
    return _python("", value, sizes, literal=True)


def _inner_axis(size: int, sizes: _Sizes) -> str:
    for symbol in ("B", "L", "Lq", "Lk"):
        if sizes.numbers.get(symbol) == size:
            return symbol
    return sizes.expression(size) or str(size)


def _with_known_numbers(name: str, value: CapturedTensor, sizes: _Sizes) -> str | None:
    """Return a scalar, or a mask or positions whose numbers are known, as Python; None for all other tensors."""
    if not value.shape:
        return "torch.rand(())" if value.largest is None else f"torch.tensor({value.largest})"
    if not value.pattern or len(value.shape) < 2 - (value.pattern == "positions"):
        return None
    if value.pattern == "positions":
        axes = [_inner_axis(size, sizes) for size in value.shape]
        text = f"torch.arange({axes[-1]})"
        return text if len(axes) == 1 else f"{text}.expand({', '.join(axes)})"
    if not (conventions.is_mask(name) or conventions.is_bias(name) or value.dtype == "bool"):
        return None
    axes = [_inner_axis(size, sizes) if size > 1 else "1" for size in value.shape]
    shape = ", ".join(axes)
    cast = "" if value.dtype == "float32" else ".bool()" if value.dtype == "bool" else f".to(torch.{value.dtype})"
    if value.pattern in ("ones", "zeros"):
        return f"torch.{value.pattern}({shape}){cast}"
    rows, columns = axes[-2:]
    offset = 0 if rows == columns else f"{columns}-{rows}"
    cut = f"tril({offset or ''})" if value.pattern == "causal" else f"triu({f'{offset}+1' if offset else 1})"
    if value.dtype == "bool":
        return f"torch.ones({shape}).{cut}.bool()"
    return f"torch.full(({shape}), {value.fill}).{cut}{cast}"


def _described(name: str, value: CapturedTensor, sizes: _Sizes, captured: CapturedAttention, two_lengths: bool) -> str:
    """Return the description of a tensor, as `--input` takes it."""
    axes = _axes(name, value, sizes, captured, two_lengths)
    if value.dtype in ("int64", "int32", "int16", "int8", "uint8"):
        below = (value.largest or 0) + 1
        axes = f"int[{below}] {axes}"
    elif value.dtype == "bool":
        axes = f"bool {axes}"
    spec = parse_tensor(name, axes)
    try:
        shape = tuple(axis.evaluate(sizes.numbers) for axis in spec.axes)
    except KeyError:
        raise _UnwritableError from None
    if shape != value.shape:
        raise _UnwritableError
    return axes


def _axes(name: str, value: CapturedTensor, sizes: _Sizes, captured: CapturedAttention, two_lengths: bool) -> str:
    """Return the axes of a tensor, and give their symbols numbers."""
    is_alone = sum(isinstance(one, CapturedTensor) and not one.same_as for one in captured.arguments.values()) == 1
    length = "L"
    if two_lengths and not is_alone and any(_is_second(key, one) for key, one in captured.arguments.items()):
        length = "Lk" if conventions.is_memory(name) or conventions.is_mask(name) else "Lq"
    symbols = _symbols(name, value, sizes, captured)
    axes: list[str] = []
    for symbol, size in zip(symbols, value.shape, strict=True):
        if symbol == "L" and sizes.numbers.get(length, size) != size:
            symbol = "Lk" if length == "L" else length
        elif symbol == "L":
            symbol = length
        axes.append(_axis(symbol, size, sizes))
    return " ".join(axes)


def _is_second(name: str, value: Value) -> bool:
    return (
        isinstance(value, CapturedTensor)
        and conventions.is_memory(name)
        and len(value.shape) >= 3
        and not value.same_as
    )


def _axis(symbol: str, size: int, sizes: _Sizes) -> str:
    if symbol in ("D", "Dk", "Dv"):
        known = sizes.expression(size)
        if known is not None:
            return known
    if symbol and sizes.take(symbol, size):
        return symbol
    return sizes.expression(size) or str(size)


def _symbols(name: str, value: CapturedTensor, sizes: _Sizes, captured: CapturedAttention) -> tuple[str, ...]:
    """Return what the axes of a tensor probably are; empty for those that may be anything."""
    n, shape = sizes.numbers, value.shape
    if value.axes:
        return value.axes
    if conventions.is_mask(name) and len(shape) == 2:
        return ("B", "L")
    if len(shape) == 3:
        return ("L", "B", "D") if captured.is_sequence_first else ("B", "L", "D")
    if len(shape) == 4:
        if shape[1] in (n.get("H"), n.get("Hkv")):
            return ("B", "H" if shape[1] == n.get("H") else "Hkv", "L", "Dk")
        if shape[2] in (n.get("H"), n.get("Hkv")):
            return ("B", "L", "H" if shape[2] == n.get("H") else "Hkv", "Dk")
        if shape[1] == n.get("D"):
            return ("B", "D", "height", "width")
        if shape[3] == n.get("D"):
            return ("B", "height", "width", "D")
        return ("B", "H", "L", "Dk")
    if len(shape) == 2:
        return ("L", "D") if value.dtype.startswith(("float", "bfloat")) else ("B", "L")
    return ("B", *("" for _ in shape[1:])) if shape else ()
