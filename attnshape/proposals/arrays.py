"""Tells which arguments are arrays of numpy, by what the code makes of them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from attnshape.proposals.calls import last_name
from attnshape.proposals.conventions import has_ids
from attnshape.proposals.source import syntax_tree

_OF_INTEGERS = frozenset(("LongTensor", "IntTensor"))
_OF_ARRAYS = _OF_INTEGERS | {"FloatTensor", "DoubleTensor", "BoolTensor", "from_numpy"}
_IDS = ("torch.randint(V, (B, L)).numpy()", "torch.randint(V, (B,)).numpy()")
_NUMBERS = ("torch.randn(B, L, D).numpy()", "torch.randn(B, D).numpy()")
_MOST_FUNCTIONS = 8


def arrays(call: Callable[..., Any], parameter: str) -> tuple[str, ...]:
    """Return the arrays that a parameter may be; none unless code makes a tensor of it, or numpy gets it.

    That is the function's own, or that of a function or method of its file to which it passes the parameter on.
    """
    module = inspect.getmodule(call)
    file = syntax_tree(module) if module is not None else None
    functions = [node for node in ast.walk(file) if isinstance(node, ast.FunctionDef)] if file is not None else []
    makes: set[str] = set()
    waiting: list[tuple[ast.AST | None, str]] = [(syntax_tree(call), parameter)]
    for tree, name in waiting:
        for node in ast.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.Call):
                continue
            places = [place for place, one in enumerate(node.args) if isinstance(one, ast.Name) and one.id == name]
            if places and (last_name(node.func) in _OF_ARRAYS or _is_of_numpy(node.func, module)):
                makes.add(last_name(node.func))
            for one in functions if len(waiting) < _MOST_FUNCTIONS else ():
                names = [argument.arg for argument in one.args.args if argument.arg != "self"]
                if one.name == last_name(node.func):
                    keywords = [k.arg for k in node.keywords if isinstance(k.value, ast.Name) and k.value.id == name]
                    received = [*names[min(places, default=len(names)) :][:1], *(k for k in keywords if k in names)]
                    waiting += [(one, inner) for inner in received if (one, inner) not in waiting]
    if not makes:
        return ()
    return _IDS if makes & _OF_INTEGERS or has_ids(parameter) else _NUMBERS


def _is_of_numpy(function: ast.expr, module: Any) -> bool:
    """Return whether a function is one of numpy's, as `np.tile` is."""
    while isinstance(function, ast.Attribute):
        function = function.value
    owner = getattr(module, function.id, None) if isinstance(function, ast.Name) else None
    return inspect.ismodule(owner) and owner.__name__ == "numpy"
