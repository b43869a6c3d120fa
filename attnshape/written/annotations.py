"""The jaxtyping annotations of a function: of its parameters, its result, and its variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnshape.written.source import FunctionNode, parameter_nodes


@dataclass(frozen=True)
class Annotation:
    """A jaxtyping annotation: of a parameter, of the result, or of a variable at its statement."""

    line: int
    column: int
    kind: str
    dims: str
    parameter: str | None = None
    statement: ast.AnnAssign | None = None
    item: int | None = None
    """Which item of a tuple it is the annotation of."""


_PLAIN = ("Float", "Int", "Bool", "Shaped", "Complex", "Num", "Inexact", "Integer", "UInt", "Real", "Key")
_SIZED = re.compile(r"(?:Float|Int|UInt|BFloat|Complex)\d+(?:e\d+m\d+\w*)?")


def annotations_in(node: FunctionNode) -> Iterator[Annotation]:
    """Yield the jaxtyping annotations of a function's parameters, result and variables."""
    for parameter in parameter_nodes(node):
        for one in _annotations(parameter.annotation):
            yield Annotation(*one, parameter=parameter.arg)
    yield from _results(node.returns)
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, (FunctionNode, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name) and inner.value is not None:
            for said in _annotations(inner.annotation):
                yield Annotation(*said, statement=inner)
        waiting.extend(ast.iter_child_nodes(inner))


def _results(returns: ast.expr | None) -> Iterator[Annotation]:
    if returns is None:
        return
    node = _unquoted(returns)
    if (
        isinstance(node, ast.Subscript)
        and _name(node.value).lower().endswith("tuple")
        and isinstance(node.slice, ast.Tuple)
    ):
        for place, item in enumerate(node.slice.elts):
            yield from (Annotation(*one, item=place) for one in _annotations(item))
        return
    yield from (Annotation(*one) for one in _annotations(node))


def _annotations(annotation: ast.expr | None) -> Iterator[tuple[int, int, str, str]]:
    """Yield what jaxtyping says in an annotation: line, column, kind, dims; more than one only in unions."""
    if annotation is None:
        return
    node = _unquoted(annotation)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
        kind, dims = _name(node.value), node.slice.elts[1]
        if (
            (kind in _PLAIN or _SIZED.fullmatch(kind))
            and isinstance(dims, ast.Constant)
            and isinstance(dims.value, str)
        ):
            yield annotation.lineno, annotation.col_offset, kind, dims.value
            return
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _annotations(node.left)
        yield from _annotations(node.right)
    elif isinstance(node, ast.Subscript) and _name(node.value) in ("Optional", "Annotated"):
        yield from _annotations(node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice)


def _unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            inner = ast.parse(annotation.value.strip(), mode="eval").body
        except SyntaxError:
            return annotation
        for node in ast.walk(inner):
            ast.copy_location(node, annotation)
        return inner
    return annotation


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
