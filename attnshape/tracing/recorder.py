"""The recorder: a function mode that sees each call at the level that people write, and changes nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnshape.model import Reference
from attnshape.tracing.frames import Frames
from attnshape.tracing.modules import ModuleStack
from attnshape.tracing.naming import calls_itself, plain_variables, rearranges
from attnshape.tracing.operations import (
    operation_name,
    reads_attribute,
    takes_receiver,
    writes_elements,
    writes_receiver,
)
from attnshape.tracing.places import Places
from attnshape.tracing.raw import Place, RawFailure, RawOutput, RawStep
from attnshape.tracing.storage import Ledger, facts


class Recorder(TorchFunctionMode):
    """Records every tensor-producing call between entering and leaving it.

    No tensor is kept alive. A failure of the recorder's own is noted in `broken`, never raised into the traced code.
    """

    def __init__(self, frames: Frames, root: nn.Module | None, stop: FrameType | None) -> None:
        super().__init__()
        self.steps: list[RawStep] = []
        self.failure: RawFailure | None = None
        self.broken: str | None = None
        self.ledger = Ledger()
        self._frames = frames
        self._places = Places()
        self._stop = stop
        self._turns: dict[Place, int] = {}
        self._rearranged: tuple[tuple[int, int] | None, Place, int] | None = None
        self._modules = ModuleStack(root, self._module_started, self._module_finished)

    def __enter__(self) -> Recorder:
        self._modules.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._modules.__exit__(*exception)
        self._guarded(self._settle_rearranged, None)
        self._stop = None  # a frame keeps its variables alive, the result among them

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
            self._guarded(self._record, func, args, keywords, [args[0]], [value], None, value)
            return value
        operands = list(tensors_in((args, keywords)))
        versions = [_version(operand) for operand in operands]
        try:
            result = func(*args, **keywords)
        except Exception as error:
            self._guarded(self._failed, error, func, operands, args, keywords)
            raise
        written = _written(func, operands, versions)
        outputs = [written] if writes_elements(func) and written is not None else list(tensors_in(result))
        if outputs:
            self._guarded(self._record, func, args, keywords, operands, outputs, written, result)
        return result

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do it; what goes wrong in the recorder must not reach the traced code."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the traced code goes on
            self.broken = f"the recorder failed after step {len(self.steps)}: {type(error).__name__}: {error}"

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        operands: list[Tensor],
        outputs: list[Tensor],
        written: Tensor | None,
        result: object,
    ) -> None:
        frame, calls = self._frames.caller(sys._getframe(3), self._stop)
        place, node = self._places.find(frame) if frame is not None else (None, None)
        references = [self.ledger.reference(operand) for operand in operands]
        itself = not calls and node is not None and calls_itself(node, operation_name(func))
        at = (id(frame), frame.f_lasti) if frame is not None else None
        self._settle_rearranged(at)
        variables = plain_variables(node, takes_receiver(func), args, keywords) if itself and node is not None else []
        variables = [(name, tensor) for name, tensor in variables if place is None or name not in place.passing]
        for name, tensor in variables:
            self._name_by_use(tensor, name)
        index = len(self.steps) + 1
        recorded = [
            RawOutput(self.ledger.measure(output, Reference(step=index, output=position), operands, written))
            for position, output in enumerate(outputs)
        ]
        self.steps.append(RawStep(operation_name(func), place, references, recorded, self._modules.path))
        if itself and place is not None:
            self._assign(place, result)
        elif not calls and place is not None and node is not None and rearranges(node) and self._in_einops():
            self._rearranged = (at, place, index)
        for name, tensor in variables:
            if tensor is written:
                self._name(tensor, name)

    def _in_einops(self) -> bool:
        return self._frames.is_einops(sys._getframe(4).f_code)

    def _settle_rearranged(self, at: tuple[int, int] | None) -> None:
        """Name the last step of `q = rearrange(…)` once the code has gone on from there: it is the result."""
        if self._rearranged is None or self._rearranged[0] == at:
            return
        _, place, index = self._rearranged
        self._rearranged = None
        outputs = self.steps[index - 1].outputs
        names = place.targets if not place.unpacked else ()
        if len(names) == len(outputs) == 1 and outputs[0].name is None:
            outputs[0].name = names[0]

    def _assign(self, place: Place, result: object) -> None:
        """Give the tensors in a result the names that the place binds them to."""
        if place.in_turn:
            turn = self._turns[place] = self._turns.get(place, -1) + 1
            name = place.in_turn[turn % len(place.in_turn)]
            if name is not None and isinstance(result, Tensor):
                self._name(result, name)
            return
        values: Sequence[object] = [result]
        if place.unpacked:
            values = result if isinstance(result, (tuple, list)) else []
        if len(place.targets) != len(values):
            return
        for name, value in zip(place.targets, values, strict=True):
            if name is not None and isinstance(value, Tensor):
                self._name(value, name)

    def _name(self, tensor: Tensor, name: str) -> None:
        """Name the output that the tensor is, unless it has a name already."""
        reference = self.ledger.reference(tensor)
        if reference.step is None:
            return
        output = self.steps[reference.step - 1].outputs[reference.output]
        if output.name is None:
            output.name = name

    def _name_by_use(self, tensor: Tensor, name: str) -> None:
        """Name the output by a consumer's variable; what only passed it on leaves the name to where it is from."""
        reference: Reference | None = self.ledger.reference(tensor)
        while reference is not None and reference.step is not None:
            output = self.steps[reference.step - 1].outputs[reference.output]
            if output.tensor.kind not in ("same", "inplace"):
                if output.name is None:
                    output.name, output.by_use = name, True
                return
            reference = output.tensor.of

    def _module_started(self, path: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        self._guarded(self._name_arguments, path, arguments, frame)

    def _name_arguments(self, path: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        """A module is called with plain variables: `self.proj(merged)`."""
        outer, calls = self._frames.caller(frame, self._stop)
        if outer is None or calls != 1:
            return
        _, node = self._places.find(outer)
        if isinstance(node, ast.Call) and calls_itself(node, path):
            for name, tensor in plain_variables(node, False, arguments, {}):
                self._name_by_use(tensor, name)

    def _module_finished(self, module: nn.Module, result: object, frame: FrameType) -> None:
        self._guarded(self._name_result, module, result, frame)

    def _name_result(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """A library's module returned to the traced code: its result is what is assigned there."""
        code = getattr(type(module).forward, "__code__", None)
        if code is None or not self._frames.is_library(code):
            return
        outer, calls = self._frames.caller(frame, self._stop)
        if outer is None or calls != 1:
            return
        place, _ = self._places.find(outer)
        self._assign(place, result)

    def _known_name(self, tensor: Tensor) -> str | None:
        """Return the input, the parameter, or the named result that a tensor is."""
        reference = self.ledger.reference(tensor)
        if reference.step is not None:
            return self.steps[reference.step - 1].outputs[reference.output].name
        return reference.input or reference.parameter

    def _failed(
        self,
        error: Exception,
        func: Callable[..., Any],
        operands: list[Tensor],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        frame, calls = self._frames.caller(sys._getframe(3), self._stop)
        place, node = self._places.find(frame) if frame is not None else (None, None)
        names = {
            id(tensor): name
            for name, tensor in (
                plain_variables(node, takes_receiver(func), args, keywords)
                if not calls and node is not None and calls_itself(node, operation_name(func))
                else []
            )
        }
        self.failure = RawFailure(
            error,
            operation_name(func),
            place,
            [
                (
                    names.get(id(operand)) or self._known_name(operand) or f"operand {position}",
                    facts(operand, "new", self.ledger.reference(operand), self.ledger.root(operand)),
                )
                for position, operand in enumerate(operands, 1)
            ],
        )


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in a value, within tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            if item is not None and not isinstance(item, (int, float, str)):
                yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _written(func: Callable[..., Any], operands: list[Tensor], versions: list[int | None]) -> Tensor | None:
    """Return the first operand that was written to in place; inference tensors count no versions."""
    for operand, before in zip(operands, versions, strict=True):
        if before is not None and operand._version != before:
            return operand
    return operands[0] if operands and versions[0] is None and writes_receiver(func) else None
