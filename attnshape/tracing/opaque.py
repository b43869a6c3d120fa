"""Code that the recorder can't see into: compiled code, TorchScript, and other threads."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.tracing.calls import tensors_in

NOTE = "compiled code was run as it is written (torch.compile): what the compiler makes of it can't be seen"
_COMPILER = "torch._dynamo.eval_frame"


def force_eager() -> contextlib.AbstractContextManager[Any]:
    """Make compiled functions run eagerly: their compiler fails under a function mode."""
    # where nothing is compiled, the import would take a second
    return torch.compiler.set_stance("force_eager") if _COMPILER in sys.modules else contextlib.nullcontext()


class CompiledCalls:
    """Finds out whether any step came from compiled code, by the frames of each step."""

    def __init__(self, stop: int, on_step: Callable[[], None] | None) -> None:
        """`stop` is the id of the frame that started the run; `on_step` is called after each step too."""
        self.seen = False
        self._file = getattr(sys.modules.get(_COMPILER), "__file__", None)
        self._stop = stop
        self._on_step = on_step

    def stepped(self) -> None:
        """Take note of a step."""
        if self._on_step is not None:
            self._on_step()
        if self.seen or self._file is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._stop and not self.seen:
            within = frame.f_code.co_filename == self._file
            frame = frame.f_back
            # torch compiles some of its own functions, whoever calls them
            if within and frame is not None and not frame.f_globals.get("__name__", "").startswith("torch."):
                self.seen = True


TORCHSCRIPT = "TorchScript"
"""The reason why nothing inside such a call can be seen."""
_CALLED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
ScriptHandler = Callable[[Callable[[], Any], tuple[Any, ...], dict[str, Any], FrameType], Any]
"""Makes a call of TorchScript, given the call itself, its arguments, and the frame that it comes from."""


class ScriptCalls:
    """Hands each call of TorchScript that this thread makes to a function mode, while it is entered.

    TorchScript runs outside of Python and hands no operation to a function mode, and it has no hook. So its classes'
    `__call__` is replaced for that time.
    """

    def __init__(self, handler: ScriptHandler) -> None:
        self._handler: ScriptHandler | None = handler
        self._before: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> ScriptCalls:
        self._before = [kind.__call__ for kind in _CALLED]
        for kind, before in zip(_CALLED, self._before, strict=True):
            kind.__call__ = self._watching(before)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, before in zip(_CALLED, self._before, strict=True):
            kind.__call__ = before
        self._handler = None  # it holds the mode

    def _watching(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def call(called: Any, *args: Any, **keywords: Any) -> Any:
            if self._handler is None or threading.get_ident() != self._thread:
                return before(called, *args, **keywords)
            return self._handler(lambda: before(called, *args, **keywords), args, keywords, sys._getframe(1))

        return call


IN_OTHER_THREAD = "it was made in another thread, whose steps can't be seen"


class OtherThreads:
    """The tensors that threads started by the traced code made, which a function mode can't see."""

    def __init__(self) -> None:
        self._made: dict[int, Callable[[], Tensor | None]] = {}

    @property
    def worked(self) -> bool:
        """Whether another thread made a tensor."""
        return bool(self._made)

    def made(self, tensor: Tensor) -> bool:
        """Return whether another thread made the tensor."""
        reference = self._made.get(id(tensor))
        return reference is not None and reference() is tensor

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors that another thread made."""
        self._made.update((id(tensor), weakref.ref(tensor)) for tensor in tensors)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the threads that start inside the block."""
        before = threading.getprofile()
        # runs at the start of each new thread, in that thread
        threading.setprofile(self._started)
        try:
            yield
        finally:
            threading.setprofile(before)

    def _started(self, *_: object) -> None:
        sys.setprofile(None)
        _ThreadMode(self).__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped


class _ThreadMode(TorchFunctionMode):
    """Notes the tensors that its thread makes; each thread has function modes of its own."""

    def __init__(self, watching: OtherThreads) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._watching.note(tensors_in(result))
        return result
