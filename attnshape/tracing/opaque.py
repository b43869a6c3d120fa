"""Code inside of which the recorder can't observe calls: compiled code, TorchScript, and other threads."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.tracing.calls import OnStep, tensors_in

NOTE = "compiled code was run as it is written (torch.compile): what the compiler makes of it can't be seen"
_COMPILER = "torch._dynamo.eval_frame"


def force_eager() -> contextlib.AbstractContextManager[Any]:
    """Make compiled functions run eagerly: their compiler fails under a function mode."""
    # without compiled code torch._dynamo isn't imported yet, and its import takes a second
    return torch.compiler.set_stance("force_eager") if _COMPILER in sys.modules else contextlib.nullcontext()


class CompiledCalls:
    """Detects from the frames of each step whether it came from compiled code."""

    def __init__(self, stop: int, on_step: OnStep | None) -> None:
        """`stop` is the id of the frame that started the run; `on_step` is called after each step."""
        self.found = False
        self._file = getattr(sys.modules.get(_COMPILER), "__file__", None)
        self._stop = stop
        self._on_step = on_step

    def inspect_step(self, outputs: Sequence[Tensor]) -> None:
        """Inspect the frames of the step that was just recorded, which returned these tensors."""
        if self._on_step is not None:
            self._on_step(outputs)
        if self.found or self._file is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._stop and not self.found:
            is_compiler_frame = frame.f_code.co_filename == self._file
            frame = frame.f_back
            # torch compiles some of its own functions in any case
            if is_compiler_frame and frame is not None and not frame.f_globals.get("__name__", "").startswith("torch."):
                self.found = True


TORCHSCRIPT = "TorchScript"
"""The reason why the inner steps of such a call can't be recorded."""
_SCRIPT_TYPES: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
ScriptHandler = Callable[[Callable[[], Any], tuple[Any, ...], dict[str, Any], FrameType], Any]
"""Handles a TorchScript call: takes a function that makes it, its arguments, kwargs, and the caller's frame."""


class ScriptCalls:
    """A context manager that passes each TorchScript call of this thread to a handler.

    TorchScript runs outside of Python, calls no function mode, and has no hook. So the context replaces `__call__` of
    its classes.
    """

    def __init__(self, handler: ScriptHandler) -> None:
        self._handler: ScriptHandler | None = handler
        self._original_calls: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> ScriptCalls:
        self._original_calls = [kind.__call__ for kind in _SCRIPT_TYPES]
        for kind, before in zip(_SCRIPT_TYPES, self._original_calls, strict=True):
            kind.__call__ = self._wrap(before)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, before in zip(_SCRIPT_TYPES, self._original_calls, strict=True):
            kind.__call__ = before
        self._handler = None  # it keeps the mode alive

    def _wrap(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._handler is None or threading.get_ident() != self._thread:
                return before(function, *args, **kwargs)
            return self._handler(lambda: before(function, *args, **kwargs), args, kwargs, sys._getframe(1))

        return call


IN_OTHER_THREAD = "it was made in another thread, whose steps can't be seen"


class OtherThreads:
    """The tensors created by threads that the traced code started, where the recorder's mode isn't active."""

    def __init__(self) -> None:
        self._references: dict[int, Callable[[], Tensor | None]] = {}

    @property
    def created_any(self) -> bool:
        """Whether another thread created a tensor."""
        return bool(self._references)

    def created(self, tensor: Tensor) -> bool:
        """Return whether another thread created the tensor."""
        reference = self._references.get(id(tensor))
        return reference is not None and reference() is tensor

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Add tensors that another thread created."""
        self._references.update((id(tensor), weakref.ref(tensor)) for tensor in tensors)

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """Track the threads that start inside the block."""
        before = threading.getprofile()
        # runs at the start of each new thread, in that thread
        threading.setprofile(self._on_thread_start)
        try:
            yield
        finally:
            threading.setprofile(before)

    def _on_thread_start(self, *_: object) -> None:
        sys.setprofile(None)
        _ThreadMode(self).__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped


class _ThreadMode(TorchFunctionMode):
    """Registers the tensors that its thread creates; function modes are thread-local."""

    def __init__(self, threads: OtherThreads) -> None:
        super().__init__()
        self._threads = threads

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._threads.add(tensors_in(result))
        return result
