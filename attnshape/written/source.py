"""Where in a function's source something is written about shapes: comments, docstrings, annotations."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from attnshape.reading import source_lines
from attnshape.variables.watch import Function

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Where = Literal["trailing", "within", "above", "parameter", "signature"]


@dataclass(frozen=True)
class Comment:
    """A comment in a function: its line, its text without `#`, and what it stands at."""

    line: int
    column: int
    text: str
    where: Where
    statement: ast.stmt | None
    """For `above` the statement that follows; None where there is none."""
    before: ast.stmt | None = None
    """For `above` the statement that precedes it, where nothing but comments stands between."""
    block: tuple[ast.stmt, ...] = ()
    """For `above` the statements that follow up to the next blank line or comment."""
    parameter: str | None = None


@dataclass(frozen=True)
class Entry:
    """A line of a docstring, and what it is about."""

    line: int
    text: str
    of: Literal["parameter", "argument", "result", "anything"]
    """`argument` is any of them; `anything` holds where nothing is said, and counts for arrows only."""
    parameter: str | None = None
    item: int = 0
    """Which item of the docstring it is part of: what one says on several lines are alternatives."""
    listed: bool = False
    """Whether it is one of a list, or has a name of its own."""


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


@dataclass(frozen=True)
class File:
    """A source file, parsed."""

    lines: tuple[str, ...]
    tree: ast.Module
    comments: tuple[tuple[int, int, str], ...]
    """Each with its line, from 1, its column, from 0, and its text without `#`."""


@lru_cache(maxsize=64)
def read(path: str) -> File | None:
    """Return a file, None where it can't be read or isn't Python."""
    lines = tuple(source_lines(path))
    text = "".join(lines)
    try:
        tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    comments = tuple((t.start[0], t.start[1], t.string[1:]) for t in tokens if t.type == tokenize.COMMENT)
    return File(lines, tree, comments) if text.strip() else None


def node_of(file: File, function: Function) -> tuple[FunctionNode, ast.ClassDef | None] | None:
    """Return a function's node with its class's, None where the file has no such function."""
    name = function.name.rpartition(".")[2]
    for parent in ast.walk(file.tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, FunctionNode) and node.name == name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first == function.line:
                    return node, parent if isinstance(parent, ast.ClassDef) else None
    return None


def comments_in(file: File, node: FunctionNode) -> Iterator[Comment]:
    """Yield the comments of a function's own body and signature, not those of functions within it."""
    inner = [one for one in ast.walk(node) if isinstance(one, (FunctionNode, ast.ClassDef)) and one is not node]
    statements = [one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node]
    first, last = node.lineno, node.end_lineno or node.lineno
    for line, column, text in file.comments:
        if not first <= line <= last or any(one.lineno <= line <= (one.end_lineno or 0) for one in inner):
            continue
        if line < node.body[0].lineno and not _is_alone(file, line, column):
            yield Comment(line, column, text, "signature", None, parameter=_parameter_at(node, line))
            continue
        yield _placed(file, statements, line, column, text)


def _placed(file: File, statements: Sequence[ast.stmt], line: int, column: int, text: str) -> Comment:
    around = [one for one in statements if one.lineno <= line <= (one.end_lineno or 0) and not _has_body(one)]
    innermost = max(around, key=lambda one: (one.lineno, one.col_offset), default=None)
    if _is_alone(file, line, column):
        if innermost is not None:
            return Comment(line, column, text, "within", innermost)
        return _between(file, statements, line, column, text)
    if innermost is None:
        header = [one for one in statements if one.lineno == line]
        return Comment(line, column, text, "within", header[0] if header else None)
    ends = line == innermost.end_lineno
    return Comment(line, column, text, "trailing" if ends else "within", innermost)


def _between(file: File, statements: Sequence[ast.stmt], line: int, column: int, text: str) -> Comment:
    """Return a comment on a line of its own, with what stands right above and right beneath it."""
    alone = {at for at, where, _ in file.comments if _is_alone(file, at, where)}
    above, beneath = line, line
    while above - 1 in alone:
        above -= 1
    while beneath + 1 in alone:
        beneath += 1
    before = [one for one in statements if one.end_lineno == above - 1 and not _has_body(one)]
    block: list[ast.stmt] = []
    at = beneath + 1
    for one in sorted(statements, key=lambda one: one.lineno):
        if one.lineno == at:
            block.append(one)
            at = one.lineno + 1 if _has_body(one) else (one.end_lineno or one.lineno) + 1
    later = [one for one in statements if one.lineno > line]
    following = block[0] if block else min(later, key=lambda one: (one.lineno, one.col_offset), default=None)
    if before and not block:
        following = None
    return Comment(line, column, text, "above", following, before[-1] if before else None, tuple(block))


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, (ast.Match, ast.Try))


