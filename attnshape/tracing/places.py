"""From a running frame to the expression that it is at, and to the names that the source gives the result."""

from __future__ import annotations

import ast
import itertools
from types import FrameType
from typing import Any

from executing import Source as ExecutingSource
from torch import Tensor

from attnshape.tracing.raw import Place


class Places:
    """The places of one run's calls, each found once.

    A place is kept by code object and instruction, so that a source line costs its look-up only the first time.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[Any, Place, ast.AST | None]] = {}
        self._lines: dict[str, list[bytes]] = {}

    def find(self, frame: FrameType) -> tuple[Place, ast.AST | None]:
        """Return where the frame is, and the node of its syntax tree where that is certain."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        entry = self._found.get(key)
        if entry is None:
            place, node = self._look_up(frame)
            # the code object is held so that its id stays its own
            self._found[key] = entry = (code, place, node)
        return entry[1], entry[2]

    def _look_up(self, frame: FrameType) -> tuple[Place, ast.AST | None]:
        code = frame.f_code
        found = ExecutingSource.executing(frame)
        node: Any = found.node
        if node is None or not hasattr(node, "lineno"):
            line = frame.f_lineno
            lines = getattr(found.source, "lines", [])
            text = lines[line - 1].strip() if 0 < line <= len(lines) else f"<line {line}>"
            return Place(code.co_filename, line, 1, code.co_name, text), None
        targets, unpacked, declared = assigned(node)
        shown = _shown(node)
        return (
            Place(
                file=code.co_filename,
                line=node.lineno,
                column=node.col_offset + 1,
                function=code.co_qualname.replace(".<locals>", ""),
                expression=self._text(found.source, shown),
                targets=targets,
                unpacked=unpacked,
                declared=declared,
                statement=_element_update(node),
            ),
            node,
        )

    def _text(self, source: ExecutingSource, node: Any) -> str:
        """Return the node's exact text, by UTF-8 offsets; ast.get_source_segment would split the whole file anew."""
        lines = self._lines.get(source.filename)
        if lines is None:
            lines = self._lines[source.filename] = [line.encode() for line in source.text.splitlines(keepends=True)]
        first, last = node.lineno - 1, node.end_lineno - 1
        if first == last:
            return str(lines[first][node.col_offset : node.end_col_offset], "utf-8")
        parts = [lines[first][node.col_offset :], *lines[first + 1 : last], lines[last][: node.end_col_offset]]
        return b"".join(parts).decode()


def assigned(node: Any) -> tuple[tuple[str | None, ...], bool, str | None]:
    """Return the names that the node as a whole is bound to, whether it is unpacked, and the annotation's dims."""
    parent = getattr(node, "parent", None)
    if isinstance(node, ast.AugAssign):
        return (_name(node.target),), False, None
    match parent:
        case ast.IfExp(body=body, orelse=orelse) if node is body or node is orelse:
            return assigned(parent)
        case ast.NamedExpr(target=target):
            return (_name(target),), False, None
        case ast.AnnAssign(target=target, annotation=annotation):
            return (_name(target),), False, dims_string(annotation)
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


def dims_string(annotation: ast.expr) -> str | None:
    """Return the dims string of `Float[Tensor, "B L D"]`, alone or in a union; None where it is something else."""
    match annotation:
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Constant(value=str(dims))])):
            return " ".join(dims.split())
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return dims_string(left) or dims_string(right)
    return None


def plain_variables(
    node: ast.AST, method: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> list[tuple[str, Tensor]]:
    """Return each plain variable among a call's operands with the tensor that it stood for.

    `method` says that the first run-time argument is the receiver of a method call.
    """
    written: list[ast.expr]
    match node:
        case ast.Call(func=function, args=values):
            receiver = [function.value] if method and isinstance(function, ast.Attribute) else []
            written = [*receiver, *itertools.takewhile(lambda value: not isinstance(value, ast.Starred), values)]
        case ast.BinOp(left=left, right=right):
            written = _operands(left, right, arguments)
        case ast.AugAssign(target=target, value=value):
            written = [target, value]
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.UnaryOp(operand=value):
            written = [value]
        case _:
            return []
    pairs: list[tuple[ast.expr, Any]] = list(zip(written, arguments, strict=False))
    if isinstance(node, ast.Call):
        pairs += [(word.value, keywords[word.arg]) for word in node.keywords if word.arg and word.arg in keywords]
    found = []
    for expression, value in pairs:
        if isinstance(expression, ast.Name) and isinstance(value, Tensor):
            found.append((expression.id, value))
        elif isinstance(expression, (ast.Tuple, ast.List)) and isinstance(value, (tuple, list)):
            inner = zip(expression.elts, value, strict=False)
            found += [
                (name.id, item) for name, item in inner if isinstance(name, ast.Name) and isinstance(item, Tensor)
            ]
    return found


def _operands(left: ast.expr, right: ast.expr, arguments: tuple[Any, ...]) -> list[ast.expr]:
    """Return a binary operation's operands in the order of its run-time arguments; `2 * x` arrives as `mul(x, 2)`."""
    if len(arguments) == 2 and not isinstance(arguments[1], Tensor):
        if isinstance(right, ast.Constant):
            return [left]
        return [right] if isinstance(left, ast.Constant) else []
    return [left, right]


def _shown(node: Any) -> Any:
    """Return what is shown of a node: the whole statement where it is the element that is written to."""
    parent = getattr(node, "parent", None)
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


def _element_update(node: Any) -> tuple[int, int] | None:
    """Return the lines of the `x[a] += y` that the node belongs to, where it does."""
    update = node if isinstance(node, ast.AugAssign) else getattr(node, "parent", None)
    if (
        isinstance(update, ast.AugAssign)
        and isinstance(update.target, ast.Subscript)
        and node in (update, update.target)
    ):
        return update.lineno, update.end_lineno or update.lineno
    return None
