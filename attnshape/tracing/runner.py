"""Runs what was built, once, and returns the raw facts of the run."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnshape.model import Reference
from attnshape.tracing.frames import Frames
from attnshape.tracing.modules import module_of, named_tensors, own_file
from attnshape.tracing.raw import RawFailure, RawTensor, RawTrace
from attnshape.tracing.recorder import Recorder
from attnshape.tracing.storage import facts


@dataclass
class Runnable:
    """Something built and ready to be called once."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self) -> object:
        """Call it, unwatched."""
        return self.function(*self.args, **self.kwargs)

    def named_inputs(self) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments under the callable's own parameter names."""
        return list(dict(item for name, value in self._bound().items() for item in paths(name, value)).items())

    @property
    def signature_of(self) -> Callable[..., Any]:
        """What has the parameters: a module's `forward`, else the callable itself."""
        return self.function.forward if isinstance(self.function, torch.nn.Module) else self.function

    def _bound(self) -> Mapping[str, Any]:
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


def record(runnable: Runnable, seed: int) -> RawTrace:
    """Call it under the recorder; the call's own failure is part of the result."""
    inputs = runnable.named_inputs()
    file = own_file(runnable.function)
    recorder = Recorder(Frames(frozenset({file} if file else ())), module_of(runnable.function), sys._getframe())
    for name, tensor in named_tensors(runnable.function):
        recorder.ledger.introduce(tensor, Reference(parameter=name))
    measured: list[tuple[str, RawTensor]] = []
    for name, tensor in inputs:
        earlier = next((other for other, value in inputs[: len(measured)] if value is tensor), None)
        again = Reference(input=earlier) if earlier is not None else None
        recorder.ledger.introduce(tensor, Reference(input=name))
        measured.append((name, facts(tensor, "same" if again else "new", again, again)))
    torch.manual_seed(seed)
    returned: list[tuple[str, Reference]] = []
    failure = None
    try:
        with torch.no_grad(), recorder:
            result = runnable.call()
        returned = [(path, recorder.ledger.reference(tensor)) for path, tensor in paths("output", result)]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the traced code raises is its result
        known = recorder.failure
        failure = known if known is not None and known.error is error else RawFailure(error)
    return RawTrace(measured, recorder.steps, returned, failure, recorder.broken)


def paths(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value with the paths to them: `output`, `output[0]`, `output.context`, `output['k']`.

    >>> [path for path, _ in paths("output", (torch.ones(1), {"k": torch.ones(1)}))]
    ['output[0]', "output[1]['k']"]
    """
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for attribute in value._fields:
            yield from paths(f"{name}.{attribute}", getattr(value, attribute))
    elif isinstance(value, (tuple, list)):
        for position, item in enumerate(value):
            yield from paths(f"{name}[{position}]", item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from paths(f"{name}.{entry.name}", getattr(value, entry.name, None))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from paths(f"{name}[{key!r}]", item)
