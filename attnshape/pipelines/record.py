"""From a `with` block to a trace: records what code that already runs does between entering and leaving it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

import torch

from attnshape.dims.sizes import Sizes
from attnshape.errors import AttnshapeError
from attnshape.model.trace import Reference, Trace
from attnshape.options.spec import RunOptions
from attnshape.pipelines.trace import trace_recording
from attnshape.runtime.files import display_path
from attnshape.tracing.containers import Variables, named_tensors
from attnshape.tracing.failures import describe_failure
from attnshape.tracing.frames import Frames
from attnshape.tracing.opaque import OtherThreads
from attnshape.tracing.raw import RawStep, RawTensor, RawTrace
from attnshape.tracing.recorder import Recorder
from attnshape.tracing.storage import describe_tensor

_HOW = "with attnshape.record(sizes=dict(B=2, L=10)) as recording: …"


class Recording:
    """A recording of one `with` block: enter it once, and read its trace after the block.

    >>> import attnshape, torch
    >>> query, mask = torch.ones(2, 10, 64), torch.ones(2, 10, 1)
    >>> with attnshape.record(sizes=dict(B=2, L=10, D=64)) as recording:
    ...     masked = query * mask
    >>> [named.name for named in recording.trace.inputs]
    ['query', 'mask']
    """

    active = 0
    """The number of recordings that are inside their blocks."""

    def __init__(self, sizes: Sizes, command: str) -> None:
        self._sizes = sizes
        self._command = command
        self._recorder: Recorder | None = None
        self._before: dict[str, RawTensor] = {}
        self._label = ""
        self._result: Trace | Exception | None = None

    @property
    def trace(self) -> Trace:
        """The trace of what ran in the block.

        Raises:
            AttnshapeError: The block hasn't ended, or what it recorded can't be made into a trace.

        >>> import attnshape
        >>> attnshape.record().trace
        Traceback (most recent call last):
            ...
        attnshape.errors.AttnshapeError: there is no trace before the recording's block has ended
        hint: with attnshape.record(sizes=dict(B=2, L=10)) as recording: …
        """
        if isinstance(self._result, Trace):
            return self._result
        if self._result is not None:
            raise AttnshapeError(
                f"the recording can't be made into a trace: {type(self._result).__name__}: {self._result}",
                "record less of the code",
            ) from self._result
        raise AttnshapeError("there is no trace before the recording's block has ended", _HOW)

    def __enter__(self) -> Recording:
        if self._recorder is not None:
            raise AttnshapeError(
                "this recording was entered before; a recording records one block", f"make another: {_HOW}"
            )
        frame = _entering(sys._getframe(1))
        file = frame.f_code.co_filename
        # code typed into a console is in no file
        self._label = "recording" if file.startswith("<") else f"{display_path(file)}:{frame.f_lineno}"
        variables = Variables(frame)
        self._recorder = Recorder(Frames(frozenset({file})), variables, frame.f_back, OtherThreads())
        for name, tensor in named_tensors(variables):
            with contextlib.suppress(Exception):
                self._recorder.registry.register_existing(tensor, Reference(parameter=name))
        for name, tensor in variables.tensors.items():
            # a nested or lazy tensor has no shape to record, and may never be used
            with contextlib.suppress(Exception):
                self._before[name] = describe_tensor(tensor, "new", None, None)
                self._recorder.registry.register_existing(tensor, Reference(input=name))
        self._recorder.__enter__()
        Recording.active += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        if recorder is None or self._result is not None:
            return
        Recording.active -= 1
        recorder.__exit__(kind, error, trace)
        failure = describe_failure(error, recorder.failure, recorder.registry) if error is not None else None
        # the tensors that existed before the block and that it used, in order of first use
        names = dict.fromkeys(
            reference.input for reference in _references(recorder.steps) if reference.input is not None
        )
        raw = recorder.result([(name, self._before[name]) for name in names], [], failure)
        # an outer recording must not see the checks
        with torch._C.DisableTorchFunction():
            try:
                self._result = trace_recording(self._label, self._options(raw), self._sizes, raw)
            except Exception as problem:  # noqa: BLE001 - the user's own exception must get through
                self._result = problem.with_traceback(None)

    def _options(self, raw: RawTrace) -> RunOptions:
        """Return the device and dtype that the code ran in: those of its first floating-point tensor."""
        tensors = [*(tensor for _, tensor in raw.inputs), *(o.tensor for step in raw.steps for o in step.outputs)]
        first = next((tensor for tensor in tensors if "float" in tensor.dtype), None)
        return RunOptions(
            device=first.device if first else "cpu",
            dtype=first.dtype if first else "float32",  # type: ignore[arg-type]  # any that the code uses
            seed=torch.initial_seed(),
            command=self._command,
        )


def _entering(frame: FrameType) -> FrameType:
    """Return the frame of the block: an exit stack may enter on its behalf."""
    while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _references(steps: list[RawStep]) -> Iterator[Reference]:
    for step in steps:
        yield from step.operands
        for output in step.outputs:
            yield from (r for r in (output.tensor.of, output.tensor.root) if r is not None)
