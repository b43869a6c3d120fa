"""Tensors of every kind that torch has, and the source of targets that use one of each kind in each position."""

from __future__ import annotations

from dataclasses import dataclass

_CLASSES = '''
class Tagged(torch.Tensor):
    """A subclass with an attribute, and torch's own `__torch_function__`."""

    tag = "tagged"


class Counting(torch.Tensor):
    """A subclass whose `__torch_function__` runs code of its own."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Raising(torch.Tensor):
    """A subclass that supports few functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") not in ("sum", "__get__"):
            raise NotImplementedError(f"Raising has no {func.__name__}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """A wrapper subclass, which has no storage of its own and supports few operations."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.ops.aten.sum.default, torch.ops.aten.mul.Tensor):
            raise NotImplementedError(f"Wrapper has no {func}")
        unwrapped = [value.inner if isinstance(value, Wrapper) else value for value in args]
        result = func(*unwrapped, **(kwargs or {}))
        return Wrapper(result) if result.ndim else result


class Weight(nn.Parameter):
    """A subclass of nn.Parameter."""
'''


@dataclass(frozen=True)
class Kind:
    """One kind of tensor: expressions that make it from `x` (L × D, floating) and use it as `made`."""

    name: str
    make: str
    use: str = "made.sum()"
    varied: bool = True
    """Whether `check` can vary it: torch computes with it as with other tensors, and it has elements."""
    registers: bool = True
    """Whether a module can register it, as a parameter or a buffer; else it holds it as a plain attribute."""


