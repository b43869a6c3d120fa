"""Reads a target's source: which fields of a configuration it reads, and how it unpacks the axes of its arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from attnshape.proposals.conventions import AXES, is_config, plain, size_of
from attnshape.tracing.operations import RESHAPES, TRANSPOSES, UNIT_AXES

_NO_NAME = "_"
_LARGEST_FILE = 200_000
_MOST_TREES = 256


def text_of(file: Path) -> str:
    """Return the text of a file, empty if it is large or can't be read."""
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size < _LARGEST_FILE else ""
    except (OSError, UnicodeDecodeError):
        return ""


def parsed(text: str) -> Iterator[ast.Module]:
    """Yield the syntax tree of a text, nothing if it is no Python."""
    try:
        yield ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return


def fields_read(kind: type, parameter: str, module: ModuleType) -> list[str]:
    """Return the attributes that a class reads from a parameter of its constructor, in order.

    The parameter may be kept (`self.config = config`), and passed on to base classes, functions and other classes.
    """
    return _names_read(kind, parameter, module, _attributes)


def attributes_read(tree: ast.AST, name: str) -> list[str]:
    """Return the attributes that code reads from an object of this name, in order."""
    return list(dict.fromkeys(_attributes(tree, {name})))


def keys_read(kind: type, parameter: str, module: ModuleType) -> list[str]:
    """Return the keys that a class reads from a parameter of its constructor, as `config["dim"]`, in order.

    A key that the code looks for first, `if "dim" in config`, isn't needed.
    """
    return _names_read(kind, parameter, module, _keys)


def parts_read(kind: type, parameter: str, module: ModuleType, field: str) -> tuple[list[str], list[str]]:
    """Return the attributes, and the keys, that a class reads from a field of its configuration.

    `config.encoder.dim` reads an attribute of the field `encoder`, and `config.encoder["dim"]` a key.
    """

    def attributes(tree: ast.AST, names: set[str]) -> Iterator[str]:
        return _attributes(tree, {f"{name}.{field}" for name in names})

    def keys(tree: ast.AST, names: set[str]) -> Iterator[str]:
        return _keys(tree, {f"{name}.{field}" for name in names})

    return _names_read(kind, parameter, module, attributes), _names_read(kind, parameter, module, keys)


def _names_read(
    kind: type, parameter: str, module: ModuleType, read: Callable[[ast.AST, set[str]], Iterator[str]]
) -> list[str]:
    found: dict[str, None] = {}
    for tree, names in trees_with(kind, parameter, module):
        found |= dict.fromkeys(read(tree, set(names)))
    return list(found)


@functools.lru_cache(maxsize=_MOST_TREES)
def trees_with(kind: type, parameter: str, module: ModuleType) -> tuple[tuple[ast.AST, frozenset[str]], ...]:
    """Return the code that gets a parameter of a class's constructor, with the names that it has there.

    That is the class's own, and that of base classes, functions and other classes to which it is passed on.
    """
    found: list[tuple[ast.AST, frozenset[str]]] = []
    seen: set[Any] = set()
    waiting: list[tuple[Any, str]] = [(kind, parameter)]
    while waiting:
        one, name = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        tree = syntax_tree(one)
        if tree is None:
            continue
        names = {name, "config"} if is_config(name) else {name}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_named(node.value, names):
                names |= {bound for target in node.targets if (bound := _dotted(target).removeprefix("self."))}
        found.append((tree, frozenset(names)))
        waiting += [(base, name) for base in getattr(one, "__bases__", ())[:3] if base is not object]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not isinstance(call.func, ast.Name):
                continue
            passed = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(_is_named(value, names) for value in passed):
                callee = getattr(module, call.func.id, None)
                if inspect.isclass(callee) or inspect.isfunction(callee):
                    waiting.append((callee, _receiver(callee, call, names) or name))
    return tuple(found)


def _receiver(callee: Any, call: ast.Call, names: set[str]) -> str | None:
    """Return the parameter by which a function or class that is called takes what has one of these names."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    try:
        signature = inspect.signature(callee)
        bound = signature.bind_partial(*call.args, **keywords).arguments
    except (TypeError, ValueError):
        return None
    taken = (name for name, value in bound.items() if isinstance(value, ast.expr) and _is_named(value, names))
    return next(taken, next(filter(is_config, signature.parameters), None))


def _attributes(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the attributes that are read from objects of these names, in the order of the source."""
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Call)]
    for node in sorted(expressions, key=lambda node: (node.lineno, node.col_offset)):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if _is_named(owner, names):
                if not name.startswith("_"):
                    yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
                if _is_named(owner, names) and not name.startswith("_"):
                    yield name


