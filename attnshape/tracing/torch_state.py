"""What torch keeps for the process or thread and the traced code may change: how to read it and to put it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_dispatch_stack,
    _push_on_torch_function_stack,
)
from torch.nn.modules import module as module_hooks
from torch.utils import _device as default_device

Kept = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How to read something, and how to set it."""

_HOOKS = (
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_backward_hooks,
    module_hooks._global_backward_pre_hooks,
)
_leaked: list[object] = []
"""Guards that end a mode which the traced code entered and never left; it ends for good when they are let go."""


def _function_modes() -> list[Any]:
    return [_get_function_stack_at(place) for place in range(_len_torch_function_stack())]


def _set_function_modes(modes: list[Any]) -> None:
    while _len_torch_function_stack():
        _pop_torch_function_stack()
    for mode in modes:
        _push_on_torch_function_stack(mode)


def _dispatch_modes() -> list[Any]:
    return [_get_dispatch_stack_at(place) for place in range(_len_torch_dispatch_stack())]


def _set_dispatch_modes(modes: list[Any]) -> None:
    while _len_torch_dispatch_stack():
        _pop_torch_dispatch_stack(None)
    for mode in modes:
        _push_on_torch_dispatch_stack(mode)


def _device() -> tuple[Any, Any]:
    return default_device.CURRENT_DEVICE, getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _set_device(kept: tuple[Any, Any]) -> None:
    # its mode, if any, is among the function modes and put back with them
    default_device.CURRENT_DEVICE, torch._GLOBAL_DEVICE_CONTEXT.device_context = kept


def _hooks() -> list[dict[int, Any]]:
    return [dict(hooks) for hooks in _HOOKS]


def _set_hooks(kept: list[dict[int, Any]]) -> None:
    for hooks, before in zip(_HOOKS, kept, strict=True):
        hooks.clear()
        hooks.update(before)


def _set_inference_mode(enabled: bool) -> None:
    _leaked.append(torch._C._InferenceMode(enabled))


def _autocast() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return (
        *(torch.is_autocast_enabled(kind) for kind in kinds),
        *(torch.get_autocast_dtype(kind) for kind in kinds),
        torch.is_autocast_cache_enabled(),
    )


def _set_autocast(kept: tuple[Any, ...]) -> None:
    for place, kind in enumerate(("cpu", "cuda")):
        torch.set_autocast_enabled(kind, kept[place])
        torch.set_autocast_dtype(kind, kept[place + 2])
    torch.set_autocast_cache_enabled(kept[4])
    torch.clear_autocast_cache()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _set_print_options(kept: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(kept)


def _backends() -> tuple[bool, ...]:
    cuda: Any = torch.backends.cuda  # torch leaves it untyped
    cudnn = torch.backends.cudnn
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.deterministic,
        torch.backends.mha.get_fastpath_enabled(),
    )


def _set_backends(kept: tuple[bool, ...]) -> None:
    cuda: Any = torch.backends.cuda  # torch leaves it untyped
    cudnn = torch.backends.cudnn
    setters = (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp)
    for set_, value in zip(setters, kept, strict=False):
        set_(value)
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = kept[4:7]
    torch.backends.mha.set_fastpath_enabled(kept[7])


def _cuda_random() -> list[Any] | None:
    cuda: Any = torch.cuda  # torch leaves it untyped
    # asking starts CUDA where it hasn't been started
    return cuda.get_rng_state_all() if cuda.is_initialized() else None


def _set_cuda_random(kept: list[Any] | None) -> None:
    if kept is not None:
        torch.cuda.set_rng_state_all(kept)


KEPT: tuple[Kept, ...] = (
    # the modes first: what comes after must not run under one
    (_function_modes, _set_function_modes),
    (_dispatch_modes, _set_dispatch_modes),
    (torch.is_inference_mode_enabled, _set_inference_mode),
    (_device, _set_device),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_autocast, _set_autocast),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (_deterministic, lambda kept: torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
    (_print_options, _set_print_options),
    (_hooks, _set_hooks),
    (_backends, _set_backends),
)


def _cpu_random() -> bytes:
    # a tensor that is kept would count in what the traced code allocates
    return torch.get_rng_state().numpy().tobytes()


def _set_cpu_random(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


RANDOM: tuple[Kept, ...] = ((_cpu_random, _set_cpu_random), (_cuda_random, _set_cuda_random))
