"""Reads how code uses a class or function: `__main__` blocks, tests, code blocks of the README, docstrings.

`x = torch.randn(50, 49, 512); Attention(d_model=512)(x)` shows which axis of `x` has which size. Nothing of it runs:
numbers are computed from the syntax tree, and tensors have shapes alone.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import operator
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from attnshape.proposals import conventions
from attnshape.proposals.axis_orders import with_two_lengths
from attnshape.proposals.calls import last_name, value_text
from attnshape.proposals.inputs import Inputs
from attnshape.proposals.source import parsed, signature_parameters, syntax_tree, text_of, unpacked_axes

LEVELS = range(5)
"""How literally an example is taken.

0: Each number becomes a symbol that can.
1: A map is square, and its axes that have the size of a constant in the constructor have that size.
2: Of the constructor's numbers, only widths and numbers of heads become symbols.
3: The axes that these don't give have the sizes of the example, too.
4: No number becomes a symbol, except that of the batch.
"""
_MOST_EXAMPLES = 3
_MOST_FILES = 40
_MAKES_FLOATS = re.compile(r"randn|rand|zeros|ones|empty|full|normal|Tensor|FloatTensor|HalfTensor")
_MAKES_INTEGERS = re.compile(r"randint|LongTensor|IntTensor")
_KEEPS_SHAPE = re.compile(
    r"cuda|cpu|to|float|half|double|bfloat16|contiguous|detach|clone|requires_grad_|type|eval|train"
)
_CHANGES_SHAPE = re.compile(
    r"view|reshape|permute|transpose|unsqueeze|squeeze|repeat|expand|flatten|unflatten|long|int|bool|t"
)
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_RUNS = re.compile(r"(test|main|example|demo|run|check|sanity|self_test|usage|forward_test)\w*", re.IGNORECASE)
_LARGEST = 1_000_000
_WIDTHS = ("D", "H", "Hkv", "Dk", "Dv", "V")
_AXES_OF_TOKENS = ("B L D", "B D L", "L B D")
_AXES_OF_MAPS = ("B D height width", "B height width D", "B H L Dk", "B L H Dk")
_AXES_OF_VIDEOS = ("B D frames height width", "B frames D height width", "B frames height width D")


@dataclass(frozen=True)
class _Unknown:
    """The value of an expression that isn't computed."""

    node: ast.expr


@dataclass(frozen=True)
class _Made:
    """An object of the class, with the arguments of its constructor by parameter."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class _Use:
    """A call, with the arguments of the constructor, if there is one."""

    made: Mapping[str, Any] | None
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A way to construct and call a target."""

    init: str | None
    inputs: Inputs


class Examples:
    """How code uses a target: in its module, in its docstring, in the files around it."""

    def __init__(self, root: Any, call: Callable[..., Any], module: ModuleType) -> None:
        """`root` is the class or function, `call` the function that is called, or the method."""
        self._of = root, call, module
        self._uses: list[_Use] = []
        for tree in _trees(root, module):
            reader = _Reader(root, call)
            reader.module(tree)
            self._uses += reader.uses
            if len(self._uses) >= _MOST_EXAMPLES:
                break

    def at(self, levels: Iterable[int]) -> list[Example]:
        """Return the examples, each as literally as `LEVELS` say."""
        uses = itertools.product(levels, self._uses[:_MOST_EXAMPLES])
        found: list[Example] = []
        for level, use in uses:
            example = _Writer(*self._of, level).written(use)
            if example is not None and example not in found:
                found.append(example)
        return found


def _trees(root: Any, module: ModuleType) -> Iterator[ast.Module]:
    """Yield code that may use a target, the nearest first."""
    own = syntax_tree(module)
    if isinstance(own, ast.Module):
        yield own
    yield from parsed(_code_in_prose(inspect.getdoc(root) or "", prompts=True))
    place = getattr(module, "__file__", None)  # a notebook has none
    if not isinstance(place, str):
        return
    file = Path(place)
    for other in _files_around(file):
        text = text_of(other)
        if root.__name__ in text:
            trees = parsed(text if other.suffix == ".py" else _code_in_prose(text))
            yield from (tree for tree in trees if _imports(tree, root.__name__, file))


def _files_around(file: Path) -> Iterator[Path]:
    """Yield the project's README, then the tests and examples that are beside a file or above it."""
    folder = file.parent
    above = [folder, *folder.parents][:4]
    marks = (".git", "pyproject.toml", "setup.py", "README.md")
    top = next((one for one in above if any((one / mark).exists() for mark in marks)), folder)
    found: dict[Path, None] = dict.fromkeys(sorted(top.glob("README*.md")))
    inner = [one for one in above if one == top or top in one.parents]
    for one in inner:
        found |= dict.fromkeys(sorted(one.glob("*test*.py")))
        for name in ("tests", "test", "examples", "example"):
            found |= dict.fromkeys(sorted((one / name).glob("*.py")))
        found |= dict.fromkeys(sorted(one.glob("*.py")))
    yield from [one for one in found if one != file][:_MOST_FILES]


