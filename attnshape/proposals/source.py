"""Reads a target's source: which fields of a configuration it reads, and how it unpacks the axes of its arguments."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from attnshape.proposals.conventions import is_config
from attnshape.tracing.operations import RESHAPES, TRANSPOSES, UNIT_AXES

_NO_NAME = "_"


def fields_read(kind: type, parameter: str, module: ModuleType) -> list[str]:
    """Return the attributes that a class reads from a parameter of its constructor, in order.

    The parameter may be kept (`self.config = config`), and passed on to base classes, functions and other classes.
    """
    found: dict[str, None] = {}
    seen: set[Any] = set()
    waiting: list[tuple[Any, str]] = [(kind, parameter)]
    while waiting:
        one, name = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        tree = _tree(one)
        if tree is None:
            continue
        names = {name, "config"} if is_config(name) else {name}
        found |= dict.fromkeys(_attributes(tree, names))
        waiting += [(base, name) for base in getattr(one, "__bases__", ())[:3] if base is not object]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            passed = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(_is_named(value, names) for value in passed) and isinstance(call.func, ast.Name):
                callee = getattr(module, call.func.id, None)
                if inspect.isclass(callee) or inspect.isfunction(callee):
                    waiting.append((callee, _receiver(callee) or name))
    return list(found)


def _receiver(callee: Any) -> str | None:
    """Return the parameter by which a function or class takes a configuration."""
    try:
        return next((name for name in inspect.signature(callee).parameters if is_config(name)), None)
    except (TypeError, ValueError):
        return None


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


def _is_named(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in names
    return False


def unpacked_axes(function: Callable[..., Any], parameter: str) -> tuple[str, ...] | None:
    """Return the names that a function gives to the axes of an argument; `_` for an axis without a name.

    They come from `B, T, C = x.shape`, from `x.size()`, from `b, n, _, h = *x.shape, self.heads`, or from the pattern
    of einops' `rearrange(x, "b n (h d) -> b h n d")`. None where the function does nothing of the kind, or has
    moved the axes before.
    """
    tree = _tree(function)
    moved = _first_move(tree, parameter) if tree is not None else math.inf
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


def _first_move(tree: ast.AST, parameter: str) -> float:
    """Return the first line that binds a parameter's name to the argument with other axes; infinity if none does."""
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(_is_tensor(target, parameter) for target in node.targets)
        and any(
            (isinstance(inner, ast.Attribute) and inner.attr in RESHAPES | TRANSPOSES | UNIT_AXES)
            or (isinstance(inner, ast.Name) and inner.id == "rearrange")
            for inner in ast.walk(node.value)
        )
    ]
    return min(lines, default=math.inf)


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


def _tree(value: Any) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
