"""What the syntax tree says of names: what an expression is assigned to, and which variables it reads."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def assigned(node: Any) -> tuple[tuple[str | None, ...], bool, ast.expr | None]:
    """Return the names that the node as a whole is bound to, whether it is unpacked, and the annotation."""
    parent = getattr(node, "parent", None)
    if isinstance(node, ast.AugAssign):
        return (_name(node.target),), False, None
    if isinstance(node, ast.Assign):  # a tensor is taken apart: `q, k, v = qkv`
        parent = node
    match parent:
        case ast.IfExp(body=body, orelse=orelse) if node is body or node is orelse:
            return assigned(parent)
        case ast.NamedExpr(target=target):
            return (_name(target),), False, None
        case ast.AnnAssign(target=target, annotation=annotation):
            return (_name(target),), False, annotation
        case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names), *_]):
            if any(isinstance(name, ast.Starred) for name in names):
                return (), False, None
            return tuple(_name(name) for name in names), True, None
        case ast.Assign(targets=[target, *_]):
            return (_name(target),), False, None
        case ast.Tuple(elts=values):
            outer, unpacked, _ = assigned(parent)
            if unpacked and len(outer) == len(values):
                return (outer[next(place for place, value in enumerate(values) if value is node)],), False, None
    return (), False, None


def in_turn(node: Any) -> tuple[str | None, ...]:
    """Return the names that `q, k, v = (f(t) for t in …)` binds to the element `f(t)`, turn by turn."""
    comprehension = getattr(node, "parent", None)
    if not isinstance(comprehension, (ast.GeneratorExp, ast.ListComp)) or comprehension.elt is not node:
        return ()
    if len(comprehension.generators) != 1 or comprehension.generators[0].ifs:
        return ()
    names, unpacked, _ = assigned(comprehension)
    return names if unpacked else ()


def passing(node: Any) -> Iterator[str]:
    """Yield the variables of the loops and comprehensions around a node."""
    while (node := getattr(node, "parent", None)) is not None and not isinstance(node, ast.FunctionDef):
        targets = [part.target for part in getattr(node, "generators", ())]
        targets += [node.target] if isinstance(node, ast.For) else []
        for target in targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def dims_string(annotation: ast.expr) -> str | None:
    """Return the dims string of `Float[Tensor, "B L D"]`, alone or in a union; None where it is something else."""
    match annotation:
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Constant(value=str(dims))])):
            return " ".join(dims.split())
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return dims_string(left) or dims_string(right)
    return None


def kind_name(annotation: ast.expr) -> str | None:
    """Return `Float` of the annotation that `dims_string` reads; None where that isn't written by a plain name."""
    match annotation:
        case ast.Subscript(
            value=ast.Name(id=name) | ast.Attribute(attr=name), slice=ast.Tuple(elts=[_, ast.Constant()])
        ):
            return name
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return kind_name(left) or kind_name(right)
    return None


def calls_itself(node: ast.AST, operation: str) -> bool:
    """Say whether the node is the operation itself, and not the call of something that uses it, as `sum(rows)` does."""
    if not isinstance(node, ast.Call):
        return True
    function = node.func
    written = function.id if isinstance(function, ast.Name) else getattr(function, "attr", None)
    return written == operation.rpartition(".")[2]


def plain_variables(
    node: ast.AST, method: bool, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> list[tuple[str, Tensor]]:
    """Return each plain variable among a call's operands with the tensor that it stood for.

    `method` says that the first run-time argument is the receiver of a method call.
    """
    if isinstance(node, ast.BinOp):
        written = _named(enumerate(_operands(node.left, node.right, arguments)))
    else:
        written = _written(node, method)
    found = []
    for place, name in written:
        if isinstance(place, int):
            value = arguments[place] if place < len(arguments) else None
        else:
            value = keywords.get(place)
        if isinstance(name, str):
            if isinstance(value, Tensor):
                found.append((name, value))
        elif isinstance(value, (tuple, list)):
            inner = zip(name, value, strict=False)
            found += [(each, item) for each, item in inner if each is not None and isinstance(item, Tensor)]
    return found


_Place = int | str
"""Where an argument stands in a call: its position, or its keyword."""
_Written = tuple[tuple[_Place, str | tuple[str | None, ...]], ...]
"""The plain variables among a call's arguments, or the tuple of them that an argument is."""


@functools.cache
def _written(node: ast.AST, method: bool) -> _Written:
    values: Sequence[ast.expr] = ()
    words: Sequence[ast.keyword] = ()
    match node:
        case ast.Call(func=function, args=given, keywords=words):
            receiver = [function.value] if method and isinstance(function, ast.Attribute) else []
            values = [*receiver, *itertools.takewhile(lambda value: not isinstance(value, ast.Starred), given)]
        case ast.AugAssign(target=target, value=value):
            values = [target, value]
        case ast.Subscript(value=value, slice=key, ctx=ast.Store()):
            statement = getattr(node, "parent", None)
            values = [value, key, *([statement.value] if isinstance(statement, ast.Assign) else [])]
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.UnaryOp(operand=value):
            values = [value]
    return _named([*enumerate(values), *((word.arg, word.value) for word in words if word.arg)])


def _named(written: Iterable[tuple[_Place, ast.expr]]) -> _Written:
    found: list[tuple[_Place, str | tuple[str | None, ...]]] = []
    for place, expression in written:
        if isinstance(expression, ast.Name):
            found.append((place, expression.id))
        elif isinstance(expression, (ast.Tuple, ast.List)):
            names = tuple(each.id if isinstance(each, ast.Name) else None for each in expression.elts)
            found.append((place, names))
    return tuple(found)


def _operands(left: ast.expr, right: ast.expr, arguments: tuple[Any, ...]) -> list[ast.expr]:
    """Return a binary operation's operands in the order of its run-time arguments; `2 * x` arrives as `mul(x, 2)`."""
    if len(arguments) == 2 and not isinstance(arguments[1], Tensor):
        if isinstance(right, ast.Constant):
            return [left]
        return [right] if isinstance(left, ast.Constant) else []
    return [left, right]


def shown(node: Any) -> Any:
    """Return what is shown of a node: the whole statement where it is the element that is written to."""
    parent = getattr(node, "parent", None)
    if isinstance(node, ast.Assign):
        return node.value
    written = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return parent if written and isinstance(parent, (ast.Assign, ast.AugAssign)) else node


def _name(target: ast.expr) -> str | None:
    """Return a variable's or an attribute's name, `q` or `self.cache`; None for anything else."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            owner = _name(value)
            return f"{owner}.{attribute}" if owner else None
    return None


def element_update(node: Any) -> tuple[int, int] | None:
    """Return the lines of the `x[a] += y` that the node belongs to, where it does."""
    update = node if isinstance(node, ast.AugAssign) else getattr(node, "parent", None)
    if (
        isinstance(update, ast.AugAssign)
        and isinstance(update.target, ast.Subscript)
        and node in (update, update.target)
    ):
        return update.lineno, update.end_lineno or update.lineno
    return None
