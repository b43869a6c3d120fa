"""Recognises a case whose parameters are sizes under names of the user's own, and proposes these sizes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.proposals import conventions
from attnshape.proposals.source import syntax_tree
from attnshape.targets.evaluation import required_parameters


def sizes_of_case(function: Any) -> dict[str, int]:
    """Return a size for each required parameter of a function that may be a case; none if it can't be one.

    A case returns a callable with its arguments, and the names of its parameters tell which sizes they are.

    >>> def of_heads(bsz, nhead, seq_len, hs):
    ...     return torch.matmul, (torch.randn(bsz, nhead, seq_len, hs), torch.eye(hs))
    >>> sizes_of_case(of_heads)
    {'bsz': 2, 'nhead': 8, 'seq_len': 10, 'hs': 64}
    """
    names = required_parameters(function) if inspect.isfunction(function) else []
    if not names or not _returns_call(function):
        return {}
    symbols = {name: _symbol(name) for name in names}
    sizes = {name: SYMBOLS_BY_NAME[symbol].default for name, symbol in symbols.items() if symbol in SYMBOLS_BY_NAME}
    known = {name: size for name, size in sizes.items() if size is not None}
    return known if len(known) == len(names) else {}


def _symbol(name: str) -> str:
    if conventions.plain(name) == "hs":
        return "Dk"  # the size of a head; as the name of an axis it may be their number
    return conventions.size_of(name) or conventions.symbol_of_axis(name) or ""


def _returns_call(function: Callable[..., Any]) -> bool:
    """Return whether a function returns pairs, or more, with a tuple, a list or a dict in the second place."""
    tree = syntax_tree(function)
    returned = [one.value for one in _returns(tree.body[0])] if isinstance(tree, ast.Module) and tree.body else []
    return bool(returned) and all(
        isinstance(value, ast.Tuple)
        and len(value.elts) > 1
        and isinstance(value.elts[1], ast.Tuple | ast.List | ast.Dict)
        for value in returned
    )


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """Yield the return statements of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _returns(child)
