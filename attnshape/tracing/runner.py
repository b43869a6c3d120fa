"""Runs a target once under the recorder, and returns the recording."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from attnshape.model.trace import Reference
from attnshape.runtime.isolation import isolated, seed_all, unattended
from attnshape.runtime.signals import is_interrupted, reraise_interruption
from attnshape.tracing.calls import OnStep
from attnshape.tracing.containers import module_of, modules_within, named_tensors, source_file, tensor_paths
from attnshape.tracing.failures import describe_failure, release_frames
from attnshape.tracing.frames import Frames
from attnshape.tracing.opaque import NOTE, CompiledCalls, OtherThreads, force_eager
from attnshape.tracing.raw import RawTensor, RawTrace
from attnshape.tracing.recorder import Recorder
from attnshape.tracing.storage import describe_tensor
from attnshape.tracing.tensor_access import shape_of

MOST_VALUES = 1000
"""How many values of a generator are taken; it may be infinite."""


def run_to_completion(result: Any) -> tuple[Any, str | None]:
    """Return a call's result, and a note on what was left out, or None.

    A generator becomes the list of its values, a coroutine what it returns.
    """
    if inspect.iscoroutine(result):
        return run_to_completion(_awaited(result))
    if isinstance(result, (GeneratorType, map, filter, zip)):
        values = list(itertools.islice(_and_its_result(result), MOST_VALUES))
    elif inspect.isasyncgen(result):
        values = _awaited(_collected(result))
    else:
        return result, None
    return values, f"the generator was stopped after {MOST_VALUES} values" if len(values) == MOST_VALUES else None


def _and_its_result(values: Iterable[Any]) -> Iterator[Any]:
    """Yield a generator's values, and then its return value."""
    returned: Any = yield from values  # type: ignore[func-returns-value]  # a generator may return something
    if returned is not None:
        yield returned


async def _collected(values: AsyncIterator[Any]) -> list[Any]:
    collected = []
    async for value in values:
        collected.append(value)
        if len(collected) == MOST_VALUES:
            break
    return collected


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # imported only if needed

    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)  # in a notebook a loop is running already, and asyncio.run refuses to start
    try:
        return asyncio.run(coroutine)
    finally:
        asyncio._set_running_loop(running)


_THREADS = "another thread of the code worked on tensors: its steps can't be seen"


@dataclass
class Runnable:
    """A callable with its arguments, ready to be called once."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    """The claims that its case function returns."""
    made_in: frozenset[torch.dtype] = frozenset()
    """The dtypes of its parameters as the user's code made them, before they were moved to the run's dtype."""
    is_uncompiled: bool = False
    """Whether it is the original of a module that the user's code compiles."""

    def call(self) -> object:
        """Call it without a recorder."""
        return self.function(*self.args, **self.kwargs)

    def named_inputs(self) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments, named by the callable's parameters."""
        return list(dict(item for name, value in self.bound().items() for item in tensor_paths(name, value)).items())

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return every parameter and buffer of the called module with its path."""
        return named_tensors(self.function)

    @property
    def signature_of(self) -> Callable[..., Any]:
        """The callable whose signature counts: a module's `forward`, else the callable itself."""
        return self.function.forward if isinstance(self.function, torch.nn.Module) else self.function

    @property
    def parameter_names(self) -> set[str]:
        """The names of the callable's parameters, whether or not they are given; empty for most built-ins."""
        try:
            return set(inspect.signature(self.signature_of).parameters)
        except (TypeError, ValueError):
            return set()

    @property
    def left_at_none(self) -> list[str]:
        """The names of parameters that are None by default, such as those of a mask or a cache, and aren't given."""
        try:
            parameters = inspect.signature(self.signature_of).parameters
        except (TypeError, ValueError):
            return []
        given = self.bound()
        return [name for name, one in parameters.items() if one.default is None and name not in given]

    def bound(self) -> Mapping[str, Any]:
        """Return the arguments by the callable's parameter names."""
        target = self.signature_of
        try:
            arguments = inspect.signature(target).bind(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):  # a built-in without a signature, or wrong arguments, as the call will report
            return {**{f"argument {place}": value for place, value in enumerate(self.args, 1)}, **self.kwargs}
        flat: dict[str, Any] = {}
        for name, value in arguments.items():
            kind = inspect.signature(target).parameters[name].kind
            flat |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return flat


