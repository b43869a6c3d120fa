"""Runs what was built, once, and returns the raw facts of the run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnshape.ending import reraise_interruption, was_asked
from attnshape.model import Reference
from attnshape.tracing.compiled import NOTE, CompiledCalls, uncompiled
from attnshape.tracing.contained import modules_within, paths
from attnshape.tracing.failed import failure_from, release
from attnshape.tracing.frames import Frames
from attnshape.tracing.isolation import isolated, seed_all
from attnshape.tracing.modules import module_of, named_tensors, own_file
from attnshape.tracing.outcome import run_to_its_end
from attnshape.tracing.raw import RawTensor, RawTrace
from attnshape.tracing.recorder import Recorder
from attnshape.tracing.storage import facts
from attnshape.tracing.threads import OtherThreads

_THREADS = "another thread of the code worked on tensors: its steps can't be seen"


@dataclass
class Runnable:
    """Something built and ready to be called once."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    """What its case says that it is meant to do."""

    def call(self) -> object:
        """Call it, unwatched."""
        return self.function(*self.args, **self.kwargs)

    def named_inputs(self) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments under the callable's own parameter names."""
        return list(dict(item for name, value in self.bound().items() for item in paths(name, value)).items())

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return every parameter and buffer of the module that it calls, under its path."""
        return named_tensors(self.function)

    @property
    def signature_of(self) -> Callable[..., Any]:
        """What has the parameters: a module's `forward`, else the callable itself."""
        return self.function.forward if isinstance(self.function, torch.nn.Module) else self.function

    def bound(self) -> Mapping[str, Any]:
        """Return the arguments under the callable's own parameter names."""
        target = self.signature_of
        try:
            arguments = inspect.signature(target).bind(*self.args, **self.kwargs).arguments
        except (
            TypeError,
            ValueError,
        ):  # built in, without a signature; or wrong arguments, which the call itself reports
            return {**{f"argument {place}": value for place, value in enumerate(self.args, 1)}, **self.kwargs}
        flat: dict[str, Any] = {}
        for name, value in arguments.items():
            kind = inspect.signature(target).parameters[name].kind
            flat |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return flat


def record(runnable: Runnable, seed: int, grad: bool = False, stepped: Callable[[], None] | None = None) -> RawTrace:
    """Call it under the recorder; the call's own failure is part of the result.

    With `grad`, what gradients need is kept: those of the parameters, or where there are none, of the inputs. `stepped`
    is called behind each step.
    """
    inputs = runnable.named_inputs()
    if grad and not any(tensor.requires_grad for _, tensor in runnable.named_parameters()):
        for _, tensor in inputs:
            if tensor.is_floating_point() and tensor.is_leaf:
                tensor.requires_grad_()
    file = own_file(runnable.function)
    frames = Frames(frozenset({file} if file else ()))
    compiled, threads = CompiledCalls(id(sys._getframe()), stepped), OtherThreads()
    recorder = Recorder(frames, module_of(runnable.function), sys._getframe(), threads, compiled.stepped)
    for name, tensor in parameters_within(runnable.function, runnable.bound()):
        recorder.ledger.introduce(tensor, Reference(parameter=name))
    measured: list[tuple[str, RawTensor]] = []
    for name, tensor in inputs:
        earlier = next((other for other, value in inputs[: len(measured)] if value is tensor), None)
        again = Reference(input=earlier) if earlier is not None else None
        recorder.ledger.introduce(tensor, Reference(input=name))
        measured.append((name, facts(tensor, "same" if again else "new", again, again)))
    seed_all(seed)
    returned: list[tuple[str, Reference]] = []
    failure = None
    stopped = None
    try:
        with torch.set_grad_enabled(grad), threads.watched(), uncompiled(), recorder:
            result, stopped = run_to_its_end(runnable.call())
        returned = [recorder.returned(path, tensor) for path, tensor in paths("output", result)]
    except BaseException as error:  # noqa: BLE001 - whatever the traced code raises is its result
        reraise_interruption(error)
        failure = failure_from(error, recorder.failure, recorder.ledger)
        release(error)
    if was_asked():  # and the traced code caught the exception
        raise KeyboardInterrupt
    raw = recorder.result(measured, returned, failure)
    said = (stopped, _THREADS if threads.worked else None, NOTE if compiled.seen else None)
    raw.notes += [note for note in said if note is not None]
    return raw


def parameters_within(function: Callable[..., Any], bound: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of every module that takes part, under the paths to them."""
    modules = modules_within(function) + [
        (f"{name}{path and '.'}{path}", module)
        for name, value in bound.items()
        for path, module in modules_within(value)
    ]
    return [
        (f"{path}{path and '.'}{name}", tensor) for path, module in modules for name, tensor in named_tensors(module)
    ]


def record_anew(
    build: Callable[[], Runnable], seed: int, grad: bool = False, stepped: Callable[[], None] | None = None
) -> RawTrace:
    """Build something and record a call of it, with nothing of it left in the process but the modules it imported.

    Where the call imported any it is built and run again: what a module does as it is imported is no step of the call.
    """
    raw, imported = _built_and_recorded(build, seed, grad, stepped)
    return _built_and_recorded(build, seed, grad, stepped)[0] if imported else raw


def _built_and_recorded(
    build: Callable[[], Runnable], seed: int, grad: bool, stepped: Callable[[], None] | None
) -> tuple[RawTrace, bool]:
    with isolated():
        runnable = build()
        loaded = len(sys.modules)
        raw = record(runnable, seed, grad, stepped)
        return raw, len(sys.modules) > loaded
