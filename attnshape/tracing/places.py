"""From a running frame to the expression that it is at, and to the names that the source gives the result."""

from __future__ import annotations

import ast
import dis
from types import FrameType
from typing import Any

from executing import Source as ExecutingSource

from attnshape.tracing.naming import assigned, dims_string, element_update, in_turn, kind_name, passing, shown
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
        node: Any = found.node or _unpacking(frame, found.statements)
        if node is None or not hasattr(node, "lineno"):
            line = frame.f_lineno
            lines = getattr(found.source, "lines", [])
            text = lines[line - 1].strip() if 0 < line <= len(lines) else f"<line {line}>"
            return Place(code.co_filename, line, 1, code.co_name, text), None
        targets, unpacked, annotation = assigned(node)
        text_node = shown(node)
        return (
            Place(
                file=code.co_filename,
                line=node.lineno,
                column=node.col_offset + 1,
                function=code.co_qualname.replace(".<locals>", ""),
                expression=self._text(found.source, text_node),
                targets=targets,
                unpacked=unpacked,
                in_turn=in_turn(node),
                passing=frozenset(passing(node)),
                declared=dims_string(annotation) if annotation is not None else None,
                declared_kind=kind_name(annotation) if annotation is not None else None,
                statement=element_update(node),
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


def _unpacking(frame: FrameType, statements: set[Any] | None) -> Any:
    """Return the statement `q, k, v = tensor` where the frame is at taking the tensor apart, which has no node."""
    at_unpacking = dis.opname[frame.f_code.co_code[frame.f_lasti]] == "UNPACK_SEQUENCE"
    only = next(iter(statements)) if at_unpacking and statements and len(statements) == 1 else None
    return only if isinstance(only, ast.Assign) else None