def record(runnable: Runnable, seed: int, grad: bool = False, on_step: OnStep | None = None) -> RawTrace:
    """Call a runnable under the recorder, and return the recording; a failure of the call is part of it.

    With `grad`, autograd records for the parameters' gradients, or for the inputs' if there are no parameters.
    """
    if grad and not any(tensor.requires_grad for _, tensor in runnable.named_parameters()):
        _require_gradients(runnable)
    frames = Frames(frozenset(filter(None, [source_file(runnable.function)])))
    compiled, threads = CompiledCalls(id(sys._getframe()), on_step), OtherThreads()
    recorder = Recorder(frames, module_of(runnable.function), sys._getframe(), threads, compiled.inspect_step)
    parameters = parameters_within(runnable.function, runnable.bound())
    for name, tensor in parameters:
        recorder.registry.register_existing(tensor, Reference(parameter=name))
    measured = _registered_inputs(runnable, recorder)
    seed_all(seed)
    returned: list[tuple[str, Reference]] = []
    failure = stopped = None
    try:
        with torch.set_grad_enabled(grad), threads.track(), force_eager(), recorder:
            result, stopped = run_to_completion(runnable.call())
        returned = [(path, recorder.source_of_result(tensor)) for path, tensor in tensor_paths("output", result)]
    except BaseException as error:  # noqa: BLE001 - the recording keeps whatever the traced code raises
        reraise_interruption(error)
        failure = describe_failure(error, recorder.failure, recorder.registry)
        release_frames(error)
    if is_interrupted():  # and the traced code caught the exception
        raise KeyboardInterrupt
    raw = recorder.result(measured, returned, failure)
    raw.parameters = {name: shape_of(tensor) for name, tensor in parameters}
    notes = (
        stopped,
        _THREADS if threads.created_any else None,
        NOTE if compiled.found or runnable.is_uncompiled else None,
    )
    raw.notes += [note for note in notes if note is not None]
    return raw


def _require_gradients(runnable: Runnable) -> None:
    for _, tensor in runnable.named_inputs():
        if tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_()


def _registered_inputs(runnable: Runnable, recorder: Recorder) -> list[tuple[str, RawTensor]]:
    """Register the inputs and return what they are; what the run takes from a cache is not kept alive."""
    measured: list[tuple[str, RawTensor]] = []
    inputs = runnable.named_inputs()
    for name, tensor in inputs:
        earlier = next((other for other, value in inputs[: len(measured)] if value is tensor), None)
        again = Reference(input=earlier) if earlier is not None else None
        recorder.registry.register_existing(tensor, Reference(input=name))
        measured.append((name, describe_tensor(tensor, "same" if again else "new", again, again)))
    return measured


def parameters_within(function: Callable[..., Any], bound: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of every module among a callable and its arguments, with their paths."""
    modules = modules_within(function)
    for name, value in bound.items():
        modules += [(f"{name}{path and '.'}{path}", module) for path, module in modules_within(value)]
    return [(f"{path}{path and '.'}{name}", one) for path, module in modules for name, one in named_tensors(module)]


def build_and_record(
    build: Callable[[], Runnable], seed: int, grad: bool = False, on_step: OnStep | None = None
) -> RawTrace:
    """Build a runnable and record its call, isolated from the rest of the process except for the modules it imports.

    If the call imports modules, it is built and recorded again: what a module does on import is not a step of the call.
    """
    for output in (contextlib.nullcontext, unattended):
        with isolated(), output():
            runnable = build()
            loaded = len(sys.modules)
            raw = record(runnable, seed, grad, on_step)
            if len(sys.modules) <= loaded:
                break
    return raw
