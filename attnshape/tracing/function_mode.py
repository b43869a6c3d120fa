"""The function mode that recording and replay share: which calls count, and which composites are entered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.tracing.calls import TracedCall, reads_attribute, tensors_in, writes_elements, writes_receiver
from attnshape.tracing.frames import calling_frame
from attnshape.tracing.opaque import TORCHSCRIPT, ScriptCalls
from attnshape.tracing.tensor_access import version_of

_QUESTIONS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


class CallMode(TorchFunctionMode):
    """Sees each call at the level at which people write it, and numbers those that return or change tensors.

    Subclasses override the hooks. They all enter the same composites, skip the same frames and treat TorchScript as
    the same single call, so that a call has the same number in a recording and in a replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        """How many calls have been numbered so far, counted from 1."""
        self._bodies: dict[Callable[..., Any], FunctionType | None] = {}
        self._entered: list[Callable[..., Any]] = []
        self._scripts = ScriptCalls(self._run_script)

    @property
    def module_path(self) -> str | None:
        """The path of the module that is running, where the subclass knows it."""
        return None

    def before_call(self, call: TracedCall, frame: FrameType) -> Any:
        """Return what `after_call` needs to know of the time before the call."""

    def after_call(
        self,
        call: TracedCall,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: Any,
        before: Any,
    ) -> Any:
        """Take note of a call that returned or changed tensors, and return its result or a replacement of it.

        `self.count` is its number; `written` is the operand that it wrote to in place, and `before` what
        `before_call` returned.
        """
        return result

    def call_failed(self, error: Exception, call: TracedCall, frame: FrameType) -> None:
        """Take note of an exception that a call raised."""

    def enter_composite(self, call: TracedCall, frame: FrameType, barrier: FrameType) -> Any:
        """Take note that a composite begins, and return what identifies it; its body runs under the frame `barrier`."""

    def leave_composite(self, scope: Any, call: TracedCall, frame: FrameType, error: Exception | None) -> None:
        """Take note that a composite's body is over, by an exception where there is one."""

    def finish_composite(self, scope: Any, result: Any) -> None:
        """Take note of what a composite returned."""

    def __enter__(self) -> Any:
        self._scripts.__enter__()
        self._push()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._pop(*exception)
        self._scripts.__exit__(*exception)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if reads_attribute(func):
            value = func(*args, **keywords)
            if not isinstance(value, Tensor):
                return value
            call = TracedCall(func, args, keywords, self.module_path, [args[0]])
            return self._run(call, sys._getframe(1), lambda: value)
        frame = calling_frame(func, sys._getframe(1))
        call = TracedCall(func, args, keywords, self.module_path, tensors_in(args, keywords))
        if isinstance(func, FunctionType) and func not in self._entered:
            if func not in self._bodies:
                self._bodies[func] = _body_of(func)
            if (body := self._bodies[func]) is not None:
                return self._run_composite(body, call, frame)
        return self._run(call, frame, lambda: func(*args, **keywords))

    def _run(self, call: TracedCall, frame: FrameType, make: Callable[[], Any]) -> Any:
        before = self.before_call(call, frame)
        versions = [version_of(operand) for operand in call.operands]
        try:
            result = make()
        except Exception as error:
            self.call_failed(error, call, frame)
            raise
        written = _written(call, versions)
        outputs = [written] if writes_elements(call.func) and written is not None else tensors_in(result)
        if not outputs:
            return result
        self.count += 1
        return self.after_call(call, frame, outputs, written, result, before)

    def _run_composite(self, body: FunctionType, call: TracedCall, frame: FrameType) -> Any:
        scope = self.enter_composite(call, frame, sys._getframe())
        self._entered.append(call.func)
        self._push()
        error: Exception | None = None
        try:
            result = body(*call.args, **call.keywords)
        except Exception as raised:
            error = raised
            raise
        finally:
            self._pop(None, None, None)
            self._entered.pop()
            self.leave_composite(scope, call, frame, error)
        self.finish_composite(scope, result)
        return result

    def _run_script(
        self, make: Callable[[], Any], args: tuple[Any, ...], keywords: dict[str, Any], frame: FrameType
    ) -> Any:
        """Run TorchScript as one call, unless it runs while torch scripts or traces something else."""
        if torch._C._get_tracing_state() is not None:
            return make()
        operands = tensors_in(args, keywords)
        call = TracedCall(torch.jit.ScriptFunction, args, keywords, self.module_path, operands, TORCHSCRIPT)

        def watched() -> Any:
            with torch._C._EnableTorchFunction():
                return make()

        with torch._C.DisableTorchFunction():
            return self._run(call, frame, watched)

    def _push(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped

    def _pop(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]


def _body_of(func: FunctionType) -> FunctionType | None:
    """Return a composite without its hand-over to function modes; None for a function that isn't a composite.

    Such a function asks `has_torch_function` first, and hands the whole call over where the answer is yes. Its body has
    the same code, closure and defaults, but in its globals the answer is no.
    """
    if _QUESTIONS.isdisjoint(func.__code__.co_names):
        return None
    namespace = func.__globals__ | dict.fromkeys(_QUESTIONS, lambda *_: False)
    body = FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _written(call: TracedCall, versions: Sequence[int | None]) -> Tensor | None:
    """Return the first operand that a call wrote to in place, given the operands' versions before the call."""
    for operand, before in zip(call.operands, versions, strict=True):
        if before is not None and version_of(operand) != before:
            return operand
    return call.operands[0] if call.operands and versions[0] is None and writes_receiver(call.func) else None
