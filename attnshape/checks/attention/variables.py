"""Which variables a function binds, reads and returns, and where, as far as its source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from attnshape.tracing.syntax_nodes import enclosing

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Loop = ast.For | ast.While
CONTAINERS = (ast.List, ast.Tuple, ast.Dict, ast.Starred)
"""What puts values into a list, a tuple or a dictionary."""


def scope(node: ast.AST) -> Any:
    """Return the function around a node, or the module if none is."""
    return enclosing(node, Function | ast.Module)


def bound_by(node: ast.AST | None) -> set[str]:
    """Return the variables that a statement or a function binds."""
    inside = ast.walk(node) if node is not None else ()
    return {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def variables_of(function: Any) -> set[str]:
    """Return the parameters and variables of a function; none if there is no function."""
    if function is None:
        return set()
    every = function.args
    return {one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs)} | bound_by(function)


def stores(node: ast.AST, name: str) -> Iterator[Any]:
    """Yield the nodes in a function or a loop that bind a variable."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store):
            yield one


def rebindings(node: ast.AST, name: str) -> Iterator[Any]:
    """Yield the nodes that bind a variable otherwise than by an operation in place."""
    yield from (one for one in stores(node, name) if not isinstance(one.parent, ast.AugAssign))


def returned(function: ast.AST, name: str) -> Iterator[Any]:
    """Yield the nodes by which a function returns a variable as it is, by itself or in containers."""
    for statement in ast.walk(function):
        for part in ast.walk(statement) if isinstance(statement, ast.Return) else ():
            whole: Any = part
            while isinstance(whole.parent, CONTAINERS):
                whole = whole.parent
            if isinstance(part, ast.Name) and part.id == name and whole.parent is statement:
                yield part