def _keys(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the keys that are read from mappings of these names, without those that the code looks for first."""
    nodes = list(ast.walk(tree))
    optional = {
        node.left.value
        for node in nodes
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and _is_named(node.comparators[0], names)
    }
    expressions = [node for node in nodes if isinstance(node, ast.Subscript | ast.Call)]
    for node in sorted(expressions, key=lambda node: (node.lineno, node.col_offset)):
        match node:
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                if _is_named(owner, names) and name not in optional:
                    yield name
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(name)), *default]):
                if _is_named(owner, names) and (not default or size_of(name) is not None):
                    yield name


def _is_named(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and _dotted(node).removeprefix("self.") in names


def _dotted(node: ast.expr) -> str:
    """Return a name with what it is an attribute of, `config.encoder`; "" of any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def annotation_text(kind: type, parameter: str) -> str | None:
    """Return the annotation of a parameter of a class's constructor as it is written, None if there is none."""
    tree = syntax_tree(getattr(kind, "__init__", None))
    arguments = (node for node in ast.walk(tree) if isinstance(node, ast.arg)) if tree is not None else ()
    return next((ast.unparse(one.annotation) for one in arguments if one.arg == parameter and one.annotation), None)


def comment_beside(kind: type, parameter: str) -> str:
    """Return the comment beside a parameter of a class's constructor, if it is the last in its line; else ""."""
    constructor: Any = getattr(kind, "__init__", None)
    tree = syntax_tree(constructor)
    lines = {node.arg: node.lineno for node in ast.walk(tree) if isinstance(node, ast.arg)} if tree is not None else {}
    if parameter not in lines or [name for name, line in lines.items() if line == lines[parameter]][-1] != parameter:
        return ""
    text = inspect.getsource(constructor).splitlines()[lines[parameter] - 1]
    return text.partition("#")[2].strip()


def unpacked_axes(function: Callable[..., Any], parameter: str) -> tuple[str, ...] | None:
    """Return the names that a function gives to the axes of an argument; `_` for an axis without a name.

    They come from `B, T, C = x.shape`, from `x.size()`, from `b, n, _, h = *x.shape, self.heads`, or from the pattern
    of einops' `rearrange(x, "b n (h d) -> b h n d")`. None where the function does nothing of the kind, or has
    moved the axes before.
    """
    tree = syntax_tree(function)
    moved = _first_move(tree, parameter, function) if tree is not None else math.inf
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.stmt(lineno=line) | ast.expr(lineno=line) if line > moved:
                continue
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                count = _axes_taken(value, parameter, len(targets))
                if count and not any(isinstance(target, ast.Starred) for target in targets):
                    return tuple(target.id if isinstance(target, ast.Name) else _NO_NAME for target in targets[:count])
            case ast.Call(
                func=ast.Name(id="rearrange" | "repeat" | "reduce"), args=[value, ast.Constant(value=str(text)), *_]
            ):
                if _is_tensor(value, parameter) and (axes := _pattern_axes(text)) is not None:
                    return axes
    return None


def batch_axis(function: Callable[..., Any], parameter: str) -> int | None:
    """Return the axis of an argument that a function takes for the batch: `batch_size = x.size(0)`, `b = x.shape[0]`.

    None if it says nothing, or has moved the axes before.
    """
    tree = syntax_tree(function)
    moved = _first_move(tree, parameter, function) if tree is not None else math.inf
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Assign) or node.lineno >= moved:
            continue
        for target, value in _bindings(node):
            axis = _axis_taken(value, parameter)
            if axis is not None and isinstance(target, ast.Name) and AXES["B"].fullmatch(plain(target.id)):
                return axis
    return None


def indexed_rank(function: Callable[..., Any], parameter: str) -> int | None:
    """Return how many axes an argument has by an index that adds one: two where the code has `x[:, None, :]`.

    None if it says nothing, or has moved the axes before.
    """
    tree = syntax_tree(function)
    moved = _first_move(tree, parameter, function) if tree is not None else math.inf
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Subscript(value=owner, slice=ast.Tuple(elts=parts)) if _is_tensor(owner, parameter):
                new = [part for part in parts if isinstance(part, ast.Constant) and part.value is None]
                kept = [part for part in parts if isinstance(part, ast.Slice)]
                if node.lineno <= moved and new and len(new) + len(kept) == len(parts):
                    return len(kept)
    return None


