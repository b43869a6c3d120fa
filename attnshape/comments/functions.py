"""A function's source: its syntax tree, its comments, and the statement to which each comment belongs."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from attnshape.observation.forms import FunctionId
from attnshape.runtime.files import source_lines

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Where = Literal["trailing", "within", "above", "signature"]


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
    # code that `exec` runs has this name, under which linecache has the text of `python -c` from Python 3.13 on
    return _parsed(tuple(source_lines(path))) if path != "<string>" else None


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


def find_function(function: FunctionId) -> tuple[SourceFile, FunctionNode, ast.ClassDef | None] | None:
    """Return a function's file, its node and its class's, None if its file can't be read or doesn't have it."""
    file = read_source_file(function.file)
    for parent in ast.walk(file.tree) if file is not None else ():
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, FunctionNode) and node.name == function.name.rpartition(".")[2]:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if file is not None and first == function.line:
                    return file, node, parent if isinstance(parent, ast.ClassDef) else None
    return None


def comments_in(file: SourceFile, node: FunctionNode) -> Iterator[LocatedComment]:
    """Yield the comments in a function's signature and body, without those of functions defined in it."""
    nodes = [inner for inner in ast.walk(node) if inner is not node]
    functions = [inner for inner in nodes if isinstance(inner, (FunctionNode, ast.ClassDef))]
    statements = [inner for inner in nodes if isinstance(inner, ast.stmt)]
    for line, column, text in file.comments:
        if not _covers(node, line) or any(_covers(function, line) for function in functions):
            continue
        alone = _is_on_its_own_line(file, line, column)
        if line < node.body[0].lineno and not alone:
            there = [name.arg for name in parameter_nodes(node) if _covers(name, line) and name.arg != "self"]
            parameter = there[0] if len(there) == 1 else None
            yield LocatedComment(line, column, text, "signature", None, parameter=parameter)
            continue
        around = [statement for statement in statements if _covers(statement, line) and not _has_body(statement)]
        innermost = max(around, key=_position, default=None)
        if alone and innermost is None:
            yield _between(file, statements, line, column, text)
        elif innermost is None:
            header = next((statement for statement in statements if statement.lineno == line), None)
            yield LocatedComment(line, column, text, "within", header)
        else:
            trailing = line == innermost.end_lineno and not alone
            yield LocatedComment(line, column, text, "trailing" if trailing else "within", innermost)


def _covers(node: ast.stmt | ast.arg, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _position(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def _between(file: SourceFile, statements: Sequence[ast.stmt], line: int, column: int, text: str) -> LocatedComment:
    """Return a comment on a line of its own, with the statements directly above and below it."""
    own_line = {at for at, where, _ in file.comments if _is_on_its_own_line(file, at, where)}
    above = next(at for at in itertools.count(line, -1) if at not in own_line)
    below = next(at for at in itertools.count(line) if at not in own_line)
    before = [statement for statement in statements if statement.end_lineno == above and not _has_body(statement)]
    block: list[ast.stmt] = []
    for statement in sorted(statements, key=lambda statement: statement.lineno):
        if statement.lineno == below:
            block.append(statement)
            below = 1 + (statement.lineno if _has_body(statement) else statement.end_lineno or statement.lineno)
    following = block[0] if block else None
    if not before and not block:
        following = min((later for later in statements if later.lineno > line), key=_position, default=None)
    return LocatedComment(line, column, text, "above", following, before[-1] if before else None, tuple(block))


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, ast.Match)


def _is_on_its_own_line(file: SourceFile, line: int, column: int) -> bool:
    return not file.lines[line - 1][:column].strip()


def parameter_nodes(node: FunctionNode) -> list[ast.arg]:
    """Return a function's parameters, including starred ones."""
    arguments = node.args
    starred = [parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def parameter_names(node: FunctionNode) -> list[str]:
    """Return the names of a function's parameters."""
    return [parameter.arg for parameter in parameter_nodes(node)]


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