def _imports(tree: ast.Module, name: str, file: Path) -> bool:
    """Return whether code imports a name of a file, or its module: another of the same name is something else."""
    parts = {file.stem, *file.parts[-4:-1]}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if names & {name, file.stem, "*"} and (node.level or parts & set((node.module or "").split("."))):
                return True
        elif isinstance(node, ast.Import) and any(parts & set(alias.name.split(".")) for alias in node.names):
            return True
    return False


def _code_in_prose(text: str, *, prompts: bool = False) -> str:
    r"""Return the code blocks of Markdown, those that parse; or the lines behind a docstring's prompts.

    >>> _code_in_prose("Try\n```python\nx = 1\n```\nand\n```sh\npip install it\n```")
    'x = 1\n'
    >>> _code_in_prose("```sh\npip install it\n```\nThen\n```python\nx = 1\n```")
    'x = 1\n'
    >>> _code_in_prose("Examples::\n\n    >>> x = [\n    ...     1]\n    >>> f(x)\n    2", prompts=True)
    'x = [\n    1]\nf(x)'
    """
    if prompts:
        return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) ?(.*)$", text, re.MULTILINE))
    fenced = re.findall(r"```[ ]*(\w*)[^\n]*\n(.*?)```", text, re.DOTALL)
    blocks = [textwrap.dedent(block) for language, block in fenced if language.lower() in ("", "python", "py")]
    return "\n".join(block for block in blocks if any(parsed(block)))


