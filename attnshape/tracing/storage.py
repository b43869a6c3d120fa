"""Which tensors share memory, and which were written to, without keeping any of them alive."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef

from attnshape.model.trace import Reference, StorageKind
from attnshape.tracing.raw import RawTensor


class TensorRegistry:
    """Where each tensor comes from, and which tensor allocated its memory.

    A weak reference to a storage keeps its address from being reused without keeping its data alive. An address that
    nobody holds would soon belong to another storage.
    """

    def __init__(self) -> None:
        self._roots: dict[int, tuple[StorageWeakRef, Reference]] = {}
        self._tensors: dict[int, tuple[Callable[[], Tensor | None], Reference]] = {}

    def introduce(self, tensor: Tensor, reference: Reference) -> None:
        """Register a tensor that exists before the first step; the first of several names wins."""
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = (weakref.ref(tensor), reference)
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in self._roots:
            self._roots[storage._cdata] = (_weak(storage), reference)

    def reference(self, tensor: Tensor) -> Reference:
        """Return where a tensor comes from: its own reference, else that of its memory, else a constant."""
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        root = self.root(tensor)
        return root if root is not None else Reference(constant=True)

    def root(self, tensor: Tensor) -> Reference | None:
        """Return the tensor that allocated this one's memory, if that was seen."""
        storage = _storage(tensor)
        entry = self._roots.get(storage._cdata) if storage is not None else None
        return entry[1] if entry is not None else None

    def measure(
        self, output: Tensor, reference: Reference, operands: list[Tensor], written: Tensor | None
    ) -> RawTensor:
        """Describe a step's output, and register it under the reference.

        `written` is the operand to which the step wrote in place, if it did.
        """
        storage = _storage(output)
        address = storage._cdata if storage is not None else None
        entry = self._roots.get(address) if address is not None else None
        kind: StorageKind = "new"
        of: Reference | None = None
        root: Reference | None = None
        itself = next((operand for operand in operands if operand is output), None)
        if written is not None and output is written:
            kind, of = "inplace", self.reference(output)
        elif itself is not None:
            kind, of = "same", self.reference(output)
        else:
            # memory not seen before can only be that of an operand not seen before
            unseen = operands if entry is not None else [o for o in operands if not self.is_known(o)]
            sharer = next((o for o in unseen if address is not None and memory_of(o) == address), None)
            if sharer is not None:
                kind, of = "view", self.reference(sharer)
            elif entry is not None:
                kind, of = "view", entry[1]
        if kind != "new":
            root = entry[1] if entry is not None else of
        if entry is None and storage is not None:
            self._roots[storage._cdata] = (_weak(storage), of or reference)
        self._tensors[id(output)] = (weakref.ref(output), reference)
        return describe_tensor(output, kind, of, root)

    def conclude(self, output: Tensor, reference: Reference, before: OperandStates) -> RawTensor:
        """Describe a composite's output as its caller sees it, and register it under the reference.

        What was allocated inside is new to the caller.
        """
        storage = _storage(output)
        address = storage._cdata if storage is not None else None
        entry = self._roots.get(address) if address is not None else None
        kind: StorageKind = "new"
        of: Reference | None = None
        root = entry[1] if entry is not None else None
        itself = next((known for known in before.operands if known.identity == id(output)), None)
        sharer = next((known for known in before.operands if address is not None and known.address == address), None)
        inside = (
            root is not None and root.step is not None and reference.step is not None and root.step > reference.step
        )
        if itself is not None:
            written = itself.version is not None and output._version != itself.version
            kind, of = "inplace" if written else "same", itself.reference
        elif sharer is not None:
            kind, of = "view", sharer.reference
        elif root is not None and not inside:
            kind, of = "view", root
        if storage is not None and kind == "new":
            self._roots[storage._cdata] = (_weak(storage), reference)
        self._tensors[id(output)] = (weakref.ref(output), reference)
        return describe_tensor(output, kind, of, root if kind != "new" else None)

    def before(self, operands: list[Tensor]) -> OperandStates:
        """Return the state of a composite's operands as it begins."""
        return OperandStates(
            [
                OperandState(id(o), memory_of(o), None if o.is_inference() else o._version, self.reference(o))
                for o in operands
            ]
        )

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether this tensor object was registered."""
        known = self._tensors.get(id(tensor))
        return known is not None and known[0]() is tensor

    def forget(self, since: int) -> None:
        """Forget the outputs of a step and of all later ones."""
        self._tensors = {
            key: entry for key, entry in self._tensors.items() if entry[1].step is None or entry[1].step < since
        }
        self._roots = {
            key: entry for key, entry in self._roots.items() if entry[1].step is None or entry[1].step < since
        }


@dataclass(frozen=True, slots=True)
class OperandState:
    """A composite's operand as it was when the composite began; its caller keeps it alive, so its id identifies it."""

    identity: int
    address: int | None
    version: int | None
    reference: Reference


@dataclass(frozen=True, slots=True)
class OperandStates:
    """The operands of a composite as they were when it began."""

    operands: list[OperandState]


def describe_tensor(tensor: Tensor, kind: StorageKind, of: Reference | None, root: Reference | None) -> RawTensor:
    """Return the facts that can be read off a tensor."""
    strided = tensor.layout is torch.strided
    return RawTensor(
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()) if strided else (),
        offset=int(tensor.storage_offset()) if strided else 0,
        dtype=_dtype_name(tensor.dtype),
        device=_device_name(tensor.device),
        itemsize=tensor.itemsize,
        contiguous=strided and tensor.is_contiguous(),
        kind=kind,
        of=of,
        root=root,
    )


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(device)


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return _unwrapped(tensor).untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
        return None


def memory_of(tensor: Tensor) -> int | None:
    """Return what identifies a tensor's storage; None for a tensor without one."""
    storage = _storage(tensor)
    return storage._cdata if storage is not None else None


def is_mapped(tensor: Tensor) -> bool:
    """Return whether `torch.func.vmap` maps over the tensor, and hides that axis."""
    return _functorch.is_batchedtensor(tensor)


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor that holds the numbers, with the axes that vmap hides."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor
