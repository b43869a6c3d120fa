"""The parsed source of a file, in which nodes are found by position, however many of them are on one line."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from executing import Source
from executing.executing import Executing

_End = tuple[int | None, int | None]
"""The line and the column at which a node ends."""


class SourceFile(Source):
    """A file as `executing` reads it, for source with very long lines and deeply nested expressions.

    `executing` compares each instruction with every node of its line, and parses a file again at each look-up if the
    tree is too deep for its visitor.
    """

    def __init__(self, filename: str, lines: Sequence[str]) -> None:
        with contextlib.suppress(RecursionError, MemoryError):  # raised by the parser, or by the visitor after it
            super().__init__(filename, lines)
        self._all_nodes = self._nodes_by_line
        narrowed: Any = _NodesByLine(self._all_nodes)
        self._nodes_by_line = narrowed

    @classmethod
    def node_at(cls, frame: Any) -> Executing:
        """Return the node that a frame is evaluating; of the frame only `FramePosition`'s attributes are read."""
        nodes: Any = cls.for_frame(frame)._nodes_by_line
        with nodes.narrowed_to(_end(frame.f_code, frame.f_lasti)):
            return cls.executing(frame)

    @functools.cache  # noqa: B019 - `executing` keeps every source as well
    def statements_at_line(self, lineno: int) -> set[Any]:
        """Return the statements that overlap a line."""
        statements: set[Any] = set()
        seen: set[ast.AST] = set()
        for node in self._all_nodes.get(lineno, ()):
            around: Any = node
            while not isinstance(around, ast.stmt) and around not in seen:
                seen.add(around)
                around = around.parent
            if isinstance(around, ast.stmt):
                statements.add(around)
        return statements


class _NodesByLine:
    """The nodes on each line, narrowed to those that end where an instruction does, and definitions.

    A decorator's call is recognized by the definition that follows it.
    """

    def __init__(self, nodes: dict[int, list[Any]]) -> None:
        self.nodes = nodes
        self._by_end: dict[int, dict[_End | None, list[Any]]] = {}
        self._end: _End | None = None

    @contextlib.contextmanager
    def narrowed_to(self, end: _End) -> Iterator[None]:
        self._end = end
        try:
            yield
        finally:
            self._end = None

    def __getitem__(self, line: int) -> list[Any]:
        if self._end is None:
            return self.nodes.get(line, [])
        if line not in self._by_end:
            by_end = self._by_end[line] = {}
            for node in self.nodes.get(line, ()):
                defines = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                end = None if defines else (node.end_lineno, node.end_col_offset)
                by_end.setdefault(end, []).append(node)
        return [*self._by_end[line].get(self._end, ()), *self._by_end[line].get(None, ())]


def enclosing(node: Any, kind: Any) -> Any:
    """Return the innermost node of a kind around a node, or that node itself; None if there is none.

    `executing` gives each node its parent.
    """
    while node is not None and not isinstance(node, kind):
        node = getattr(node, "parent", None)
    return node


def _end(code: CodeType, instruction: int) -> _End:
    _, line, _, column = _positions(code)[instruction // 2]
    return line, column


@functools.lru_cache(maxsize=128)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    return list(code.co_positions())
