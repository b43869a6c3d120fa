"""What a run costs, measured without attnshape: by a dispatch mode, saved_tensors_hooks and torch's profiler alone."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnshape.options.spec import RunOptions
from attnshape.runtime.isolation import isolated, seed_all
from attnshape.targets.target import Target

_aten = torch.ops.aten


class Independent(TorchDispatchMode):
    """Counts the matrix products of a run by their shapes, the bytes it makes, and those it saves."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.made = self.saved = 0
        self.own: set[int] = set()
        self._kept: dict[int, StorageWeakRef] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.__exit__(*exception)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own and storage._cdata not in self._kept:
            self._kept[storage._cdata] = StorageWeakRef(storage)
            self.saved += storage.nbytes()
        return tensor.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = {
            one.untyped_storage()._cdata: one.untyped_storage()
            for one in tree_leaves(result)
            if isinstance(one, Tensor)
        }
        self.made += sum(storage.nbytes() for key, storage in made.items() if key not in before)
        self.products += products(func.overloadpacket, args)
        return result


def storages(values: object) -> dict[int, torch.UntypedStorage]:
    tensors = [one for one in tree_leaves(values) if isinstance(one, Tensor)]
    return {one.untyped_storage()._cdata: one.untyped_storage() for one in tensors}


def products(packet: Any, args: Any) -> int:
    """Return 2·m·n·k of each product of matrices that an operator makes."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    if packet in (_aten.addmm, _aten.addbmm, _aten.baddbmm):
        tensors = tensors[1:]
    if packet in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addbmm):
        return 2 * math.prod(tensors[0].shape) * tensors[1].shape[-1]
    if packet in (_aten.mv, _aten.dot):
        return 2 * math.prod(tensors[0].shape)
    if packet is _aten.addmv:
        return 2 * math.prod(tensors[1].shape)
    if packet is _aten._scaled_dot_product_flash_attention_for_cpu:
        query, key, value = tensors[:3]
        return 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    if packet is _aten.convolution:
        values, weight = tensors[:2]
        stride, padding, dilation = args[3:6]
        assert not args[6], "transposed"
        out = [
            (size + 2 * pad - step * (width - 1) - 1) // jump + 1
            for size, width, jump, pad, step in zip(
                values.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
            )
        ]
        return 2 * values.shape[0] * math.prod(weight.shape) * math.prod(out)
    return 0


class Live(TorchDispatchMode):
    """The most bytes of storages that were alive at once, while a target was built and while it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.scalars = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.__exit__(*exception)

    def _pack(self, tensor: Tensor) -> Tensor:
        self._see(tensor)
        return tensor.detach()

    def _see(self, values: object) -> None:
        for key, storage in storages(values).items():
            if key not in self._alive or self._alive[key][0].expired():
                self._alive[key] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see((args, kwargs, result))
        # a factor that is a number is saved in a tensor of 8 bytes, of which neither the mode nor the hooks are told
        self.scalars += func.overloadpacket in (_aten.mul, _aten.div) and not isinstance(args[1], Tensor)
        return result


def measure_peak(target: Target, numbers: Mapping[str, int]) -> Live:
    """Build a target and run it once at these sizes, with gradients."""
    live = Live()
    run_target(target, numbers, building=live)
    return live


def profile_peak(target: Target, numbers: Mapping[str, int]) -> int:
    """Build a target and run it once at these sizes, with gradients; return the most bytes that were allocated at once.

    torch's profiler is told of each block, those that kernels allocate for themselves and numbers that autograd saves
    too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run_target(target, numbers)
    events = profiled.profiler.kineto_results.events()
    blocks = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in blocks))


def measure(target: Target, numbers: Mapping[str, int]) -> Independent:
    """Run a target once at these sizes, with gradients, as `attnshape trace --cost` does."""
    independent = Independent()
    run_target(target, numbers, running=independent)
    return independent


def run_target(
    target: Target,
    numbers: Mapping[str, int],
    *,
    building: AbstractContextManager[Any] | None = None,
    running: Independent | None = None,
) -> None:
    """Build a target and run it once at these sizes, with gradients, under one mode for both or one for the run."""
    with isolated(), building or contextlib.nullcontext():
        runnable = target.build(numbers, RunOptions())
        parameters = [tensor for _, tensor in runnable.named_parameters()]
        if not any(tensor.requires_grad for tensor in parameters):
            for _, tensor in runnable.named_inputs():
                if tensor.is_floating_point() and tensor.is_leaf:
                    tensor.requires_grad_()
        seed_all(0)
        if running is not None:
            running.own = {one.untyped_storage()._cdata for one in parameters if isinstance(one, nn.Parameter)}
        with torch.enable_grad(), running or contextlib.nullcontext():
            result = runnable.call()
        del result