def _bindings(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Return what an assignment binds to what, one by one: `n, b = x.size(0), x.size(1)`."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            return list(zip(targets, values, strict=True))
    return [(target, node.value) for target in node.targets]


def _axis_taken(value: ast.expr, parameter: str) -> int | None:
    match value:
        case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[ast.Constant(value=int(axis))]):
            return axis if _is_tensor(owner, parameter) and axis >= 0 else None
        case ast.Subscript(value=ast.Attribute(value=owner, attr="shape"), slice=ast.Constant(value=int(axis))):
            return axis if _is_tensor(owner, parameter) and axis >= 0 else None
    return None


def _first_move(tree: ast.AST, parameter: str, function: Callable[..., Any]) -> float:
    """Return the first line that binds a parameter's name to the argument with other axes; infinity if none does."""
    bindings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(_is_tensor(target, parameter) for target in node.targets)
    ]
    helpers = _moving_helpers(inspect.getmodule(function)) if bindings else frozenset()
    return min((node.lineno for node in bindings if _moves_axes(node.value, helpers)), default=math.inf)


@functools.cache
def _moving_helpers(module: ModuleType | None) -> frozenset[str]:
    """Return the names of a module's functions and methods that move axes, as `self._split_heads(q)` does."""
    tree = syntax_tree(module) if module is not None else None
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)) if tree is not None else ()
    return frozenset(node.name for node in functions if node.name != "forward" and _moves_axes(node, frozenset()))


def _moves_axes(node: ast.AST, helpers: frozenset[str]) -> bool:
    """Return whether code moves, splits or merges axes, itself or in a function of one of these names."""
    moving = RESHAPES | TRANSPOSES | UNIT_AXES
    return any(
        (isinstance(inner, ast.Attribute) and (inner.attr in moving or inner.attr in helpers))
        or (isinstance(inner, ast.Name) and (inner.id == "rearrange" or inner.id in helpers))
        for inner in ast.walk(node)
    )


def _axes_taken(value: ast.expr, parameter: str, count: int) -> int:
    """Return how many of the targets of an unpacking are axes of the parameter."""
    match value:
        case ast.Attribute(value=owner, attr="shape") if _is_tensor(owner, parameter):
            return count
        case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[]) if _is_tensor(owner, parameter):
            return count
        case ast.Tuple(elts=[ast.Starred(value=first), *others]):
            return max(_axes_taken(first, parameter, count) - len(others), 0)
    return 0


def _is_tensor(node: ast.expr, parameter: str) -> bool:
    return isinstance(node, ast.Name) and node.id == parameter


def _pattern_axes(text: str) -> tuple[str, ...] | None:
    """Return the axes on the left side of an einops pattern; None if it leaves some open.

    >>> _pattern_axes("b n (h d) -> b h n d")
    ('b', 'n', '_')
    """
    left = text.partition("->")[0]
    if "..." in left:
        return None
    axes: list[str] = []
    depth = 0
    for word in left.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            depth += 1
            axes.append(_NO_NAME)
        elif word == ")":
            depth -= 1
        elif not depth:
            axes.append(word)
    return tuple(axes)


def syntax_tree(value: Any) -> ast.AST | None:
    """Return the syntax tree of a module, class or function, which isn't to be changed; None if it can't be read."""
    try:
        return _tree_of(value)
    except TypeError:  # it has no hash, or no source
        return None


@functools.lru_cache(maxsize=_MOST_TREES)
def _tree_of(value: Any) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, SyntaxError, ValueError):
        return None


def signature_parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a callable, or of a class's constructor; none if they aren't known."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def all_parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of a callable; of a class that passes on `*args` or `**kwargs`, those of its base too."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [p for p in signature_parameters(function) if p.kind not in variadic]
    if inspect.isclass(function) and len(own) < len(signature_parameters(function)):
        names = {p.name for p in own}
        inherited = [p for base in function.__bases__[:1] for p in all_parameters(base) if p.name not in names]
        positional = [p for p in own if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        return [*inherited, *(p.replace(kind=p.KEYWORD_ONLY) for p in own)] if not positional else [*own, *inherited]
    return own