class _Reader:
    """Follows statements in order, and keeps the calls of one class or function."""

    def __init__(self, root: Any, call: Callable[..., Any]) -> None:
        self.uses: list[_Use] = []
        self._root = root
        self._is_class = inspect.isclass(root)
        self._call = list(inspect.signature(call).parameters.values())[1 if self._is_class else 0 :]
        self._names: dict[str, Any] = {}

    def module(self, tree: ast.Module) -> None:
        """Read what a module runs, then each of its functions that is there to be run by itself."""
        self._block(tree.body)
        outer = dict(self._names)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _RUNS.fullmatch(node.name):
                self._names = dict(outer)
                self._block(node.body)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for one in statements:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
                value = self._value(one.value)
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    self._bind(target, value)
                continue
            for part in ast.iter_child_nodes(one):
                if isinstance(part, ast.expr):
                    self._value(part)
                elif isinstance(part, ast.withitem):
                    self._value(part.context_expr)
            for inner in ("body", "orelse", "finalbody"):
                self._block([part for part in getattr(one, inner, []) if isinstance(part, ast.stmt)])

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = value
        elif isinstance(target, ast.Tuple):
            values = value if isinstance(value, tuple) and len(value) == len(target.elts) else None
            for place, one in enumerate(target.elts):
                self._bind(one, values[place] if values is not None else _Unknown(one))

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression; the calls in it are kept."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._names.get(name, _Unknown(node))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self._value(part) for part in parts)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand)
                return -value if isinstance(value, int | float) else _Unknown(node)
            case ast.BinOp(left=left, op=op, right=right):
                pair = self._value(left), self._value(right)
                if type(op) in _ARITHMETIC and all(isinstance(one, int | float) and one for one in pair):
                    return _ARITHMETIC[type(op)](*pair)
            case ast.Call():
                return self._called(node)
            case _:
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self._value(part)
        return _Unknown(node)

    def _called(self, node: ast.Call) -> Any:
        args = [self._value(one) for one in node.args]
        keywords = {one.arg: self._value(one.value) for one in node.keywords}
        name = last_name(node.func)
        is_complete = None not in keywords and not any(isinstance(one, ast.Starred) for one in node.args)
        owner = self._value(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        if name == self._root.__name__ and is_complete:
            if self._is_class:
                made = _bound(signature_parameters(self._root), args, keywords)
                return _Unknown(node) if made is None else _Made(made)
            self._keep(None, args, keywords)
        elif isinstance(owner, _Made):
            if isinstance(node.func, ast.Attribute) and _KEEPS_SHAPE.fullmatch(name):
                return owner
            if (not isinstance(node.func, ast.Attribute) or name == "forward") and is_complete:
                self._keep(owner.arguments, args, keywords)
        elif isinstance(owner, Tensor):
            return _method(owner, name, args, keywords, node)
        elif isinstance(node.func, ast.Attribute) or name in ("randn", "rand", "zeros", "ones"):
            return _created(name, args, keywords, node)
        elif name in ("Variable", "Parameter") and args:
            return args[0]
        return _Unknown(node)

    def _keep(self, made: Mapping[str, Any] | None, args: Sequence[Any], keywords: Mapping[Any, Any]) -> None:
        arguments = _bound(self._call, args, keywords)
        if arguments is not None and any(isinstance(one, Tensor) for one in arguments.values()):
            self.uses.append(_Use(made, arguments))


def _bound(
    parameters: Sequence[inspect.Parameter], args: Sequence[Any], keywords: Mapping[Any, Any]
) -> Mapping[str, Any] | None:
    """Return arguments by parameter; None if they don't fit, or go to `*args`."""
    try:
        bound = inspect.Signature(parameters).bind(*args, **keywords)
    except (TypeError, ValueError):
        return None
    kinds = {one.name: one.kind for one in parameters}
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL and value:
            return None
        found |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


def _created(name: str, args: Sequence[Any], keywords: Mapping[Any, Any], node: ast.expr) -> Any:
    """Return the tensor that a function creates, as far as its shape is known."""
    is_integer = _MAKES_INTEGERS.fullmatch(name) is not None
    if not is_integer and not _MAKES_FLOATS.fullmatch(name):
        return _Unknown(node)
    shapes = [one for one in (keywords.get("size"), *args) if isinstance(one, tuple)]
    numbers = tuple(one for one in args if type(one) is int)
    shape = shapes[0] if shapes else numbers if len(numbers) == len(args) and name != "randint" else ()
    if not shape or not all(type(one) is int and 0 < one < _LARGEST for one in shape):
        return _Unknown(node)
    stated = keywords.get("dtype")
    dtype = getattr(torch, last_name(stated.node), None) if isinstance(stated, _Unknown) else None
    default = torch.int64 if is_integer else torch.float32
    return torch.empty(shape, dtype=dtype if isinstance(dtype, torch.dtype) else default, device="meta")


def _method(owner: Tensor, name: str, args: Sequence[Any], keywords: Mapping[Any, Any], node: ast.expr) -> Any:
    """Return what a method of a tensor gives, of those that keep or change its shape."""
    if _KEEPS_SHAPE.fullmatch(name):
        return owner
    if _CHANGES_SHAPE.fullmatch(name):
        try:
            return getattr(owner, name)(*args, **keywords)
        except (RuntimeError, TypeError, IndexError, ValueError):
            pass
    return _Unknown(node)


@dataclass
class _Writer:
    """Writes one example as a description, with symbols in the place of numbers."""

    root: Any
    call: Callable[..., Any]
    module: ModuleType
    level: int
    names: list[str] = field(default_factory=list)
    """The parameters of the constructor."""
    symbols: dict[int, list[str]] = field(default_factory=dict)
    """The symbols of the sizes that a number in the constructor has."""
    constants: set[int] = field(default_factory=set)
    """The numbers that stay as they are."""

    def written(self, use: _Use) -> Example | None:
        """Return the description; None where an argument isn't known, or nothing is to be seen at this level."""
        init = None
        if use.made is not None:
            parameters = signature_parameters(self.root)
            self.names = [p.name for p in parameters]
            by_place = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
            words: dict[str, str] = {}
            for name, value in use.made.items():
                word = self._of_constructor(name, value)
                if word is None:
                    return None
                words[name] = word
            is_leading = list(words) == by_place[: len(words)]  # then their names say no more than their places
            init = ", ".join(word if is_leading else f"{name}={word}" for name, word in words.items()) or None
            defaults = (p for p in parameters if p.name not in use.made)
            self.constants |= {p.default for p in defaults if type(p.default) is int}
        tensors: dict[str, str] = {}
        described: dict[int, str] = {}
        shapes: dict[str, Tensor] = {}
        expressions: dict[str, str] = {}
        optional = {p.name for p in inspect.signature(self.call).parameters.values() if p.default is not p.empty}
        for name, value in use.arguments.items():
            if name in optional and (conventions.may_be_none(name) or conventions.is_bias(name)):
                continue
            if isinstance(value, Tensor):
                shapes[name] = value
                tensors[name] = described.setdefault(id(value), self._axes(name, value))
            else:
                text = self._of_call(name, value, use.arguments)
                if text is None and name in optional:
                    continue
                if text is None:
                    return None
                expressions[name] = text
        return Example(init, Inputs(self._with_lengths(tensors, shapes), expressions)) if tensors else None

    def _of_constructor(self, name: str, value: Any) -> str | None:
        """Return a constructor's argument, None if it isn't known."""
        size = conventions.side_of_map(name, self.names) or conventions.size_of(name)
        stays = self.level == 4 or (self.level >= 2 and size not in _WIDTHS)
        if type(value) is int and value > 0 and size is not None and not stays:
            used = {symbol: number for number, symbols in self.symbols.items() for symbol in symbols}
            if used.get(size, value) == value:
                self.symbols.setdefault(value, []).append(size)
                return size
        if type(value) is int:
            if (known := self._symbol(value, ("D", "H"))) is not None and value > 16 and self.level < 2:
                return known
            self.constants.add(value)
        if isinstance(value, tuple):
            self.constants |= {one for one in value if type(one) is int}
        return _literal(value, self.module)

    def _of_call(self, name: str, value: Any, arguments: Mapping[str, Any]) -> str | None:
        if (side := conventions.side_of_map(name, arguments)) is not None and self.level < 2:
            return side
        if type(value) is int and (known := self._symbol(value, ("D", "H", "L"))) is not None:
            return known
        return _literal(value, self.module)

    def _symbol(self, number: int, among: Sequence[str]) -> str | None:
        return next((one for one in among if one in self.symbols.get(number, ())), None)

    def _axes(self, name: str, tensor: Tensor) -> str:
        """Return the description of a tensor."""
        sizes = tuple(tensor.shape)
        kind = {torch.int64: "int[V] ", torch.int32: "int[V] ", torch.bool: "bool "}.get(tensor.dtype, "")
        unpacked = unpacked_axes(self.call, name)
        named = conventions.axes_named(unpacked) if unpacked is not None else None
        symbols = named if named is not None and len(named) == len(sizes) else self._pattern(sizes, kind).split()
        if len(symbols) != len(sizes):
            return kind + " ".join(map(str, sizes))
        axes = [self._axis(symbol, size) for symbol, size in zip(symbols, sizes, strict=True)]
        if self.level == 1 and sizes[-2:] == (sizes[-1],) * 2:
            axes = ["height" if axis == "width" else axis for axis in axes]
        return kind + " ".join(axes)

    def _axis(self, symbol: str, size: int) -> str:
        if symbol == "B":
            return symbol
        known = self.symbols.get(size, [])
        if symbol in known:
            return symbol
        if symbol == "D" and known and self.level < 2:
            return known[0]
        if symbol == "L" and size == math.prod(self._sides()):
            return "height*width"
        if self.level >= 3 or (self.level == 1 and size in self.constants):
            return str(size)
        return symbol

    def _sides(self) -> list[int]:
        """Return the height and the width that the constructor is given, if it is."""
        sides = {symbol: size for size, symbols in self.symbols.items() for symbol in symbols}
        return [sides[side] for side in ("height", "width")] if {"height", "width"} <= sides.keys() else [0]

    def _pattern(self, sizes: tuple[int, ...], kind: str) -> str:
        """Return the symbols of axes with these sizes: the width is where the constructor's is."""
        if len(sizes) == 2:
            return "B L" if kind else "L D"
        patterns = {3: _AXES_OF_TOKENS, 4: _AXES_OF_MAPS, 5: _AXES_OF_VIDEOS}.get(len(sizes), ())
        if len(sizes) == 3 and kind:
            return "B L L"
        is_map = len(sizes) != 4 or inspect.isclass(self.root)
        patterns = patterns if is_map else patterns[2:]
        fits = [self._fit(pattern.split(), sizes) for pattern in patterns]
        return patterns[fits.index(max(fits))] if patterns else ""

    def _fit(self, symbols: Sequence[str], sizes: tuple[int, ...]) -> int:
        """Return how many axes have the size that the constructor gives their symbol."""
        pairs = zip(symbols, sizes, strict=True)
        return sum(symbol in self.symbols.get(size, ()) for symbol, size in pairs)

    def _with_lengths(self, tensors: Mapping[str, str], shapes: Mapping[str, Tensor]) -> Mapping[str, str]:
        """Return descriptions with two lengths where the example has them."""
        lengths = {
            shapes[name].shape[text.split("] ")[-1].split().index("L")]
            for name, text in tensors.items()
            if "L" in text.split("] ")[-1].split()
        }
        return with_two_lengths(tensors) if len(lengths) > 1 else tensors


def _literal(value: Any, module: ModuleType) -> str | None:
    """Return the text of a value that is known, None of any other."""
    if isinstance(value, _Unknown):
        return value_text(value.node, module)
    if isinstance(value, tuple):
        parts = [_literal(one, module) for one in value]
        return None if None in parts else f"({', '.join(filter(None, parts))}{',' * (len(parts) == 1)})"
    return repr(value) if isinstance(value, int | float | str | bool | None) else None
