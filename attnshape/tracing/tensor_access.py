"""What can be read of a tensor, whatever its kind: its layout, its sizes, the bytes that it takes, and its numbers.

Sparse, nested and mkldnn tensors have no strides; some axes have no single size; some tensors have no numbers that
could be compared. All other modules ask here, so that each such tensor is described alike, and none ends a run.

Nothing here calls a subclass's `__torch_function__`, which is the traced code's.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.masked import MaskedTensor
from torch.nested._internal.nested_tensor import NestedTensor

from attnshape.model.trace import NO_SIZE

UNINITIALIZED = "uninitialized"
"""The layout of a parameter or buffer whose shape the first call of its module decides."""
_MOST_AXES = 64
"""Most of torch's operations take no more axes."""
_PLAIN_TYPES = (Tensor, nn.Parameter)
_LAZY_TYPES = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
_FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_BITS = tuple(
    getattr(torch, name)
    for name in (
        "float4_e2m1fn_x2",
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
        *(f"{sign}int{width}" for sign in ("", "u") for width in range(1, 8)),
    )
    if hasattr(torch, name)
)
"""Dtypes that torch stores but doesn't compute with: their bits are compared."""
_ORDINARY = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    }
)
"""Dtypes with which torch computes."""


class NoNumbersError(Exception):
    """The numbers of a tensor can't be read; the message says why, as the end of a sentence about the tensor."""


def layout_of(tensor: Tensor) -> str | None:
    """Return how a tensor without strides of its own is laid out, such as `sparse_csr`; None for one that has strides.

    A tensor subclass that wraps other tensors has strides, but no memory of its own: its layout is `wrapper`.

    >>> layout_of(torch.ones(2, 3)), layout_of(torch.ones(2, 3).to_sparse())
    (None, 'sparse_coo')
    """
    if type(tensor) in _PLAIN_TYPES and tensor.layout is torch.strided and not tensor.is_nested:
        return None
    with torch._C.DisableTorchFunction():
        if isinstance(tensor, _LAZY_TYPES):
            return UNINITIALIZED
        if tensor.layout is not torch.strided:
            return str(tensor.layout).removeprefix("torch.").lstrip("_")
        if tensor.is_nested:
            return "nested"
        return "wrapper" if _is_wrapper(tensor) else None


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the size of each axis, `NO_SIZE` for one that has none; `()` for a tensor that isn't initialized yet."""
    with torch._C.DisableTorchFunction():
        if isinstance(tensor, _LAZY_TYPES):
            return ()
        if tensor.is_nested and tensor.layout is torch.strided:
            return tuple(_size_in_nested(tensor, axis) for axis in range(tensor.dim()))
        return tuple(size if type(size) is int else NO_SIZE for size in tensor.shape)


def axis_symbols(tensor: Tensor) -> dict[int, str]:
    """Return torch's symbol for each axis that has no single size, such as `j1` for a ragged one; `?` if none."""
    with torch._C.DisableTorchFunction():
        jagged = not (tensor.is_nested and tensor.layout is torch.strided)
        sizes = tensor.shape if jagged and not isinstance(tensor, _LAZY_TYPES) else ()
        symbols = {axis: str(size) for axis, size in enumerate(sizes) if type(size) is not int}
        symbols = {axis: text if text.isidentifier() else "?" for axis, text in symbols.items()}
        return symbols or {axis: "?" for axis, size in enumerate(shape_of(tensor)) if size == NO_SIZE}


def stride_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the stride of each axis in elements; `()` for a tensor that has no strides."""
    with torch._C.DisableTorchFunction():
        if layout_of(tensor) not in (None, "wrapper"):
            return ()
        strides = tensor.stride()
        return strides if all(type(stride) is int for stride in strides) else ()


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements, or of the tensors of which it consists; 0 if they can't be counted."""
    with torch._C.DisableTorchFunction():
        layout = layout_of(tensor)
        if layout is None:
            shape = shape_of(tensor)
            return 0 if NO_SIZE in shape else tensor.itemsize * torch.Size(shape).numel()
        return tensor.untyped_storage().nbytes() if layout == "nested" else sum(part.nbytes for part in _parts(tensor))


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage that holds a tensor's elements; None if it has none, or several."""
    try:
        with torch._C.DisableTorchFunction():
            # torch.func wraps the tensor that owns the storage, which also has the axes that vmap hides
            while _functorch.is_functorch_wrapped_tensor(tensor):
                tensor = _functorch.get_unwrapped(tensor)
            return tensor.untyped_storage() if layout_of(tensor) in (None, "nested") else None
    except (NotImplementedError, RuntimeError):
        return None


