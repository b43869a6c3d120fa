"""A function mode that keeps every result of a run, and replaces results; calls are numbered as in a recording."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attnshape.inference.dataflow import OutputRef as OutputRef
from attnshape.inference.dataflow import Producer as Producer
from attnshape.tracing.calls import TracedCall
from attnshape.tracing.frames import Frames
from attnshape.tracing.function_mode import CallMode
from attnshape.tracing.operations import ALLOCATIONS, base_name, short_name
from attnshape.tracing.source_locations import FramePosition
from attnshape.tracing.storage import memory_of
from attnshape.tracing.tensor_access import (
    NoNumbersError,
    describe_kind,
    is_mapped,
    is_ordinary,
    numbers_of,
    storage_of,
    version_of,
)

Replace = Callable[[Tensor], Tensor]
"""Returns the replacement of a result."""


@dataclass(slots=True)
class ReplayedCall:
    """One call of a replayed run."""

    order: int
    operation: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    operands: list[Tensor]
    operand_values: list[Tensor]
    """Their numbers before the call; none is to be written to, since several may be views of one copy."""
    sources: list[tuple[Producer, ...]]
    """For each operand, its producer, and the calls that have written to its memory since."""
    outputs: list[Tensor]
    values: list[Tensor]
    """The outputs' numbers after the call, as for the operands."""
    in_place: bool
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why the numbers of an output can't be read, by its place; its copy is then a zero."""
    unusual: str | None = None
    """The kind of the first operand or output with which torch doesn't compute as with others."""
    calls: tuple[FramePosition, ...] = ()
    """Where the traced code's own frames were, the innermost first, if these are kept."""

    @property
    def name(self) -> str:
        """The operation's base name, by which the taxonomy of operations knows it."""
        return base_name(self.operation)

    @property
    def short_name(self) -> str:
        """The operation's name as people write it."""
        return short_name(self.operation)

    @property
    def producers(self) -> set[Producer]:
        """The producers of all operands."""
        return {producer for sources in self.sources for producer in sources}

    @property
    def numel(self) -> int:
        """The number of elements of its first result."""
        return self.values[0].numel()

    @property
    def refs(self) -> list[OutputRef]:
        """The references to its results."""
        return [OutputRef(self.order, place) for place in range(len(self.outputs))]