_LOW = (
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
)
_BITS = ("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_INTEGERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FLOATING = ("float16", "bfloat16", "float64", "complex64", "complex128")
_PACKED = "x.detach()[:, :1].contiguous().view(torch.uint8)[:, :2].contiguous()"

KINDS: tuple[Kind, ...] = (
    Kind("sparse_coo", "x.relu().to_sparse()", "torch.sparse.mm(made, x.T)", varied=False),
    Kind(
        "sparse_coo_uncoalesced",
        "torch.sparse_coo_tensor([[0, 0], [1, 1]], x[0, :2], x.shape)",
        "made.coalesce()",
        varied=False,
    ),
    Kind("sparse_coo_hybrid", "x.relu().to_sparse(1)", "made.to_dense()", varied=False),
    Kind("sparse_csr", "x.relu().to_sparse_csr()", "made @ x.T", varied=False),
    Kind("sparse_csc", "x.relu().to_sparse_csc()", "made.to_dense()", varied=False),
    Kind("sparse_bsr", "x.relu().to_sparse_bsr((1, 1))", "made.to_dense()", varied=False),
    Kind("sparse_bsc", "x.relu().to_sparse_bsc((1, 1))", "made.to_dense()", varied=False),
    Kind("mkldnn", "x.float().to_mkldnn()", "made.relu().to_dense()", varied=False),
    Kind("nested_jagged", "torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)", "made * 2", varied=False),
    Kind("nested_strided", "torch.nested.nested_tensor([x, x[:2]])", "made.to_padded_tensor(0.0)", varied=False),
    Kind("masked", "torch.masked.masked_tensor(x, x > 0)", "made.sum(-1)", varied=False),
    Kind("empty_batch", "x[None][:0]", "(made @ made.mT).softmax(-1) @ made", varied=False),
    Kind("empty_length", "x[:0]", "torch.einsum('ld,md->lm', made, x).softmax(-1) @ x", varied=False),
    Kind("empty_keys", "x[:0]", "torch.bmm(x[None], made.T[None]).softmax(-1) @ made", varied=False),
    Kind(
        "empty_heads",
        "x.reshape(-1, 1, x.shape[-1])[:, :0]",
        "torch.einsum('lhd,mhd->hlm', made, made).softmax(-1)",
        varied=False,
    ),
    Kind("empty_width", "x[:, :0]", "(made @ made.T).softmax(-1) @ made", varied=False),
    Kind("empty_reduction", "x[:0]", "made.sum(0) + made.amax(-1).sum()", varied=False),
    Kind("zero_dim", "x.sum()", "made * x"),
    Kind("axes_64", "x.sum().reshape([1] * 64)", "made.sum(63) * made.squeeze(0)"),
    Kind("axes_65", "torch.zeros([1] * 65)", "made.view(1)", varied=False),
    *(Kind(f"{dtype}", f"x.detach().to(torch.{dtype})", "made[0]") for dtype in (*_INTEGERS, *_FLOATING)),
    Kind("complex32", "x.detach().to(torch.complex32)", "made[0]", varied=False),
    *(Kind(dtype, f"x.to(torch.{dtype})", "made.float() @ x.float().T", varied=False) for dtype in _FLOAT8),
    Kind("float4_e2m1fn_x2", f"{_PACKED}.view(torch.float4_e2m1fn_x2)", "made.view(torch.uint8)", varied=False),
    *(
        Kind(dtype, f"x.detach().to(torch.int16).view(torch.{dtype})", "made[0]", varied=False)
        for dtype in (*_LOW, *_BITS)
    ),
    Kind(
        "quantized_per_tensor",
        "torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8)",
        "made.dequantize()",
        varied=False,
    ),
    Kind(
        "quantized_per_channel",
        "torch.quantize_per_channel(x.float(), torch.ones(len(x)), torch.zeros(len(x)), 0, torch.qint8)",
        "made.int_repr()",
        varied=False,
    ),
    Kind("quantized_empty", "torch.empty(x.shape, dtype=torch.quint8)", "made.view(-1)", varied=False),
    Kind("conjugated", "torch.complex(x, x).conj()", "(made * made.resolve_conj()).real"),
    Kind("negated", "torch.complex(x, x).conj().imag", "made * 2"),
    Kind("expanded", "x[:1].expand(4, -1)", "made @ x.T"),
    Kind("overlapping", "x.reshape(-1).as_strided((3, 4), (1, 1))", "made * 2"),
    Kind("not_finite", "torch.full(x.shape, float('nan'))", "made @ x.to(made.dtype).T"),
    Kind("meta", "torch.empty(x.shape, device='meta')", "made @ made.T", varied=False),
    Kind("fake", "FakeTensorMode().from_tensor(x.detach())", "made @ made.T", varied=False),
    Kind("functional", "torch.func.vmap(lambda row: row * 2)(x)", "torch.func.grad(lambda value: value.sum())(made)"),
    Kind("tagged", "x.as_subclass(Tagged)", "made @ made.T"),
    Kind("counting", "x.as_subclass(Counting)", "made @ made.T"),
    Kind("raising", "x.as_subclass(Raising)", registers=False, varied=False),
    Kind("wrapper", "Wrapper(x)", "(made * 2).sum()", registers=False, varied=False),
    Kind("parameter_subclass", "Weight(x.detach())", "made @ made.T"),
    Kind("inference", "in_inference_mode(x)", "made * 1", registers=False, varied=False),
    Kind("hooked", "with_hook(x)", "made * made"),
    Kind("uninitialized", "nn.UninitializedParameter()", "made.requires_grad", varied=False),
    Kind("lazy", "nn.LazyLinear(3).to(x.dtype).weight", "made.requires_grad", varied=False),
    Kind("shared_with_numpy", "torch.from_numpy(x.detach().numpy())", "made * 2"),
)
BY_NAME = {kind.name: kind for kind in KINDS}

_FUNCTIONS = """
def in_inference_mode(x):
    with torch.inference_mode():
        return x.detach() * 1


def with_hook(x):
    hooked = x.detach().clone().requires_grad_()
    hooked.register_hook(lambda grad: grad * 2)
    return hooked


def attend(values):
    scores = values @ values.mT
    weights = (scores * values.shape[-1] ** -0.5).softmax(-1)
    return weights @ values
"""

POSITIONS = ("intermediate", "result", "container", "argument", "held")
"""Where a target has its tensor; each is the name of a target in `source`."""


def source(kind: Kind) -> str:
    """Return a module with a target for each position; each also attends over ordinary values."""
    return f'''"""Targets that use {kind.name}."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
{_CLASSES}
{_FUNCTIONS}

def intermediate(values):
    x = values[0]
    made = {kind.make}
    used = {kind.use}
    context = attend(values)
    return context


def result(values):
    x = values[0]
    context = attend(values)
    made = {kind.make}
    used = {kind.use}
    return made


def container(values):
    x = values[0]
    context = attend(values)
    made = {kind.make}
    used = {kind.use}
    return {{"made": [made, (used, context)], "none": None}}


def consume(made, values):
    x = values[0]
    used = {kind.use}
    context = attend(values)
    return used, context


def argument(B, L, D):
    values = torch.randn(B, L, D)
    x = values[0]
    return consume, ({kind.make}, values)


class Holder(nn.Module):
    def __init__(self, L, D):
        super().__init__()
        x = torch.randn(L, D)
        made = {kind.make}
        if {not kind.registers} or isinstance(made, nn.Parameter):
            self.made = made
        elif type(made) is torch.Tensor and (made.is_floating_point() or made.is_complex()) and made.is_leaf:
            self.made = nn.Parameter(made)
        else:
            self.register_buffer("made", made.detach())

    def forward(self, values):
        x = values[0]
        made = self.made
        used = {kind.use}
        context = attend(values)
        return used, context


def held(B, L, D):
    return Holder(L, D), (torch.randn(B, L, D),)
'''