def is_mapped(tensor: Tensor) -> bool:
    """Return whether `torch.func.vmap` maps over the tensor, and hides that axis."""
    return _functorch.is_batchedtensor(tensor)


def version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor was written to; None for one that doesn't count that."""
    try:
        with torch._C.DisableTorchFunction():
            return None if is_mapped(tensor) else tensor._version
    except RuntimeError:  # an inference tensor
        return None


def is_ordinary(tensor: Tensor) -> bool:
    """Return whether torch computes with a tensor as with any other: it has strides, numbers, and a common dtype.

    >>> is_ordinary(torch.ones(2)), is_ordinary(torch.ones(2).to_mkldnn()), is_ordinary(torch.ones(2, device="meta"))
    (True, False, False)
    """
    with torch._C.DisableTorchFunction():
        return (
            layout_of(tensor) is None
            and tensor.dtype in _ORDINARY
            and tensor.device.type != "meta"
            and tensor.dim() <= _MOST_AXES
            and not _is_fake(tensor)
            and not is_mapped(tensor)
        )


def numbers_of(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's numbers as an ordinary tensor, by which two tensors of a kind can be compared.

    Sparse and mkldnn tensors become dense, nested ones are padded with zeros, masked-out elements become zero,
    quantized and float8 numbers become float32, and the bits of the smallest dtypes become integers.

    Raises:
        NoNumbersError: The tensor has no numbers, or torch can't read them.

    >>> numbers_of(torch.tensor([[0.0, 2.0]]).to_sparse())
    tensor([[0., 2.]])
    """
    with torch._C.DisableTorchFunction():
        if is_ordinary(tensor):
            return tensor.detach().as_subclass(Tensor).clone()
        if why := _without_numbers(tensor):
            raise NoNumbersError(why)
        try:
            # the traced code's use of the tensor has shown the warnings about its kind already, or will
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _dense(tensor.detach())
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            raise NoNumbersError(f"torch can't read the numbers of {describe_kind(tensor)}") from error


def describe_kind(tensor: Tensor) -> str:
    """Return what kind of tensor it is, with an article: `a sparse_csr tensor`, `a tensor of quint8`."""
    with torch._C.DisableTorchFunction():
        layout = layout_of(tensor)
        if layout in ("wrapper", "jagged"):
            name = type(tensor).__name__
            return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
        if layout is not None:
            return f"{'an' if layout[0] in 'aeiou' else 'a'} {layout} tensor"
        return f"a tensor of {str(tensor.dtype).removeprefix('torch.')}"


def _size_in_nested(tensor: Tensor, axis: int) -> int:
    try:
        return tensor.size(axis)
    except RuntimeError:  # the axis is irregular
        return NO_SIZE


def _is_wrapper(tensor: Tensor) -> bool:
    """Return whether a subclass computes with other tensors, by its own `__torch_dispatch__`."""
    dispatch: Any = type(tensor).__torch_dispatch__
    return dispatch is not Tensor.__torch_dispatch__ and not _is_fake(tensor)


def _without_numbers(tensor: Tensor) -> str | None:
    """Return why a tensor has no numbers that torch could read, as the end of a sentence; None if it may have."""
    if isinstance(tensor, _LAZY_TYPES):
        return "it isn't initialized yet"
    if tensor.device.type == "meta" or _is_fake(tensor):
        return "it has no numbers: it is fake, or on the meta device"
    if is_mapped(tensor):
        return "torch.func.vmap maps over it"
    if tensor.dim() > _MOST_AXES:
        return f"it has {tensor.dim()} axes, and torch compares tensors with up to {_MOST_AXES}"
    if layout_of(tensor) == "wrapper" and not isinstance(tensor, MaskedTensor):
        return f"the subclass {type(tensor).__name__} has operations of its own"
    return None


def _dense(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers. Raises whatever torch raises where it can't read them."""
    if isinstance(tensor, MaskedTensor):
        data, mask = tensor._masked_data, tensor._masked_mask
        return torch.where(_dense(mask).bool(), _dense(data), torch.zeros((), dtype=_dense(data).dtype))
    if tensor.is_nested:
        padded: Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
        return padded
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.dtype in _FLOAT8:
        return tensor.float()
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    if tensor.dtype in _BITS:
        return tensor.contiguous().view(torch.int16 if tensor.itemsize == 2 else torch.uint8).clone()
    return tensor.as_subclass(Tensor).clone()


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the ordinary tensors of which a sparse or jagged tensor consists; none for other layouts."""
    if isinstance(tensor, NestedTensor):
        return [tensor._values, tensor._offsets]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is a fake one; their module takes long to import, and before that there are none."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)
