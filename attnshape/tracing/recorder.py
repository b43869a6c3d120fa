"""The recorder: a function mode that sees each call at the level that people write, and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnshape.model import Reference
from attnshape.tracing import torchscript
from attnshape.tracing.call import Call, tensors_in
from attnshape.tracing.composites import Bodies
from attnshape.tracing.fold import fold
from attnshape.tracing.frames import Frames, calling
from attnshape.tracing.log import Log
from attnshape.tracing.modules import ModuleStack
from attnshape.tracing.nesting import nested
from attnshape.tracing.operations import reads_attribute, writes_elements
from attnshape.tracing.raw import RawFailure, RawStep, RawTensor, RawTrace
from attnshape.tracing.scopes import Scope
from attnshape.tracing.sealed import sealed
from attnshape.tracing.storage import Ledger
from attnshape.tracing.threads import OtherThreads
from attnshape.tracing.versions import version, written


class Recorder(TorchFunctionMode):
    """Records every tensor-producing call between entering and leaving it, and those inside of torch's own functions.

    No tensor is kept alive. A failure of the recorder's own is noted in `broken`, never raised into the traced code.
    """

    def __init__(
        self,
        frames: Frames,
        root: nn.Module | None,
        stop: FrameType | None,
        threads: OtherThreads,
        stepped: Callable[[], None] | None = None,
    ) -> None:
        """`stepped` is called behind each step."""
        super().__init__()
        self.broken: str | None = None
        self._log = Log(frames, stop, threads, stepped)
        self._frames = frames
        self._bodies = Bodies()
        self._stepped_into: list[Callable[..., Any]] = []
        self._modules = ModuleStack(root, self)
        self._scripts = torchscript.ScriptCalls(self._scripted)
        self._scopes: list[tuple[nn.Module, Scope]] = []

    @property
    def steps(self) -> list[RawStep]:
        """The steps so far."""
        return self._log.steps

    @property
    def ledger(self) -> Ledger:
        """Who each tensor is."""
        return self._log.ledger

    @property
    def failure(self) -> RawFailure | None:
        """The last exception that came out of a call."""
        return self._log.failure

    def __enter__(self) -> Recorder:
        self._modules.__enter__()
        self._scripts.__enter__()
        self._watch()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._scripts.__exit__(*exception)
        self._modules.__exit__(*exception)
        self._log.close()
        self._scopes.clear()

    def returned(self, path: str, tensor: Tensor) -> tuple[str, Reference]:
        """Return where a tensor comes from that the traced code returned under a path."""
        self._guarded(self._log.take_from_elsewhere, [tensor], None)
        return path, self.ledger.reference(tensor)

    def result(
        self,
        inputs: list[tuple[str, RawTensor]],
        returned: list[tuple[str, Reference]],
        failure: RawFailure | None,
    ) -> RawTrace:
        """Hand over what was recorded: each composite settled, and each update of an element in one step."""
        self._log.failure = None  # its traceback keeps the traced code's variables alive
        return fold(sealed(nested(RawTrace(inputs, self.steps, returned, failure, self.broken))))

    def _watch(self) -> None:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped

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
            if isinstance(value, Tensor):
                call = Call(func, args, keywords, self._modules.path, [args[0]])
                self._guarded(self._log.add, call, sys._getframe(1), [value], None, value)
            return value
        frame = calling(func, sys._getframe(1))
        call = Call(func, args, keywords, self._modules.path, tensors_in(args, keywords))
        body = self._bodies.of(func) if func not in self._stepped_into else None
        if body is not None:
            return self._step_into(body, call, frame)
        return self._made(call, frame, lambda: func(*args, **keywords))

    def _scripted(
        self, make: Callable[[], Any], args: tuple[Any, ...], keywords: dict[str, Any], frame: FrameType
    ) -> Any:
        """A call of TorchScript is one step; not one that is made to script or trace another."""
        if torch._C._get_tracing_state() is not None:
            return make()
        operands = tensors_in(args, keywords)
        call = Call(torch.jit.ScriptFunction, args, keywords, self._modules.path, operands, torchscript.REASON)

        def watched() -> Any:
            with torch._C._EnableTorchFunction():
                return make()

        with torch._C.DisableTorchFunction():
            return self._made(call, frame, watched)

    def _made(self, call: Call, frame: FrameType, make: Callable[[], Any]) -> Any:
        """Make a call, and write down what it made."""
        if self._log.waits:
            self._guarded(self._log.prepare, frame)
        versions = [version(operand) for operand in call.operands]
        try:
            result = make()
        except Exception as error:
            self._guarded(self._log.fail, error, call, frame)
            raise
        changed = written(call.func, call.operands, versions)
        outputs = [changed] if writes_elements(call.func) and changed is not None else tensors_in(result)
        if outputs:
            self._guarded(self._log.add, call, frame, outputs, changed, result)
        return result

    def _step_into(self, body: FunctionType, call: Call, frame: FrameType) -> Any:
        """Run a composite's body in its place, watched."""
        scope = self._guarded(self._log.begin, "function", call, frame, sys._getframe())
        self._stepped_into.append(call.func)
        self._watch()
        error: Exception | None = None
        try:
            result = body(*call.args, **call.keywords)
        except Exception as raised:
            error = raised
            raise
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._stepped_into.pop()
            if error is not None:
                self._guarded(self._log.fail, error, call, frame)
            if scope is not None:
                self._log.end(scope)
        if scope is not None:
            self._guarded(self._log.finish, scope, tensors_in(result), result)
        return result

    def started(self, module: nn.Module, path: str | None, args: tuple[Any, ...], frame: FrameType) -> None:
        """A module is called: a composite where it is a library's."""
        call = Call(module, args, {}, path, tensors_in(args))
        code = getattr(module.forward, "__code__", None)
        if code is not None and not self._frames.belongs_to_library(code):
            self._unwatched(self._log.name_arguments, call, frame)
            return
        scope = self._unwatched(self._log.begin, "module", call, frame, frame)
        if scope is not None:
            self._scopes.append((module, scope))

    def finished(self, module: nn.Module, keywords: dict[str, Any], result: object) -> None:
        """A module has returned, or failed."""
        while self._scopes and any(running is module for running, _ in self._scopes):
            running, scope = self._scopes.pop()
            if running is module:
                self._log.end(scope)
                self._unwatched(self._log.take_keywords, scope, tensors_in(keywords))
                self._unwatched(self._log.finish, scope, tensors_in(result), result)
                return

    def _unwatched(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Do it, guarded, without seeing the recorder's own calls; hooks run while the mode is on."""
        with torch._C.DisableTorchFunction():
            return self._guarded(action, *arguments)

    def _guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Do it; what goes wrong in the recorder must not reach the traced code."""
        try:
            return action(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the traced code goes on
            self.broken = f"the recorder failed after step {len(self.steps)}: {type(error).__name__}: {error}"
            return None
