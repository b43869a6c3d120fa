"""Compiled functions and modules: they run as they were written, since what is compiled can't be watched."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

NOTE = "compiled code was run as it is written (torch.compile): what the compiler makes of it can't be seen"
_COMPILER = "torch._dynamo.eval_frame"


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Have compiled functions run as they were written: their compiler can't work while the calls are watched."""
    if _COMPILER not in sys.modules:  # nothing is compiled, and to import it takes a second
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class CompiledCalls:
    """Whether a step was made in something compiled, by the frames that it comes from."""

    def __init__(self, stop: int, stepped: Callable[[], None] | None) -> None:
        """`stop` is the id of the frame that the run was started from; `stepped` is called behind each step too."""
        self.seen = False
        self._file = getattr(sys.modules.get(_COMPILER), "__file__", None)
        self._stop = stop
        self._stepped = stepped

    def stepped(self) -> None:
        """Look where the step comes from, unless that is known."""
        if self._stepped is not None:
            self._stepped()
        if self.seen or self._file is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._stop:
            within = frame.f_code.co_filename == self._file
            frame = frame.f_back
            # some of torch's own functions are compiled, whoever calls them
            if within and frame is not None and not frame.f_globals.get("__name__", "").startswith("torch."):
                self.seen = True
                return
