"""From a running frame to the expression that it is at, and to the names that the source gives the result."""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, ClassVar

from executing import Source as ExecutingSource

from attnshape.tracing.naming import assigned, dims_string, element_update, in_turn, kind_name, passing, shown
from attnshape.tracing.raw import Place

_TO_CALL = 4
"""The bytes of a PRECALL instruction and its cache."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a frame was, to be looked up later."""

    f_code: CodeType
    f_lasti: int
    f_lineno: int
    f_globals: dict[str, Any]

    @classmethod
    def of(cls, frame: FrameType) -> Moment:
        """Return where the frame is now."""
        return cls(frame.f_code, frame.f_lasti, frame.f_lineno, frame.f_globals)

    @property
    def at_call(self) -> Moment:
        """Itself, at the instruction that the source's call belongs to.

        Once it has run often, Python 3.11 makes the call of a built-in type, such as `list(x)`, one instruction early.
        """
        if dis.opname[self.f_code.co_code[self.f_lasti]] != "PRECALL":
            return self
        return dataclasses.replace(self, f_lasti=self.f_lasti + _TO_CALL)


class Places:
    """The places of calls, each found once in a process.

    A place is kept by code object and instruction, so that a source line costs its look-up only the first time.
    """

    _found: ClassVar[dict[tuple[int, int], tuple[CodeType, Place, ast.AST | None]]] = {}

    def find(self, frame: FrameType | Moment) -> tuple[Place, ast.AST | None]:
        """Return where the frame is, and the node of its syntax tree where that is certain."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        entry = self._found.get(key)
        if entry is None:
            place, node = self._look_up((frame if isinstance(frame, Moment) else Moment.of(frame)).at_call)
            # the code object is held so that its id stays its own
            self._found[key] = entry = (code, place, node)
        return entry[1], entry[2]

    def _look_up(self, frame: Moment) -> tuple[Place, ast.AST | None]:
        code = frame.f_code
        found = ExecutingSource.executing(frame)  # type: ignore[arg-type]  # it reads no more of a frame than a moment has
        node: Any = found.node or _unpacking(frame, found.statements)
        if node is None or not hasattr(node, "lineno"):
            line = frame.f_lineno
            lines = getattr(found.source, "lines", [])
            text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            return Place(code.co_filename, line, 1, code.co_name, text), None
        targets, unpacked, annotation = assigned(node)
        text_node = shown(node)
        return (
            Place(
                file=code.co_filename,
                line=node.lineno,
                column=node.col_offset + 1,
                function=code.co_qualname.replace(".<locals>", ""),
                expression=_text(found.source, text_node),
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


def _text(source: ExecutingSource, node: Any) -> str:
    """Return the node's exact text, by UTF-8 offsets; ast.get_source_segment would split the whole file anew."""
    lines = _lines(source.text)[node.lineno - 1 : node.end_lineno]
    last = lines[-1].encode()[: node.end_col_offset]
    if len(lines) == 1:
        return str(last[node.col_offset :], "utf-8")
    return "\n".join([str(lines[0].encode()[node.col_offset :], "utf-8"), *lines[1:-1], str(last, "utf-8")])


@functools.lru_cache(maxsize=64)
def _lines(text: str) -> list[str]:
    # str.splitlines would also split at form feeds, which end no line of Python
    return text.split("\n")


def _unpacking(frame: Moment, statements: set[Any] | None) -> Any:
    """Return the statement `q, k, v = tensor` where the frame is at taking the tensor apart, which has no node."""
    at_unpacking = dis.opname[frame.f_code.co_code[frame.f_lasti]] == "UNPACK_SEQUENCE"
    only = next(iter(statements)) if at_unpacking and statements and len(statements) == 1 else None
    return only if isinstance(only, ast.Assign) else None
