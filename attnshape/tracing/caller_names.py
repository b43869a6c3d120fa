"""Names what a function of the traced code returns by the variable to which its caller binds it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

from torch import Tensor

from attnshape.runtime.variables import read_variables
from attnshape.tracing.frames import Frames
from attnshape.tracing.source_locations import SourceLocator

GiveName = Callable[[Tensor, str, int], bool]
"""Names a tensor if a step after the given number made it, and returns whether it did."""


@dataclass(slots=True)
class _RunningCall:
    """A call in the traced code of a function that is its own too, while that function runs."""

    code: CodeType
    instruction: int
    """Where the call is in its frame."""
    targets: tuple[str, ...]
    """The variables to which its result is bound."""
    since: int
    """The number of steps before the call."""


class CallerNames:
    """Follows the calls of functions of the traced code, from step to step.

    The caller's variable is read at the next step after the call, in a frame that is running then: so no frame and no
    tensor is kept. A result that its caller returns without another step keeps the name that it has inside.
    """

    def __init__(self, frames: Frames, stop: FrameType | None, locator: SourceLocator, give: GiveName) -> None:
        """`stop` is the frame that started the run."""
        self._frames = frames
        self._stop = stop
        self._locator = locator
        self._give = give
        self._last: tuple[int, CodeType | None, int] = (0, None, 0)
        """The frame of the last step, and where it was: from one that only went on, nothing has returned."""
        self._calls: dict[int, _RunningCall] = {}
        """By the id of the caller's frame, which is checked against its code, as a later frame may have the same id."""

    def at_step(self, frame: FrameType, steps: int) -> None:
        """Name what has been returned since the last step; `frame` makes the next one, after so many steps."""
        place = (id(frame), frame.f_code, frame.f_lasti)
        went_on = place[:2] == self._last[:2] and place[2] > self._last[2]
        self._last = place
        if went_on and id(frame) not in self._calls:
            return
        self._name_results(frame)
        self._calls.pop(id(frame), None)
        running = {id(frame)}
        for caller in self._callers(frame):
            running.add(id(caller))
            named, call = self._name_results(caller), self._calls.get(id(caller))
            if call is None or (call.code, call.instruction) != (caller.f_code, caller.f_lasti):
                targets = self._targets(caller)
                self._calls[id(caller)] = _RunningCall(caller.f_code, caller.f_lasti, targets, steps)
            elif named:  # and is called again at the same place
                call.since = steps
        for returned in self._calls.keys() - running:
            del self._calls[returned]

    def close(self) -> None:
        """Release the frame that started the run."""
        self._calls.clear()
        self._last = (0, None, 0)
        self._stop = None

    def _callers(self, frame: FrameType) -> Iterator[FrameType]:
        """Yield the frames of the traced code that called a frame, the innermost first."""
        outer = frame.f_back
        while outer is not None and outer is not self._stop:
            if self._frames.kind(outer.f_code) == "own":
                yield outer
            outer = outer.f_back

    def _targets(self, caller: FrameType) -> tuple[str, ...]:
        place, node = self._locator.find(caller)
        return tuple(filter(None, place.targets)) if isinstance(node, ast.Call) else ()

    def _name_results(self, caller: FrameType) -> bool:
        """Name the results of the last call that was seen in a frame; return whether there were any."""
        call = self._calls.get(id(caller))
        if call is None or call.code is not caller.f_code or not call.targets:
            return False
        bound = read_variables(caller, call.targets)
        named = [self._give(value, name, call.since) for name, value in bound.items() if isinstance(value, Tensor)]
        return any(named)