class Replay(CallMode):
    """Keeps every call between entering and leaving it, and replaces the results that it is told to replace."""

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], patches: Mapping[OutputRef, Replace], frames: Frames | None = None
    ) -> None:
        """`named` are the tensors that exist before the first call, with their names.

        With `frames`, each event also keeps where the traced code's own frames were.
        """
        super().__init__()
        self._frames = frames
        self._stop: FrameType | None = sys._getframe(1)
        self.events: list[ReplayedCall] = []
        self._patches = patches
        self._made: dict[int, Producer] = {}
        """The producer of each tensor, by the tensor's id."""
        self._named = [tensor for _, tensor in named]  # held, so that their ids stay their own
        self._owners: dict[int | None, Producer] = {}
        """What allocated each storage."""
        self._writes: dict[int | None, list[OutputRef]] = {}
        """Which calls wrote to each storage in place."""
        self._copied: dict[int, tuple[Hashable, Tensor]] = {}
        """The last copy of each storage, and how often it was written to before."""
        for name, tensor in named:
            self._made.setdefault(id(tensor), name)
            if (address := memory_of(tensor)) is not None:
                self._owners.setdefault(address, name)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._stop = None  # a frame keeps its variables alive, and this run is one of them

    def before_call(self, call: TracedCall, frame: FrameType) -> list[Tensor]:
        """Return copies of the operands."""
        return copies(call.operands, self._copy)[0]

    def after_call(
        self,
        call: TracedCall,
        frame: FrameType,
        outputs: list[Tensor],
        written: Tensor | None,
        result: Any,
        before: Any,
    ) -> Any:
        """Keep the call, and return its result or what replaces it."""
        sources = [self._sources(operand) for operand in call.operands]
        if base_name(call.name) in ALLOCATIONS:
            # else the numbers that a run doesn't write would differ from run to run
            for output in filter(is_ordinary, outputs):
                output.zero_()
        for place, output in enumerate(outputs):
            ref = OutputRef(self.count, place)
            if (replace := self._patches.get(ref)) is not None:
                if not is_ordinary(output):
                    raise NoNumbersError(f"{describe_kind(output)} can't be replaced")
                new = replace(output.detach().clone())
                if output is written:
                    output.copy_(new)
                else:
                    result = _with(result, output, new)
                    output = outputs[place] = new
            self._made[id(output)] = ref
            if (memory := memory_of(output)) is not None:
                self._owners.setdefault(memory, ref)
                if output is written:
                    self._writes.setdefault(memory, []).append(ref)
        values, unread = copies(outputs, self._copy)
        unusual = next((tensor for tensor in (*call.operands, *outputs) if not is_ordinary(tensor)), None)
        event = ReplayedCall(
            order=self.count,
            operation=call.name,
            function=call.func,
            args=call.args,
            keywords=call.keywords,
            operands=call.operands,
            operand_values=before,
            sources=sources,
            outputs=outputs,
            values=values,
            in_place=written is not None,
            calls=self._own_frames(frame),
            unread=unread,
            # under torch.func.vmap calls see the tensors that are mapped over, as copies without numbers
            unusual=describe_kind(unusual) if unusual is not None and not is_mapped(unusual) else None,
        )
        self.events.append(event)
        return result

    def _copy(self, tensor: Tensor) -> Tensor:
        """Return a tensor's numbers as a view of a copy that has all of its storage, where there is one already.

        Most results of attention are views; with a copy of each, runs would take several times the memory.
        """
        storage = storage_of(tensor)
        with torch._C.DisableTorchFunction():
            if storage is None or not is_ordinary(tensor) or tensor.is_conj() or tensor.is_neg():
                return numbers_of(tensor)
            memory = storage._cdata
            state = (version_of(tensor), len(self._writes.get(memory, ())), tensor.dtype)
            known, copied = self._copied.get(memory, (None, tensor))
            if known == state:
                return copied.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            value = numbers_of(tensor)
            if state[0] is not None and storage.nbytes() == value.nbytes and value.stride() == tensor.stride():
                self._copied[memory] = (state, value)
            return value

    def _own_frames(self, start: FrameType) -> tuple[FramePosition, ...]:
        """Return where the traced code's own frames are now, the innermost first."""
        frames: list[FramePosition] = []
        frame: FrameType | None = start
        while self._frames is not None and frame is not None and frame is not self._stop:
            if self._frames.kind(frame.f_code) == "own":
                frames.append(FramePosition.of(frame))
            frame = frame.f_back
        return tuple(frames)

    def _sources(self, operand: Tensor) -> tuple[Producer, ...]:
        """Return an operand's producer, and the calls that have written to its memory since."""
        memory = memory_of(operand)
        producer = self._made.get(id(operand)) or self._owners.get(memory, "constant")
        since = producer.order if isinstance(producer, OutputRef) else 0
        return (producer, *(write for write in self._writes.get(memory, []) if write.order > since))


def copies(
    tensors: Sequence[Tensor], copy: Callable[[Tensor], Tensor] = numbers_of
) -> tuple[list[Tensor], dict[int, str]]:
    """Return copies of the tensors' numbers, and by its place why a tensor's can't be read; its copy is then a zero."""
    values: list[Tensor] = []
    unread: dict[int, str] = {}
    for place, tensor in enumerate(tensors):
        try:
            values.append(copy(tensor))
        except NoNumbersError as error:
            unread[place] = str(error)
            values.append(torch.zeros(()))
    return values, unread


def _with(result: Any, old: Tensor, new: Tensor) -> Any:
    """Return a call's result with one tensor replaced."""
    return tree_map(lambda item: new if item is old else item, result)
