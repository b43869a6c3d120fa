"""Tracks which tensors share memory and which are modified in place, without keeping them alive."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from attnshape.model.trace import NO_SIZE, Reference, StorageKind
from attnshape.tracing.raw import RawTensor
from attnshape.tracing.tensor_access import (
    axis_symbols,
    bytes_of,
    layout_of,
    shape_of,
    storage_of,
    stride_of,
    version_of,
)


class TensorRegistry:
    """The source of each tensor, and the tensor that allocated its memory.

    A weak reference to a storage keeps its address from being reused, but not its data alive.
    """

    def __init__(self) -> None:
        self._roots: dict[int | None, tuple[StorageWeakRef, Reference]] = {}
        self._tensors: dict[int, tuple[Callable[[], Tensor | None], Reference]] = {}

    def register_existing(self, tensor: Tensor, reference: Reference) -> None:
        """Register a tensor that exists before the first step; of several references the first wins."""
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = (weakref.ref(tensor), reference)
            if self.root(tensor) is None:
                self._allocate(tensor, reference)

    def reference(self, tensor: Tensor) -> Reference:
        """Return the source of a tensor: its own reference, else that of its memory, else a constant."""
        if self.is_known(tensor):
            return self._tensors[id(tensor)][1]
        return self.root(tensor) or Reference(constant=True)

    def root(self, tensor: Tensor) -> Reference | None:
        """Return the tensor that allocated this tensor's memory, if it was recorded."""
        entry = self._roots.get(memory_of(tensor))
        return entry[1] if entry is not None else None

    def register_output(
        self, output: Tensor, reference: Reference, operands: list[Tensor], written: Tensor | None
    ) -> RawTensor:
        """Describe and register a step's output.

        `written` is the operand to which the step wrote in place, if it did.
        """
        address, root = memory_of(output), self.root(output)
        kind: StorageKind = "new"
        of: Reference | None = None
        if any(operand is output for operand in operands) or output is written:
            kind, of = "inplace" if output is written else "same", self.reference(output)
        else:
            # unknown memory can only belong to an unknown operand
            candidates = operands if root is not None else [o for o in operands if not self.is_known(o)]
            sharer = next((o for o in candidates if address is not None and memory_of(o) == address), None)
            if sharer is not None:
                kind, of = "view", self.reference(sharer)
            elif root is not None:
                kind, of = "view", root
        if root is None:
            self._allocate(output, of or reference)
        self._tensors[id(output)] = (weakref.ref(output), reference)
        return describe_tensor(output, kind, of, (root or of) if kind != "new" else None)

    def register_composite_output(self, output: Tensor, reference: Reference, before: list[OperandState]) -> RawTensor:
        """Describe and register a composite's output from its caller's view.

        Memory that was allocated inside is new to the caller.
        """
        address, root = memory_of(output), self.root(output)
        kind: StorageKind = "new"
        of: Reference | None = None
        itself = next((operand for operand in before if operand.identity == id(output)), None)
        sharer = next((operand for operand in before if address is not None and operand.address == address), None)
        if itself is not None:
            written = itself.version is not None and version_of(output) != itself.version
            kind, of = "inplace" if written else "same", itself.reference
        elif sharer is not None:
            kind, of = "view", sharer.reference
        elif root is not None and not (root.step or 0) > (reference.step or 0):
            kind, of = "view", root
        if kind == "new":
            self._allocate(output, reference)
        self._tensors[id(output)] = (weakref.ref(output), reference)
        return describe_tensor(output, kind, of, root if kind != "new" else None)

    def operand_states(self, operands: list[Tensor]) -> list[OperandState]:
        """Return the state of a composite's operands before it runs."""
        return [OperandState(id(o), memory_of(o), version_of(o), self.reference(o)) for o in operands]

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether this tensor object was registered."""
        entry = self._tensors.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def forget(self, since: int) -> None:
        """Forget the outputs of a step and of all later ones."""
        self._tensors = {key: entry for key, entry in self._tensors.items() if (entry[1].step or 0) < since}
        self._roots = {key: entry for key, entry in self._roots.items() if (entry[1].step or 0) < since}

    def _allocate(self, tensor: Tensor, reference: Reference) -> None:
        """Register a tensor as the one that allocated its memory."""
        storage = storage_of(tensor)
        if storage is not None:
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._roots[storage._cdata] = (weak, reference)


@dataclass(frozen=True, slots=True)
class OperandState:
    """The state of a composite's operand before the call; the caller keeps it alive, so its id stays valid."""

    identity: int
    address: int | None
    version: int | None
    reference: Reference


def describe_tensor(tensor: Tensor, kind: StorageKind, of: Reference | None, root: Reference | None) -> RawTensor:
    """Return a tensor's metadata, with its kind and references."""
    layout, shape = layout_of(tensor), shape_of(tensor)
    with torch._C.DisableTorchFunction():
        return RawTensor(
            shape=shape,
            stride=stride_of(tensor),
            offset=int(tensor.storage_offset()) if layout is None else 0,
            dtype=_text(tensor.dtype).removeprefix("torch."),
            device=_text(tensor.device),
            itemsize=tensor.itemsize,
            contiguous=layout in (None, "wrapper") and NO_SIZE not in shape and tensor.is_contiguous(),
            kind="unknown" if kind == "new" and storage_of(tensor) is None else kind,
            of=of,
            root=root,
            bytes=bytes_of(tensor),
            layout=layout,
            symbols=axis_symbols(tensor) if NO_SIZE in shape else {},
        )


_text = functools.cache(str)
"""Caches the names of dtypes and devices, which torch would format each time."""


def memory_of(tensor: Tensor) -> int | None:
    """Return the address that identifies a tensor's storage; None for a tensor without storage."""
    storage = storage_of(tensor)
    return storage._cdata if storage is not None else None
