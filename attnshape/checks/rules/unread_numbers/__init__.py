"""Is every number read by the code that gets it as an argument, or that computes it when it is constructed?

Whether a number has an effect can't tell: a rate of dropout has none in evaluation mode. The syntax tree tells whether
anything reads it, on whatever path.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from executing import Source
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Outcome, Violation
from attnshape.checks.rules.unread_numbers.attributes import check_attributes
from attnshape.model.report import Level
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.runner import Runnable

CODES: tuple[str, ...] = ("AS812", "AS813")
TOPIC = "unread numbers"
_READS_ALL = {"locals", "vars", "eval", "exec"}
"""Functions that may read any variable of the function that calls them."""
_SAYS_SO = re.compile(
    r"\bun-?used\b|\bignore[sd]?\b|\bnot? (used|read|needed)\b|compatib|deprecated|legacy|placeholder"
)
"""What code writes of a parameter that only its interface has."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(subject: Subject) -> Iterator[Outcome]:
    """Look for arguments and attributes that are numbers and that no path of the code reads."""
    for one in subject.experiment.observe(_unread):
        message = f"a number is given for {one.name}, and nothing in {one.place.function} reads it"
        hint = (
            f"use {one.name}, or remove the parameter; if only the interface has it, its docstring can say so: unused"
        )
        # indices of layers and positions are often there for other implementations of one interface
        level: Level = "error" if isinstance(one.value, float) and one.value else "notice"
        claims = ("scale",) if subject.claims.scale is not None and "scale" in one.name else ()
        evidence = "searched the function's syntax tree for the name"
        yield Violation("AS812", message, None, hint, evidence, "measured", one.place, claims=claims, level=level)
    yield from check_attributes(subject)


@dataclass(frozen=True)
class _Unread:
    """A number that is passed to a parameter which nothing reads."""

    name: str
    value: float
    place: SourceLocation
    """Where the parameter is declared."""


def _unread(runnable: Runnable, _: Mapping[str, Tensor]) -> list[_Unread]:
    """Return the numbers that the called function never reads; none if its source can't be read."""
    bound = runnable.bound()
    numbers = {
        name: value for name, value in bound.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    function = inspect.unwrap(runnable.signature_of) if numbers else None
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return []
    source = Source.for_filename(code.co_filename)
    definition = _definition(source.tree, code.co_firstlineno) if source.tree is not None else None
    if definition is None:
        return []
    read = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    text = ast.get_source_segment(source.text, definition) or ""
    if read & _READS_ALL:
        return []
    arguments = definition.args
    return [
        _Unread(one.arg, numbers[one.arg], _place(one, code.co_filename, code.co_qualname))
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if one.arg in numbers and one.arg not in read and not one.arg.startswith("_") and not _is_excused(one.arg, text)
    ]


def _definition(tree: ast.AST, line: int) -> _Function | None:
    """Return the function that begins at a line, with its first decorator if it has one."""
    for node in ast.walk(tree):
        if isinstance(node, _Function) and min([node.lineno, *(one.lineno for one in node.decorator_list)]) == line:
            return node
    return None


def _is_excused(name: str, text: str) -> bool:
    """Return whether a line of the function, or the next one, says of a parameter that it is unused."""
    lines = text.splitlines()
    pairs = zip(lines, [*lines[1:], ""], strict=True)
    return any(re.search(rf"\b{name}\b", line) and _SAYS_SO.search(f"{line} {after}".lower()) for line, after in pairs)


def _place(node: ast.arg, file: str, function: str) -> SourceLocation:
    return SourceLocation(file, node.lineno, node.col_offset + 1, function, node.arg)
