"""Watches the variables of functions as they run: a trace function that looks at what each store has bound."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from attnshape.variables.function import Function as Function
from attnshape.variables.values import Value, seen

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_HOLDERS = ("self.args", "self.cfg", "self.config", "self", "args", "cfg", "config")
"""Objects whose whole numbers people name in comments: `# (B, n_head, T, T)` where `self.n_head` is one.

The last that has a name says what it is.
"""


NO_COLUMN = -1
"""Where Python runs without columns, with -X no_debug_ranges, and for the second of two stores that it has joined."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One store to a plain variable, at its line and column, from 1 and 0; `NO_COLUMN` where this isn't known."""

    line: int
    column: int
    name: str
    value: Value
    order: int
    """How many calls had been recorded by then."""


@dataclass(slots=True)
class Invocation:
    """One call of a function."""

    function: Function
    arguments: dict[str, Value]
    numbers: dict[str, int]
    """The whole numbers that the function can see under a plain name: of its module, of `self`, of a config."""
    began: int
    """How many calls had been recorded when it began."""
    bindings: list[Binding] = field(default_factory=list)
    results: list[tuple[int, Value]] = field(default_factory=list)
    """Each with the line of its return statement."""
    ended: int | None = None
    """How many calls had been recorded when it returned; None where it didn't."""


class Watch:
    """Records the calls of functions, those that `wanted` says, while it is entered."""

    def __init__(self, wanted: Callable[[CodeType], bool]) -> None:
        self._wanted = wanted
        self._recorded = 0
        self._stores: dict[CodeType, dict[int, tuple[tuple[str, ...], int, int]]] = {}
        self._resumed: dict[int, Invocation] = {}
        self.invocations: list[Invocation] = []
        self._before: Any = None

    def step(self) -> None:
        """Count a recorded call."""
        self._recorded += 1

    def clear(self) -> None:
        """Forget what was seen so far."""
        self._recorded = 0
        self._resumed.clear()
        self.invocations.clear()

    def __enter__(self) -> Watch:
        self._before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it before the tracing begins
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or not self._wanted(code):
            return None
        resumed = bool(code.co_flags & _RESUMED)
        invocation = self._resumed.get(id(frame)) if resumed and not _begins(frame) else None
        if invocation is None:
            invocation = Invocation(_function(code), dict(_arguments(frame)), _numbers(frame), self._recorded)
            self.invocations.append(invocation)
            if resumed:
                self._resumed[id(frame)] = invocation
        return self._within(invocation, self._stores_of(code), not resumed)

    def _within(
        self, invocation: Invocation, stores: dict[int, tuple[tuple[str, ...], int, int]], returns: bool
    ) -> Callable[[FrameType, str, object], Any]:
        pending: tuple[tuple[str, ...], int, int] | None = None

        def watched(frame: FrameType, event: str, value: object) -> Any:
            nonlocal pending
            if event == "line":
                # Python 3.13 heeds it only from a line on, not from the call
                frame.f_trace_opcodes = True
            elif event == "opcode":
                if pending is not None:
                    names, line, column = pending
                    held = frame.f_locals
                    for name in names:
                        if name in held:
                            kept = seen(held[name])
                            at = column if name == names[0] else NO_COLUMN
                            invocation.bindings.append(Binding(line, at, name, kept, self._recorded))
                pending = stores.get(frame.f_lasti)
            elif event == "return":
                pending = None
                # a function that raises "returns" None from where it stands, which is no return
                if returns and dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("RETURN_VALUE", "RETURN_CONST"):
                    invocation.results.append((frame.f_lineno, seen(value)))
                    invocation.ended = self._recorded
            return watched

        return watched

    def _stores_of(self, code: CodeType) -> dict[int, tuple[tuple[str, ...], int, int]]:
        if code not in self._stores:
            self._stores[code] = dict(_stores(code))
        return self._stores[code]


def _function(code: CodeType) -> Function:
    return Function(code.co_filename, code.co_qualname.replace(".<locals>", ""), code.co_firstlineno)


def _stores(code: CodeType) -> Iterator[tuple[int, tuple[tuple[str, ...], int, int]]]:
    """Yield each instruction that binds variables: its offset, and their names with line and column."""
    inlined: list[tuple[str, dis.Positions]] = []
    for one in dis.get_instructions(code):
        if one.positions is None:
            continue
        if one.opname == "LOAD_FAST_AND_CLEAR":
            inlined.append((one.argval, one.positions))
        if not one.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            continue
        # Python 3.13 joins two instructions into one
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        names = names[:1] if "LOAD" in one.opname else names
        # from Python 3.12 on, what a comprehension binds is bound in the function that it stands in
        own = tuple(name for name in names if not any(name == of and _in(one.positions, at) for of, at in inlined))
        if own:
            column = one.positions.col_offset
            yield one.offset, (own, one.positions.lineno or 0, column if column is not None else NO_COLUMN)


def _in(one: dis.Positions, other: dis.Positions) -> bool:
    """Say whether a place in the source is within another."""
    (line, end, column, end_column), (first, last, left, right) = one, other
    if line is None or end is None or first is None or last is None:
        return one == other
    behind = (first, left or 0) <= (line, column or 0)
    return behind and (end, end_column or 0) <= (last, right or 0)


def _begins(frame: FrameType) -> bool:
    """Say whether a generator or coroutine starts here; where it goes on, its RESUME says behind what."""
    code, at = frame.f_code.co_code, max(frame.f_lasti, 0)
    return dis.opname[code[at]] == "RESUME" and code[at + 1] & 3 == 0


def _arguments(frame: FrameType) -> Iterator[tuple[str, Value]]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    held = frame.f_locals
    for name in code.co_varnames[:count]:
        if name in held:
            yield name, seen(held[name])


def _numbers(frame: FrameType) -> dict[str, int]:
    """Return the whole numbers around: what stands nearer wins."""
    found = {name: value for name, value in frame.f_globals.items() if type(value) is int}
    held = frame.f_locals
    for path in _HOLDERS:
        first, _, rest = path.partition(".")
        holder = held.get(first)
        holder = _attributes(holder).get(rest) if rest else holder
        found |= {name: value for name, value in _attributes(holder).items() if type(value) is int}
    return found | {name: value for name, value in held.items() if type(value) is int}


def _attributes(value: object) -> dict[str, Any]:
    """Return an object's own attributes, without running any code of it."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found
