"""A function's source: its syntax tree, its comments, and the statement to which each comment belongs."""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
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
    until: int = 0
    """For `above`, the line of the next such comment below the code that follows, else the one after the function."""
    parameter: str | None = None


@dataclass(frozen=True)
class CommentedSource:
    """A source file: its lines, its syntax tree and the comments of its functions."""

    lines: tuple[str, ...]
    tree: ast.Module

    @cached_property
    def functions(self) -> dict[tuple[str, int], tuple[FunctionNode, ast.ClassDef | None]]:
        """The functions with their classes, by name and first line."""
        functions: dict[tuple[str, int], tuple[FunctionNode, ast.ClassDef | None]] = {}
        for parent, node in _definitions(self.tree):
            if isinstance(node, FunctionNode):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                functions.setdefault((node.name, first), (node, parent if isinstance(parent, ast.ClassDef) else None))
        return functions

    def comments_of(self, node: FunctionNode) -> FunctionComments:
        """Return the comments in a function."""
        if node not in self._comments:
            self._comments[node] = FunctionComments(self.lines, node)
        return self._comments[node]

    @cached_property
    def _comments(self) -> dict[FunctionNode, FunctionComments]:
        return {}


class FunctionComments:
    """The comments on a function's lines. Only these are split into tokens: a file may have thousands of others."""

    def __init__(self, lines: Sequence[str], node: FunctionNode) -> None:
        self.end = (node.end_lineno or node.lineno) + 1
        """The line after the function's last."""
        text = "".join(lines[node.lineno - 1 : self.end - 1])
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        before = node.lineno - 1
        self.every = [(before + t.start[0], t.start[1], t.string[1:]) for t in tokens if t.type == tokenize.COMMENT]
        """Each with its line from 1, its column from 0, and its text without `#`."""
        self.alone = [line for line, column, _ in self.every if _is_on_its_own_line(lines, line, column)]
        """The lines that contain nothing but a comment, in order."""

    @cached_property
    def around(self) -> dict[int, tuple[int, int]]:
        """For each comment on a line of its own, the nearest lines above and below it without such a comment."""
        around: dict[int, tuple[int, int]] = {}
        for _, group in itertools.groupby(enumerate(self.alone), key=lambda pair: pair[1] - pair[0]):
            lines = [line for _, line in group]
            around |= dict.fromkeys(lines, (lines[0] - 1, lines[-1] + 1))
        return around


