"""The recorder: a function mode that records each call as a step without changing its result."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attnshape.errors import format_exception
from attnshape.model.trace import Reference
from attnshape.tracing.calls import OnStep, TracedCall, tensors_in
from attnshape.tracing.frames import Frames
from attnshape.tracing.function_mode import CallMode
from attnshape.tracing.opaque import OtherThreads
from attnshape.tracing.passes import collapse_opaque_calls, fold_updates, number_symbols, settle_composites
from attnshape.tracing.raw import RawFailure, RawTensor, RawTrace
from attnshape.tracing.step_log import Scope, StepLog


class ModuleStack:
    """The running modules, innermost last, tracked by hooks on every module call."""

    def __init__(self, root: nn.Module | None, recorder: Recorder) -> None:
        """The recorder takes note of the calls of all modules but the root."""
        self._paths = {id(module): path for path, module in root.named_modules()} if root is not None else {}
        self._root = root
        self._running: list[str | None] = []
        """For each, its path, or that of the innermost module around it that has one."""
        self._recorder = recorder
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    @property
    def path(self) -> str | None:
        """The path of the innermost running module that has one; None for the root."""
        return self._running[-1] or None if self._running else None

    def __enter__(self) -> ModuleStack:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._root = None  # it may hold tensors

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread:  # the hooks see every thread, the recorder watches one
            return
        around = self._running[-1] if self._running else None
        self._running.append(self._paths.get(id(module), around))
        if module is not self._root:
            self._recorder.module_started(module, self.path, args, sys._getframe(1))

    def _leave(self, module: nn.Module, _: object, *rest: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # torch passes no keyword arguments where the module failed
        keywords, result = rest if len(rest) == 2 else ({}, None)
        if module is not self._root:
            self._recorder.module_finished(module, keywords, result)
        if self._running:
            self._running.pop()


class Recorder(CallMode):
    """Records every call that returns tensors, those inside torch's own functions included.

    It keeps no tensor alive. Its own failures are noted in `broken` and never reach the traced code.
    """

    def __init__(
        self,
        frames: Frames,
        root: nn.Module | None,
        stop: FrameType | None,
        threads: OtherThreads,
        on_step: OnStep | None = None,
    ) -> None:
        """`root` gives modules their paths, `stop` is the frame that starts the run; `on_step` follows each step."""
        super().__init__()
        self.broken: str | None = None
        self._log = StepLog(frames, stop, threads, on_step)
        self.steps = self._log.steps
        self.registry = self._log.registry
        self._frames = frames
        self._modules = ModuleStack(root, self)
        self._scopes: list[tuple[nn.Module, Scope]] = []

    @property
    def failure(self) -> RawFailure | None:
        """The last exception that a call raised."""
        return self._log.failure

    @property
    def module_path(self) -> str | None:
        """The path of the innermost running module that has one."""
        return self._modules.path

    def __enter__(self) -> Recorder:
        self._modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._modules.__exit__(*exception)
        self._log.close()
        self._scopes.clear()

    def source_of_result(self, tensor: Tensor) -> Reference:
        """Return where a tensor that the traced code returned comes from."""
        self._guarded(self._log.add_from_other_threads, [tensor], None)
        return self.registry.reference(tensor)

    def result(
        self, inputs: list[tuple[str, RawTensor]], returned: list[tuple[str, Reference]], failure: RawFailure | None
    ) -> RawTrace:
        """Return the recording after all passes over its steps."""
        self._log.failure = None  # its traceback keeps the traced code's variables alive
        raw = RawTrace(inputs, self.steps, returned, failure, self.broken)
        return number_symbols(fold_updates(collapse_opaque_calls(settle_composites(raw))))

    def before_call(self, call: TracedCall, frame: FrameType) -> None:
        """Let pending steps release their tensors before the call."""
        if self._log.has_pending:
            self._guarded(self._log.prepare, frame)

    def after_call(
        self,
        call: TracedCall,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: Any,
        before: Any,
    ) -> Any:
        """Add a step for the call."""
        self._guarded(self._log.add, call, self.count, frame, outputs, written, result)
        return result

    def call_failed(self, error: Exception, call: TracedCall, frame: FrameType) -> None:
        """Keep the facts of the failure."""
        self._guarded(self._log.fail, error, call, frame)

    def enter_composite(self, call: TracedCall, frame: FrameType, barrier: FrameType) -> Scope | None:
        """Add a step for the composite; the steps until its end belong to it."""
        scope: Scope | None = self._guarded(self._log.begin, "function", call, frame, barrier)
        return scope

    def leave_composite(self, scope: Scope | None, call: TracedCall, frame: FrameType, error: Exception | None) -> None:
        """End the composite's step."""
        if error is not None:
            self.call_failed(error, call, frame)
        if scope is not None:
            self._log.end(scope)

    def finish_composite(self, scope: Scope | None, result: Any) -> None:
        """Give the composite's step its outputs."""
        if scope is not None:
            self._guarded(self._log.finish, scope, tensors_in(result), result)

    def module_started(self, module: nn.Module, path: str | None, args: tuple[Any, ...], frame: FrameType) -> None:
        """Add a step for a library's module, which is a composite; name the arguments of the traced code's own."""
        call = TracedCall(module, args, {}, path, tensors_in(args))
        code = getattr(module.forward, "__code__", None)
        if code is not None and not self._frames.belongs_to_library(code):
            self._guarded(self._log.name_arguments, call, frame)
            return
        scope = self._guarded(self._log.begin, "module", call, frame, frame)
        if scope is not None:
            self._scopes.append((module, scope))

    def module_finished(self, module: nn.Module, keywords: dict[str, Any], result: object) -> None:
        """End the module's step, and give it its outputs."""
        places = [place for place, (running, _) in enumerate(self._scopes) if running is module]
        if not places:
            return
        scope = self._scopes[places[-1]][1]
        del self._scopes[places[-1] :]
        self._log.end(scope)
        self._guarded(self._log.add_keywords, scope, tensors_in(keywords))
        self._guarded(self._log.finish, scope, tensors_in(result), result)

    def _guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Run an action, and keep the recorder's own failures from the traced code.

        Neither the mode, which is on while hooks run, nor the code of tensor subclasses sees the action's calls.
        """
        try:
            with torch._C.DisableTorchFunction():
                return action(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the traced code goes on
            self.broken = f"the recorder failed after step {len(self.steps)}: {format_exception(error)}"
            return None