def _is_alone(file: File, line: int, column: int) -> bool:
    return not file.lines[line - 1][:column].strip()


def _parameter_at(node: FunctionNode, line: int) -> str | None:
    there = [one.arg for one in _parameters(node) if one.lineno <= line <= (one.end_lineno or 0) and one.arg != "self"]
    return there[-1] if len(there) == 1 else None


def _parameters(node: FunctionNode) -> list[ast.arg]:
    given = node.args
    starred = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]


def parameters(node: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    return [one.arg for one in _parameters(node)]


_ARGUMENTS = re.compile(r"^\s*:?(?:args?|arguments?|params?|parameters?|keyword arguments)\b\s*:?\s*$", re.I)
_SHAPES = re.compile(r"^\s*shapes?\b\s*:?\s*$", re.I)
_RESULT = re.compile(
    r"^\s*(?:[-*]\s*)?"
    r"(?::(?:returns?|rtype)\b|(?i:returns?|outputs?|yields?|return value)\s*(?::|$)|(?:Returns?|Outputs?)\b)"
)
_ANY_INPUT = re.compile(r"^\s*(?:[-*]\s*)?inputs?\s*:", re.I)
_UNDERLINE = re.compile(r"^\s*[-=~]{3,}\s*$")
_ITEM = re.compile(r"^\s*(?:[-*•]\s+|[`*]*\w+[`*]*(?:\s*\(.*?\))?\s?:(?=\s|$))")


def entries_of(node: FunctionNode, owner: ast.ClassDef | None) -> Iterator[Entry]:
    """Yield the lines of the docstrings of a function, and of the class that it is the forward of."""
    yield from _entries(node, parameters(node))
    if owner is not None and node.name in ("forward", "__call__"):
        yield from (one for one in _entries(owner, parameters(node)) if one.of != "anything")


def _entries(node: FunctionNode | ast.ClassDef, names: Sequence[str]) -> Iterator[Entry]:
    first = node.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
    field, quoted = r"(?::param\s+(?:[\w.\[\], ]+\s+)?|:type\s+)?", "[`*'\"]*"
    subject = re.compile(
        rf"^\s*(?:[-*+•]\s*)?{field}{quoted}(?P<name>{known}){quoted}\s*(?:\(.*?\)\s*)?(?::|--?\s|—|=|is\b)"
    )
    lines = first.value.value.split("\n")
    section: Literal["arguments", "shapes", "result"] | None = None
    about: Entry | None = None
    indent, underlined, item = 0, False, 0
    for offset, text in enumerate(lines):
        line, width = first.lineno + offset, len(text) - len(text.lstrip())
        heads = offset + 1 < len(lines) and _UNDERLINE.match(lines[offset + 1]) is not None
        found = subject.match(text)
        if not text.strip() or _UNDERLINE.match(text):
            continue
        if _RESULT.match(text):
            section, about, indent, underlined = "result", Entry(line, text, "result"), width, heads
        elif _ARGUMENTS.match(text) or _SHAPES.match(text) or heads:
            section, about, underlined = ("shapes" if _SHAPES.match(text) else "arguments"), None, False
        elif found is not None and not (section == "result" and underlined):
            about, indent = Entry(line, text, "parameter", found["name"]), width
        elif _ANY_INPUT.match(text):
            about, indent = Entry(line, text, "argument"), width
        elif section == "shapes" and _ITEM.match(text):
            about, indent = Entry(line, text, "result"), width
        elif about is not None and offset > 0 and width <= indent and not (section == "result" and underlined):
            about = None
        listed = _ITEM.match(text) is not None and not _RESULT.match(text)
        item += about is None or about.line == line or (about.of == "result" and listed)
        of, name = (about.of, about.parameter) if about is not None else ("anything", None)
        yield Entry(line, text, of, name, item, listed)


_PLAIN = ("Float", "Int", "Bool", "Shaped", "Complex", "Num", "Inexact", "Integer", "UInt", "Real", "Key")
_SIZED = re.compile(r"(?:Float|Int|UInt|BFloat|Complex)\d+(?:e\d+m\d+\w*)?")


def annotations_in(node: FunctionNode) -> Iterator[Annotation]:
    """Yield the jaxtyping annotations of a function's parameters, result and variables."""
    for parameter in _parameters(node):
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