def _definitions(root: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each statement with the node that has it in its body; expressions contain no definitions."""
    waiting: list[ast.AST] = [root]
    for parent in waiting:
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            children = getattr(parent, field, ())
            yield from ((parent, child) for child in children)
            waiting += children


def read_commented_source(path: str) -> CommentedSource | None:
    """Parse a file as it is now; return None if it can't be read or isn't Python."""
    # code that `exec` runs has this name, under which linecache has the text of `python -c` from Python 3.13 on
    return _parsed(tuple(source_lines(path))) if path != "<string>" else None


@lru_cache(maxsize=64)
def _parsed(lines: tuple[str, ...]) -> CommentedSource | None:
    text = "".join(lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's own escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return CommentedSource(lines, tree) if text.strip() else None


def find_function(function: FunctionId) -> tuple[CommentedSource, FunctionNode, ast.ClassDef | None] | None:
    """Return a function's file, its node and its class's, None if its file can't be read or doesn't have it."""
    file = read_commented_source(function.file)
    found = file.functions.get((function.name.rpartition(".")[2], function.line)) if file is not None else None
    return (file, *found) if file is not None and found is not None else None


def comments_in(file: CommentedSource, node: FunctionNode) -> Iterator[LocatedComment]:
    """Yield the comments in a function's signature and body, without those of functions defined in it."""
    code, comments = _Statements(node), file.comments_of(node)
    alone_on = set(comments.alone)
    for line, column, text in comments.every:
        if line in code.lines_of_definitions:
            continue
        alone = line in alone_on
        if line < node.body[0].lineno and not alone:
            there = [name.arg for name in parameter_nodes(node) if _covers(name, line) and name.arg != "self"]
            parameter = there[0] if len(there) == 1 else None
            yield LocatedComment(line, column, text, "signature", None, parameter=parameter)
            continue
        innermost = code.around.get(line)
        if alone and innermost is None:
            yield _between(comments, code, line, column, text)
        elif innermost is None:
            yield LocatedComment(line, column, text, "within", code.first_on.get(line))
        else:
            trailing = line == innermost.end_lineno and not alone
            yield LocatedComment(line, column, text, "trailing" if trailing else "within", innermost)


class _Statements:
    """The statements of a function by their lines."""

    def __init__(self, node: FunctionNode) -> None:
        nodes = [inner for inner in ast.walk(node) if inner is not node]
        definitions = [inner for inner in nodes if isinstance(inner, (FunctionNode, ast.ClassDef))]
        self.lines_of_definitions = {line for inner in definitions for line in _lines_covered_by(inner)}
        statements = [inner for inner in nodes if isinstance(inner, ast.stmt)]
        self.in_order = sorted(statements, key=_position)
        self.around: dict[int, ast.stmt] = {}
        """The last statement without a body on each line."""
        self.ending_on: dict[int, ast.stmt] = {}
        """The last statement without a body that ends on each line, in the order of `ast.walk`."""
        self.first_on: dict[int, ast.stmt] = {}
        """The first statement that begins on each line, in the order of `ast.walk`."""
        for statement in self.in_order:
            if not _has_body(statement):
                self.around |= dict.fromkeys(_lines_covered_by(statement), statement)
        for statement in statements:
            self.first_on.setdefault(statement.lineno, statement)
            if not _has_body(statement):
                self.ending_on[statement.end_lineno or statement.lineno] = statement
        self.headers = {line: inner.col_offset for inner in statements for line in _lines_of_branches(inner)}
        """The columns of `else:`, `finally:` and `except`, by their lines."""
        self._blocks: dict[int, tuple[ast.stmt, ...]] = {}

    def block(self, line: int) -> tuple[ast.stmt, ...]:
        """Return the statements from a line on, up to the next line on which none begins, or that leaves the branch."""
        if line not in self._blocks:
            block: list[ast.stmt] = []
            below = line
            while (statement := self.first_on.get(below)) is not None or (block and below in self.headers):
                column = statement.col_offset if statement is not None else self.headers[below]
                if block and column < block[0].col_offset:
                    break
                if statement is None:
                    below += 1
                    continue
                block.append(statement)
                below = 1 + (statement.lineno if _has_body(statement) else statement.end_lineno or statement.lineno)
            self._blocks[line] = tuple(block)
        return self._blocks[line]

    def after(self, line: int) -> ast.stmt | None:
        """Return the first statement that begins after a line."""
        place = bisect.bisect_right(self.in_order, line, key=lambda statement: statement.lineno)
        return self.in_order[place] if place < len(self.in_order) else None


def _lines_of_branches(node: ast.stmt) -> Iterator[int]:
    """Yield the lines on which further branches of a compound statement begin, if nothing is between the branches."""
    yield from (handler.lineno for handler in getattr(node, "handlers", ()))
    fields = ("body", "orelse", "finalbody")
    branches = [branch for field in fields if isinstance(branch := getattr(node, field, None), list) and branch]
    for above, below in itertools.pairwise(branches):
        end = above[-1].end_lineno
        if end is not None and below[0].lineno == end + 2:
            yield end + 1


def _lines_covered_by(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _covers(node: ast.stmt | ast.arg, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _position(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def _between(comments: FunctionComments, code: _Statements, line: int, column: int, text: str) -> LocatedComment:
    """Return a comment on a line of its own, with the statements directly above and below it."""
    above, below = comments.around[line]
    before, block = code.ending_on.get(above), code.block(below)
    following = block[0] if block else None
    place = bisect.bisect_left(comments.alone, below)
    until = comments.alone[place] if place < len(comments.alone) else comments.end
    if before is None and not block:
        following = code.after(line)
        if following is not None and until < following.lineno:
            following = None  # that comment is the statement's, and not this one
    return LocatedComment(line, column, text, "above", following, before, block, until)


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body") or isinstance(statement, ast.Match)


def _is_on_its_own_line(lines: Sequence[str], line: int, column: int) -> bool:
    return not lines[line - 1][:column].strip()


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
