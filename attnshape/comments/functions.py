"""A function's source: its syntax tree, its comments, and the statement to which each comment belongs."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from attnshape.observation.forms import FunctionId
from attnshape.runtime.files import source_lines

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Where = Literal["trailing", "within", "above", "parameter", "signature"]


@dataclass(frozen=True)
class LocatedComment:
    """A comment in a function: its line, its text without `#`, and its position relative to the code."""

    line: int
    column: int
    text: str
    where: Where
    statement: ast.stmt | None
    """For `above`, the statement that follows; None if there is none."""
    before: ast.stmt | None = None
    """For `above`, the statement that precedes it, with only comments between them."""
    block: tuple[ast.stmt, ...] = ()
    """For `above`, the statements that follow up to the next blank line or comment."""
    parameter: str | None = None


@dataclass(frozen=True)
class SourceFile:
    """A parsed source file."""

    lines: tuple[str, ...]
    tree: ast.Module
    comments: tuple[tuple[int, int, str], ...]
    """Each with its line from 1, its column from 0, and its text without `#`."""


def read_source_file(path: str) -> SourceFile | None:
    """Parse a file as it is now; return None if it can't be read or isn't Python."""
    return _parsed(tuple(source_lines(path)))


@lru_cache(maxsize=64)
def _parsed(lines: tuple[str, ...]) -> SourceFile | None:
    text = "".join(lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's own escapes
            tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    comments = tuple((t.start[0], t.start[1], t.string[1:]) for t in tokens if t.type == tokenize.COMMENT)
    return SourceFile(lines, tree, comments) if text.strip() else None


def find_function(file: SourceFile, function: FunctionId) -> tuple[FunctionNode, ast.ClassDef | None] | None:
    """Return a function's node and its class's, None if the file has no such function."""
    name = function.name.rpartition(".")[2]
    for parent in ast.walk(file.tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, FunctionNode) and node.name == name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first == function.line:
                    return node, parent if isinstance(parent, ast.ClassDef) else None
    return None


def comments_in(file: SourceFile, node: FunctionNode) -> Iterator[LocatedComment]:
    """Yield the comments in a function's signature and body, without those of functions defined in it."""
    inner = [one for one in ast.walk(node) if isinstance(one, (FunctionNode, ast.ClassDef)) and one is not node]
    statements = [one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node]
    first, last = node.lineno, node.end_lineno or node.lineno
    for line, column, text in file.comments:
        if not first <= line <= last or any(one.lineno <= line <= (one.end_lineno or 0) for one in inner):
            continue
        if line < node.body[0].lineno and not _is_on_its_own_line(file, line, column):
            yield LocatedComment(line, column, text, "signature", None, parameter=_parameter_at(node, line))
            continue
        yield _placed(file, statements, line, column, text)


def _placed(file: SourceFile, statements: Sequence[ast.stmt], line: int, column: int, text: str) -> LocatedComment:
    around = [one for one in statements if one.lineno <= line <= (one.end_lineno or 0) and not _has_body(one)]
    innermost = max(around, key=lambda one: (one.lineno, one.col_offset), default=None)
    if _is_on_its_own_line(file, line, column):
        if innermost is not None:
            return LocatedComment(line, column, text, "within", innermost)
        return _between(file, statements, line, column, text)
    if innermost is None:
        header = [one for one in statements if one.lineno == line]
        return LocatedComment(line, column, text, "within", header[0] if header else None)
    ends = line == innermost.end_lineno
    return LocatedComment(line, column, text, "trailing" if ends else "within", innermost)


def _between(file: SourceFile, statements: Sequence[ast.stmt], line: int, column: int, text: str) -> LocatedComment:
    """Return a comment on a line of its own, with the statements directly above and below it."""
    own_line = {at for at, where, _ in file.comments if _is_on_its_own_line(file, at, where)}
    above, below = line, line
    while above - 1 in own_line:
        above -= 1
    while below + 1 in own_line:
        below += 1
    before = [one for one in statements if one.end_lineno == above - 1 and not _has_body(one)]
    block: list[ast.stmt] = []
    at = below + 1
    for one in sorted(statements, key=lambda one: one.lineno):
        if one.lineno == at:
            block.append(one)
            at = one.lineno + 1 if _has_body(one) else (one.end_lineno or one.lineno) + 1
    later = [one for one in statements if one.lineno > line]
    following = block[0] if block else min(later, key=lambda one: (one.lineno, one.col_offset), default=None)
    if before and not block:
        following = None
    return LocatedComment(line, column, text, "above", following, before[-1] if before else None, tuple(block))


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, (ast.Match, ast.Try))


def _is_on_its_own_line(file: SourceFile, line: int, column: int) -> bool:
    return not file.lines[line - 1][:column].strip()


def _parameter_at(node: FunctionNode, line: int) -> str | None:
    there = [one for one in parameter_nodes(node) if one.lineno <= line <= (one.end_lineno or 0)]
    named = [one.arg for one in there if one.arg != "self"]
    return named[0] if len(named) == 1 else None


def parameter_nodes(node: FunctionNode) -> list[ast.arg]:
    """Return a function's parameters, including starred ones."""
    given = node.args
    starred = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]


def parameter_names(node: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    return [one.arg for one in parameter_nodes(node)]


def lines_of(statement: ast.stmt) -> range:
    """Return the lines of a statement; of a compound statement, those of its header."""
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


def writes_into_part(statement: ast.stmt) -> bool:
    """Return whether a statement writes into a part of a tensor, `x[:, 0] = y`, whose shape isn't known."""
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
