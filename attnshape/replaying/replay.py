"""One run whose every result is kept, and in which results can be replaced: calls count as the recorder counts them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.tracing.call import tensors_in
from attnshape.tracing.composites import Bodies
from attnshape.tracing.frames import Frames
from attnshape.tracing.mapped import is_mapped
from attnshape.tracing.operations import operation_name, reads_attribute, writes_elements
from attnshape.tracing.places import Moment
from attnshape.tracing.storage import memory_of
from attnshape.tracing.versions import version, written

Replace = Callable[[Tensor], Tensor]
"""From a result to what stands in its place."""


class Address(NamedTuple):
    """Which result: the call's number, counted from 1 as in `RawStep.order`, and which of its outputs."""

    order: int
    output: int = 0


Source = Address | str
"""Where an operand is from: another call, or an input, parameter or constant by name."""


@dataclass(slots=True)
class Event:
    """One call of a run."""

    order: int
    operation: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    operands: list[Tensor]
    given: list[Tensor]
    """What the operands held before the call."""
    sources: list[tuple[Source, ...]]
    """For each operand what made it, and what wrote to its memory since."""
    outputs: list[Tensor]
    values: list[Tensor]
    """What the outputs held behind the call."""
    in_place: bool
    calls: tuple[Moment, ...] = ()
    """Where the traced code's own frames were, the innermost first; kept where this was asked for."""

    @property
    def name(self) -> str:
        """The operation's own name, without its class or module."""
        return self.operation.rpartition(".")[2]

    @property
    def addresses(self) -> list[Address]:
        """Where its results are."""
        return [Address(self.order, place) for place in range(len(self.outputs))]


class Replay(TorchFunctionMode):
    """Keeps the calls between entering and leaving it, and replaces the results that it is told to."""

    def __init__(
        self, known: Sequence[tuple[str, Tensor]], patches: Mapping[Address, Replace], frames: Frames | None = None
    ) -> None:
        """`known` are the tensors that are there before the first call, with their names.

        With `frames`, each call has with it where the traced code was.
        """
        super().__init__()
        self._frames = frames
        self._stop = sys._getframe(1)
        self.events: list[Event] = []
        self._patches = patches
        self._bodies = Bodies()
        self._stepped_into: list[Callable[..., Any]] = []
        self._held: dict[int, Source] = {}
        self._before = [tensor for _, tensor in known]
        self._owners: dict[int, Source] = {}
        self._writes: dict[int, list[Address]] = {}
        for name, tensor in known:
            self._held.setdefault(id(tensor), name)
            if (address := memory_of(tensor)) is not None:
                self._owners.setdefault(address, name)

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
            return self._made(func, args, keywords, [args[0]], [args[0].detach().clone()], value)
        body = self._bodies.of(func) if func not in self._stepped_into else None
        if body is not None:
            return self._step_into(body, func, args, keywords)
        operands = tensors_in(args, keywords)
        given = [_kept(operand) for operand in operands]
        versions = [version(operand) for operand in operands]
        result = func(*args, **keywords)
        return self._made(func, args, keywords, operands, given, result, written(func, operands, versions))

    def _step_into(
        self, body: FunctionType, func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        self._stepped_into.append(func)
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped
        try:
            return body(*args, **keywords)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._stepped_into.pop()

    def _made(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
        operands: list[Tensor],
        given: list[Tensor],
        result: Any,
        changed: Tensor | None = None,
    ) -> Any:
        """Keep a call's results, or what stands in their place."""
        outputs = [changed] if writes_elements(func) and changed is not None else tensors_in(result)
        if not outputs:
            return result
        order = len(self.events) + 1
        sources = [self._sources(operand) for operand in operands]
        for place, output in enumerate(outputs):
            replace = self._patches.get(Address(order, place))
            if replace is None:
                continue
            new = replace(output.detach().clone())
            if changed is not None and output is changed:
                output.copy_(new)
            else:
                result = _with(result, output, new)
                outputs[place] = new
        for place, output in enumerate(outputs):
            self._held[id(output)] = Address(order, place)
            memory = memory_of(output)
            if memory is not None:
                self._owners.setdefault(memory, Address(order, place))
                if changed is not None and output is changed:
                    self._writes.setdefault(memory, []).append(Address(order, place))
        values = [_kept(output) for output in outputs]
        name = operation_name(func)
        calls = self._calls() if self._frames is not None else ()
        in_place = changed is not None
        event = Event(order, name, func, args, keywords, operands, given, sources, outputs, values, in_place, calls)
        self.events.append(event)
        return result

    def _calls(self) -> tuple[Moment, ...]:
        """Return where the traced code's own frames are now."""
        found = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self._stop:
            if self._frames is not None and self._frames.kind(frame.f_code) == "own":
                found.append(Moment.of(frame))
            frame = frame.f_back
        return tuple(found)

    def _sources(self, operand: Tensor) -> tuple[Source, ...]:
        """Return what made an operand, and what wrote to its memory since then."""
        memory = memory_of(operand)
        held = self._held.get(id(operand))
        if held is None:
            held = self._owners.get(memory, "constant") if memory is not None else "constant"
        since = held.order if isinstance(held, Address) else 0
        writes = self._writes.get(memory, []) if memory is not None else []
        return (held, *(write for write in writes if write.order > since))


def _kept(tensor: Tensor) -> Tensor:
    """Return a copy to keep; nothing of what vmap maps over, which must not leave it."""
    return torch.zeros(()) if is_mapped(tensor) else tensor.detach().clone()


def _with(result: Any, old: Tensor, new: Tensor) -> Any:
    """Return a call's result with one tensor in the place of another."""
    if result is old:
        return new
    if isinstance(result, (tuple, list)):
        items = [_with(item, old, new) for item in result]
        # torch's named results take one sequence, Python's named tuples their items one by one
        return type(result)(*items) if hasattr(result, "_make") else type(result)(items)
    if isinstance(result, dict):
        return {key: _with(item, old, new) for key, item in result.items()}
    return result
