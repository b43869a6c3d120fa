"""Finds the jaxtyping annotations of a function: of its parameters, its result, and its variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnshape.comments.functions import FunctionNode, parameter_nodes

_GROUPS = ("bfloat", "float", "uint", "int", "complex", "bool")
_NAMELESS = re.compile(r"u?int[13567]|complex32|float4_.*|float8_e8m0fnu")
"""Dtypes for which jaxtyping has no name."""
_ALLOWED = {
    "Float": ("float", "bfloat"),
    "Int": ("int",),
    "UInt": ("uint",),
    "Integer": ("int", "uint"),
    "Bool": ("bool",),
    "Complex": ("complex",),
    "Inexact": ("float", "bfloat", "complex"),
    "Real": ("float", "bfloat", "int", "uint"),
    "Num": ("float", "bfloat", "int", "uint", "complex"),
}


def allows_dtype(kind: str, dtype: str) -> bool:
    """Return whether a kind allows a dtype; the size in `Float32` is ignored, since runs may use another one.

    >>> allows_dtype("Float", "bfloat16"), allows_dtype("Float32", "float64"), allows_dtype("Bool", "float32")
    (True, True, False)
    """
    group = _group(dtype)
    plain = kind.rstrip("0123456789")
    allowed = _ALLOWED.get("Float" if plain == "BFloat" else plain)
    return allowed is None or group is None or group in allowed


def kind_of_dtype(dtype: str) -> str:
    """Return jaxtyping's kind for a dtype.

    >>> kind_of_dtype("bfloat16"), kind_of_dtype("int64"), kind_of_dtype("uint8"), kind_of_dtype("qint8")
    ('Float', 'Int', 'UInt', 'Shaped')
    >>> kind_of_dtype("float8_e4m3fn"), kind_of_dtype("float8_e8m0fnu"), kind_of_dtype("int4"), kind_of_dtype("int3")
    ('Float', 'Shaped', 'Int', 'Shaped')
    """
    group = _group(dtype)
    return next((kind for kind, groups in _ALLOWED.items() if group in groups), "Shaped")


def _group(dtype: str) -> str | None:
    return next((group for group in _GROUPS if dtype.startswith(group) and not _NAMELESS.fullmatch(dtype)), None)


@dataclass(frozen=True)
class JaxtypingAnnotation:
    """A jaxtyping annotation: of a parameter, of the result, or of a variable at its statement."""

    line: int
    column: int
    kind: str
    dims: str
    parameter: str | None = None
    statement: ast.AnnAssign | None = None
    item: int | None = None
    """Which item of a tuple it annotates."""


_KIND = re.compile(
    r"Float|Int|Bool|Shaped|Complex|Num|Inexact|Integer|UInt|Real|Key"
    r"|(?:Float|Int|UInt|BFloat|Complex)\d+(?:e\d+m\d+\w*)?"
)


def find_annotations(node: FunctionNode) -> Iterator[JaxtypingAnnotation]:
    """Yield the jaxtyping annotations of a function's parameters, result and variables."""
    for parameter in parameter_nodes(node):
        yield from (replace(type_, parameter=parameter.arg) for type_ in _annotations(parameter.annotation))
    yield from _results(node.returns)
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, (FunctionNode, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name) and inner.value is not None:
            yield from (replace(type_, statement=inner) for type_ in _annotations(inner.annotation))
        waiting.extend(ast.iter_child_nodes(inner))


def _results(returns: ast.expr | None) -> Iterator[JaxtypingAnnotation]:
    match _unquoted(returns):
        case ast.Subscript(value=value, slice=ast.Tuple(elts=items)) if _name(value).lower().endswith("tuple"):
            for place, item in enumerate(items):
                yield from (replace(type_, item=place) for type_ in _annotations(item))
        case _:
            yield from _annotations(returns)


def _annotations(annotation: ast.expr | None) -> Iterator[JaxtypingAnnotation]:
    """Yield the jaxtyping types in an annotation. Only unions have several."""
    match _unquoted(annotation):
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[_, ast.Constant(value=str(dims))])) if _KIND.fullmatch(
            _name(value)
        ):
            assert annotation is not None
            yield JaxtypingAnnotation(annotation.lineno, annotation.col_offset, _name(value), dims)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _annotations(left)
            yield from _annotations(right)
        case ast.Subscript(value=value, slice=part) if _name(value) in ("Optional", "Annotated"):
            yield from _annotations(part.elts[0] if isinstance(part, ast.Tuple) else part)


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
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
