"""Tells from the code what a mask is: numbers that are added to the scores, or what hides or keeps keys."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from attnshape.proposals.calls import last_name
from attnshape.proposals.conventions import is_mask
from attnshape.proposals.source import syntax_tree

_SMALL = -1e3
"""Numbers below this one hide a key."""


class MaskUse(Enum):
    """What code does with a mask."""

    ADDED = "added"
    HIDES = "hides"
    """What is true, or one, is hidden."""
    KEEPS = "keeps"
    """What is true, or one, is seen."""


MASKS = {
    MaskUse.ADDED: ("torch.full((L, L), -1e9).triu(1)",),
    MaskUse.HIDES: ("torch.ones(L, L).triu(1).bool()", "torch.ones(L, L).tril().bool()"),
    MaskUse.KEEPS: ("torch.ones(L, L).tril().bool()", "torch.ones(L, L).triu(1).bool()"),
}
"""Masks of the future, the likeliest first."""


def use_of_mask(call: Callable[..., Any], parameter: str) -> MaskUse | None:
    """Return what a function does with a mask; else what functions of its file do with theirs, if they agree.

    These are the ones to which it passes the mask, else all that have a parameter of this name.
    """
    own = syntax_tree(call)
    if own is None:
        return None
    if (use := next(_uses(own, parameter), None)) is not None:
        return use
    module = inspect.getmodule(call)
    tree = syntax_tree(module) if module is not None else None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
    receiving = {
        last_name(node.func)
        for node in ast.walk(own)
        if isinstance(node, ast.Call)
        and parameter in map(_root, [*node.args, *(keyword.value for keyword in node.keywords)])
    }
    called = [(one, name) for one in functions if one.name in receiving for name in _names(one) if is_mask(name)]
    alike = [(one, parameter) for one in functions if parameter in _names(one)]
    for group in (called, alike):
        found = {use for one, name in group for use in _uses(one, name)}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _names(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _uses(tree: ast.AST, name: str) -> Iterator[MaskUse]:
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if name in (_root(left), _root(right)):
                yield MaskUse.ADDED
            case ast.AugAssign(op=ast.Add(), value=value) if _root(value) == name:
                yield MaskUse.ADDED
            case ast.Call(func=ast.Attribute(attr="masked_fill" | "masked_fill_"), args=[condition, *_]):
                yield from _of_condition(condition, name)
            case ast.Call(func=ast.Attribute(attr="where"), args=[condition, first, second]):
                # code that hides where the condition holds takes the very small number there
                if _is_small(first):
                    yield from _of_condition(condition, name)
                elif _is_small(second):
                    yield from (_OPPOSITE[use] for use in _of_condition(condition, name))


_OPPOSITE = {MaskUse.HIDES: MaskUse.KEEPS, MaskUse.KEEPS: MaskUse.HIDES}


def _of_condition(node: ast.expr, name: str) -> Iterator[MaskUse]:
    """Yield what a mask does with keys that are hidden where a condition on it holds."""
    match node:
        case (
            ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=inner)
            | ast.Call(func=ast.Attribute(value=inner, attr="logical_not"), args=[])
        ):
            yield from (_OPPOSITE[use] for use in _of_condition(inner, name))
        case (
            ast.Compare(left=inner, ops=[ast.Eq()], comparators=[ast.Constant(value=value)])
            | ast.Compare(left=inner, ops=[ast.Is()], comparators=[ast.Constant(value=value)])
            | ast.Call(func=ast.Attribute(value=inner, attr="eq"), args=[ast.Constant(value=value)])
        ) if _root(inner) == name:
            yield MaskUse.HIDES if value else MaskUse.KEEPS
        case ast.BinOp(left=ast.Constant(value=1), op=ast.Sub(), right=inner) if _root(inner) == name:
            yield MaskUse.KEEPS
        case _ if _root(node) == name:
            yield MaskUse.HIDES


def _root(node: ast.expr) -> str:
    """Return the name of a variable whose axes or type are changed: `mask[:, None].to(x.dtype)` is a `mask`."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr not in (
                "eq",
                "ne",
                "logical_not",
                "size",
            ):
                node = inner
            case ast.Subscript(value=inner) if last_name(inner) != "shape":
                node = inner
            case _:
                return node.id if isinstance(node, ast.Name) else ""


def _is_small(node: ast.expr) -> bool:
    """Return whether an expression is a very small number: `-1e9`, `float("-inf")`, `-torch.inf`, `finfo(…).min`."""
    text = ast.unparse(node)
    if "inf" in text and ("-" in text or ".min" in text):
        return True
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return False
    return isinstance(value, int | float) and value < _SMALL
