"""Counts, below autograd, what each step of a run computes, reads, writes, copies and saves for the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from attnshape.cost.operations import count_operations, count_products, tensors_within
from attnshape.cost.traffic import bytes_moved
from attnshape.cost.weights import count_weights
from attnshape.tracing.raw import RawCost, RawTrace
from attnshape.tracing.tensor_access import storage_of

_REFUSED = "support saved tensor hooks"
"""How torch.func says that it can't work under the hooks that show what is saved."""


@dataclass
class _Segment:
    """What happened since the step before."""

    flops: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    moved: list[int] | None = field(default_factory=list)
    made: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    """Each new storage with its bytes; a storage that nobody holds any more keeps its identity, not its memory."""
    temporary: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    weights: int = 0
    needless: int = 0

    def end(self, outputs: Sequence[Tensor]) -> None:
        """End the step with its results: what else it made is temporary."""
        kept = _keys(outputs)
        self.temporary += [size for key, (_, size) in self.made.items() if key not in kept]
        self.made.clear()

    @property
    def cost(self) -> RawCost:
        """What was counted."""
        return RawCost(
            flops=None if self.unknown else tuple(self.flops),
            products=tuple(self.products),
            moved=tuple(self.moved) if self.moved is not None else None,
            temporary=tuple(self.temporary),
            saved=tuple(self.saved),
            unknown=tuple(dict.fromkeys(self.unknown)),
            weights=self.weights,
            needless=self.needless,
        )


def record_counted(record: Callable[[OperationCounter], RawTrace], grad: bool = True) -> RawTrace:
    """Return a recording with the cost of each step.

    Where torch.func refuses to work under the hooks that show what is saved, it is recorded again without them.

    Args:
        record: Records a run, and marks its steps in the counter.
        grad: Whether it records gradients; without them it is unknown what a backward pass would need.
    """
    for sees_saved in (grad, False):
        with OperationCounter(sees_saved) as counter:
            raw = record(counter)
        if raw.failure is None or _REFUSED not in str(raw.failure.error):
            break
    return counter.with_costs(raw)


class OperationCounter(TorchDispatchMode):
    """A context manager that counts what each step of one recorded run costs; it keeps no tensor alive.

    The run's steps are marked with `mark_step`; `with_costs` gives the numbers to the steps of its recording. What it
    can't count is unknown, and never stops the run.
    """

    supports_higher_order_operators = True
    """Such as that of flex_attention: torch runs what is inside without the mode."""

    def __init__(self, sees_saved: bool = True) -> None:
        """`sees_saved` says whether to count what is saved for the backward pass; else that is unknown."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped
        self._sees_saved = sees_saved
        self._segments = [_Segment()]
        self._parameters: dict[int, int] = {}
        self._saved: dict[int, StorageWeakRef] = {}
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> OperationCounter:
        if self._sees_saved:
            self._hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        operands = tensors_within((*args, *keywords.values()))
        before = _keys(operands)
        result = func(*args, **keywords)
        # whatever a tensor of the traced code does, the run goes on
        try:
            with torch._C.DisableTorchFunction():
                self._count(func, args, keywords, result, before)
        except Exception:  # noqa: BLE001
            self._segments[-1].unknown.append(str(func))
            self._segments[-1].moved = None
        return result

    def mark_built(self, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Begin to count: the target is built, with its inputs, parameters and buffers; the last call counts."""
        own = [one for one in parameters if isinstance(one, nn.Parameter)]
        sizes = {storage._cdata: one.numel() for one in own if (storage := storage_of(one)) is not None}
        self._parameters = sizes
        self._saved = {}
        self._segments = [_Segment()]

    def mark_step(self, outputs: Sequence[Tensor]) -> None:
        """End a step that returned these tensors."""
        self._segments[-1].end(outputs)
        self._segments.append(_Segment())

    def with_costs(self, raw: RawTrace) -> RawTrace:
        """Return a recording of the run with the cost of each step that is not a composite.

        What a step cost that was merged into a later one is counted there. If the marks don't match the steps, the
        recording is returned as it is.
        """
        single = sorted((step for step in raw.steps if step.order is not None), key=lambda step: step.order or 0)
        if len(self._segments) <= (single[-1].order or 0 if single else 0):
            return raw
        segments = [self._of(segment) for segment in self._segments]
        costs: dict[int, RawCost] = {}
        begin = 0
        for step in single:
            end = step.order or 0
            costs[end] = joined(segments[begin:end])
            begin = end
        steps = [replace(s, cost=costs.get(s.order)) if s.order is not None else s for s in raw.steps]
        parameters = tuple(self._parameters.values())
        return replace(raw, steps=steps, cost=joined(segments), trained=parameters)

    def _of(self, segment: _Segment) -> RawCost:
        return segment.cost if self._sees_saved else replace(segment.cost, saved=None)

    def _save(self, tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in self._parameters and storage._cdata not in self._saved:
            self._saved[storage._cdata] = _weak(storage)
            self._segments[-1].saved.append(storage.nbytes())
        with torch._C.DisableTorchFunction():
            return tensor.detach()  # a result that is saved as it is would hold itself

    def _count(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object, before: set[int]
    ) -> None:
        segment = self._segments[-1]
        results = tensors_within(result)
        for one in results:
            storage = storage_of(one)
            if storage is not None and storage._cdata not in before and storage._cdata not in segment.made:
                segment.made[storage._cdata] = (_weak(storage), storage.nbytes())
        flops = count_operations(func, args, kwargs, result)
        if flops is None:
            segment.unknown.append(str(func))
        segment.flops += flops or ()
        segment.products += count_products(func, args, kwargs, result)
        moved = bytes_moved(func, args, kwargs, result, before)
        segment.moved = [*segment.moved, *moved] if segment.moved is not None and moved is not None else None
        weights, needless = count_weights(func, args, kwargs, result)
        segment.weights += weights
        segment.needless += needless


def joined(costs: Sequence[RawCost]) -> RawCost:
    """Return several costs as one, each number in the terms of all."""
    if len(costs) == 1:
        return costs[0]
    return RawCost(
        flops=_chained(cost.flops for cost in costs),
        products=tuple(term for cost in costs for term in cost.products),
        moved=_chained(cost.moved for cost in costs),
        temporary=_chained(cost.temporary for cost in costs),
        saved=_chained(cost.saved for cost in costs),
        unknown=tuple(dict.fromkeys(name for cost in costs for name in cost.unknown)),
        weights=sum(cost.weights for cost in costs),
        needless=sum(cost.needless for cost in costs),
    )


def _chained(parts: Iterable[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    every = list(parts)
    return None if any(part is None for part in every) else tuple(term for part in every for term in part or ())


def _keys(tensors: Iterable[Tensor]) -> set[int]:
    return {storage._cdata for tensor in tensors if (storage := storage_of(tensor)) is not None}


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it untyped
