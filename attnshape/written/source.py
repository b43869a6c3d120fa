"""A function's source: its node, its comments, and what each of these stands at."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
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
class File:
    """A source file, parsed."""

    lines: tuple[str, ...]
    tree: ast.Module
    comments: tuple[tuple[int, int, str], ...]
    """Each with its line, from 1, its column, from 0, and its text without `#`."""


def read(path: str) -> File | None:
    """Return a file as it is now, None where it can't be read or isn't Python."""
    return _parsed(tuple(source_lines(path)))


@lru_cache(maxsize=64)
def _parsed(lines: tuple[str, ...]) -> File | None:
    text = "".join(lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the file's own escapes
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
    there = [one for one in parameter_nodes(node) if one.lineno <= line <= (one.end_lineno or 0)]
    named = [one.arg for one in there if one.arg != "self"]
    return named[0] if len(named) == 1 else None


def parameter_nodes(node: FunctionNode) -> list[ast.arg]:
    """Return a function's parameters, the starred ones too."""
    given = node.args
    starred = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]


def parameters(node: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    return [one.arg for one in parameter_nodes(node)]
