"""The imports that annotations need: a line that is there is extended, a new one goes beside the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from attnshape.annotate.names import Names, imported
from attnshape.annotate.source import Edit
from attnshape.annotate.tree import Tree, dotted
from attnshape.annotate.types import Spelling


@dataclass(frozen=True)
class Needed:
    """A name that is needed from a module: `Float` from `jaxtyping`, or the module itself, where `name` is empty."""

    module: str
    name: str = ""


def spelling(names: Names) -> Spelling:
    """Return how a file says jaxtyping's types and `Tensor`, where it would import those it hasn't."""
    return Spelling(lambda kind: said(names, "jaxtyping", kind), said(names, "torch", "Tensor"))


def said(names: Names, module: str, name: str) -> str:
    """Return how a file says a module's name, once `needed` has imported what it lacks."""
    there = names.called(f"{module}.{name}")
    if there is not None:
        return there
    if names.is_free(name):
        return name
    return f"{module if names.is_free(module) else f'_{module}'}.{name}"


def needed(names: Names, module: str, name: str) -> Needed | None:
    """Return what must be imported so that `said` holds; None where nothing must be."""
    if names.called(f"{module}.{name}") is not None:
        return None
    return Needed(module, name) if names.is_free(name) else Needed(module)


def import_edits(tree: Tree, names: Names, wanted: Collection[Needed]) -> list[Edit]:
    """Return the edits that import what is wanted."""
    edits: list[Edit] = []
    lines: list[tuple[str, str]] = []
    for module in sorted({one.module for one in wanted}):
        own = sorted({one.name for one in wanted if one.module == module and one.name})
        if own:
            there = _line_of(tree, module)
            if there is not None:
                edits += _extended(tree, there, own)
            else:
                lines.append((module, f"from {module} import {', '.join(own)}"))
        if any(one.module == module and not one.name for one in wanted):
            alias = "" if names.is_free(module) else f" as _{module}"
            lines.append((module, f"import {module}{alias}"))
    return [*edits, *_new_lines(tree, lines)]


def _line_of(tree: Tree, module: str) -> cst.ImportFrom | None:
    """Return the first line at module level that imports names from a module."""
    for line in tree.module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if (
                isinstance(statement, cst.ImportFrom)
                and not statement.relative
                and statement.module is not None
                and dotted(statement.module) == module
                and not isinstance(statement.names, cst.ImportStar)
            ):
                return statement
    return None


def _extended(tree: Tree, line: cst.ImportFrom, own: Sequence[str]) -> Iterator[Edit]:
    """Put names into a line of imports, each before the first that is behind it in the alphabet."""
    assert not isinstance(line.names, cst.ImportStar)
    present = [one.evaluated_name for one in line.names]
    for name in own:
        place = next((place for place, other in enumerate(present) if _order(other) > _order(name)), None)
        if place is None:
            at = tree.end(line.names[-1].asname or line.names[-1].name)
            yield Edit(at, at, f", {name}")
        else:
            at = tree.start(line.names[place])
            yield Edit(at, at, f"{name}, ")


def _order(name: str) -> tuple[bool, str]:
    """Classes before functions, as import sorters have it."""
    return (not name[:1].isupper(), name)


def _new_lines(tree: Tree, lines: Sequence[tuple[str, str]]) -> Iterator[Edit]:
    """Put new lines beside the imports that are there, each before the first that comes behind it in the alphabet."""
    if not lines:
        return
    newline = tree.source.newline
    group = _group(tree)
    if not group:
        at = behind_the_docstring(tree)
        text = newline.join(text for _, text in lines) + newline
        before = newline if at > 0 else ""
        at_end = at == len(tree.source.utf8) and not re.search(rb"[\r\n]\Z", tree.source.utf8)
        yield Edit(at, at, f"{newline if at_end else ''}{before}{text}{newline if at < len(tree.source.utf8) else ''}")
        return
    for module, text in lines:
        behind = [_sorts_behind(line, module, text) for line in group]
        first = behind.index(True) if True in behind else len(group)
        if first < len(group) and all(behind[first:]):
            at = tree.source.line_start(tree.start(group[first]))
            yield Edit(at, at, text + newline)
        else:
            yield _below(tree, group[-1], text, newline)


def _below(tree: Tree, line: cst.SimpleStatementLine, text: str, newline: str) -> Edit:
    behind = tree.source.end_of_line(tree.end(line.body[-1]))
    at = behind.at if behind is not None else tree.end(line.body[-1])
    rest = re.compile(rb"[ \t\f]*(\r\n|\r|\n)").match(tree.source.utf8, at)
    if rest is None:
        return Edit(at, at, newline + text)
    return Edit(rest.end(), rest.end(), text + newline)


def _sorts_behind(line: cst.SimpleStatementLine, module: str, text: str) -> bool:
    """Say whether a line of imports comes behind a new one: plain imports come first."""
    statement = line.body[0]
    if line.leading_lines:  # a comment above it would move to the new one
        return False
    if isinstance(statement, cst.Import):
        return text.startswith("import ") and dotted(statement.names[0].name) > module
    if not isinstance(statement, cst.ImportFrom):
        return False
    other = dotted(statement.module) if statement.module is not None and not statement.relative else "~"
    return text.startswith("import ") or other > module


def _group(tree: Tree) -> list[cst.SimpleStatementLine]:
    """Return the lines of imports, without blank lines between, that import torch; the last ones where none do."""
    groups: list[list[cst.SimpleStatementLine]] = [[]]
    for line in tree.module.body:
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(line, cst.SimpleStatementLine) and _is_import(line):
            if groups[-1] and line.leading_lines:
                groups.append([])
            groups[-1].append(line)
        elif groups[-1]:
            groups.append([])
    there = [group for group in groups if group]
    absolute = [group for group in there if _imports_torch(group)]
    return (absolute or there or [[]])[0 if absolute else -1]


def _is_import(line: cst.SimpleStatementLine) -> bool:
    """Say whether a line is an import, but none of `__future__`."""
    first = line.body[0]
    future = isinstance(first, cst.ImportFrom) and first.module is not None and dotted(first.module) == "__future__"
    return isinstance(first, (cst.Import, cst.ImportFrom)) and not future


def _imports_torch(group: Sequence[cst.SimpleStatementLine]) -> bool:
    return any(
        origin.partition(".")[0] == "torch"
        for line in group
        for statement in line.body
        for origin in imported(statement).values()
    )


def behind_the_docstring(tree: Tree) -> int:
    """Return where the first import of a file can stand: behind its docstring and what it takes from `__future__`."""
    at = 0
    for place, line in enumerate(tree.module.body):
        if not isinstance(line, cst.SimpleStatementLine):
            break
        first = line.body[0]
        is_docstring = place == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        is_future = isinstance(first, cst.ImportFrom) and not _is_import(line)
        if not (is_docstring or is_future):
            break
        behind = tree.source.end_of_line(tree.end(line.body[-1]))
        at = behind.at if behind is not None else tree.end(line.body[-1])
        newline = re.compile(rb"\r\n|\r|\n").match(tree.source.utf8, at)
        at = newline.end() if newline is not None else at
    if at == 0 and tree.module.header:
        first_line = tree.module.body[0] if tree.module.body else None
        at = tree.source.line_start(tree.start(first_line)) if first_line is not None else len(tree.source.utf8)
    return at
