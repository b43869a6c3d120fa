"""What a statement is: its lines, and the names that it binds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def lines_of(statement: ast.stmt) -> range:
    """Return the lines of a statement; of one with a body, those of its head."""
    last = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def targets_of(statement: ast.stmt) -> list[ast.Name]:
    """Return the plain names that a statement binds, in order."""
    match statement:
        case ast.Assign(targets=targets):
            nodes: Sequence[ast.expr] = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            nodes = [target]
        case _:
            return []
    return [name for node in nodes for name in _names(node)]


def fills(statement: ast.stmt) -> bool:
    """Say whether a statement writes into a part of something, `x[:, 0] = y`: of what shape the part is isn't known."""
    match statement:
        case ast.Assign(targets=targets):
            return any(isinstance(node, ast.Subscript) for target in targets for node in ast.walk(target))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return isinstance(target, ast.Subscript)
    return False


def _names(node: ast.expr) -> Iterator[ast.Name]:
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, (ast.Tuple, ast.List)):
        for item in node.elts:
            yield from _names(item)
    elif isinstance(node, ast.Starred):
        yield from _names(node.value)
