"""Isolation: what one run of the traced code changes in the process or in torch doesn't reach the next run."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
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

State = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How to read a piece of global state, and how to restore it."""

_CPU_ONLY = (
    torch.version.cuda is None
    and torch.version.hip is None
    and getattr(torch.version, "xpu", None) is None
    and not torch.backends.mps.is_built()
)
"""Whether this build of torch supports no accelerator."""
_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
_HOOKS = (
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_backward_hooks,
    module_hooks._global_backward_pre_hooks,
)
_AUTOCAST_DEVICES = ("cpu", "cuda")
_inference_modes: list[object] = []
"""Guards of the inference modes that were restored; a guard ends its mode when it is deleted."""


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restore global state on exit.

    This covers torch's defaults, modes, flags and hooks; the current folder, the environment, the import path, signal
    handlers and warning filters; and all random number generators. Imported modules stay imported.
    """
    settings = [(read, restore, read()) for read, restore in _SETTINGS]
    generators = [(restore, read()) for read, restore in _GENERATORS]
    try:
        yield
    finally:
        for read, restore, before in settings:
            # one setting that can't be restored must not prevent the others from being restored
            with contextlib.suppress(Exception):
                if read() != before:
                    restore(before)
        for restore, before in generators:
            with contextlib.suppress(Exception):
                restore(before)


def seed_all(seed: int) -> None:
    """Seed the generators of torch and Python, and numpy's if it is in use."""
    if _CPU_ONLY:
        # torch.manual_seed would also record the call stack for each accelerator that isn't initialized yet
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: small tensors gain nothing from more, and on a busy machine threads wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# Python


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - os.chdir takes it back as text
    except OSError:
        return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _set_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _set_import_path(path: list[str]) -> None:
    sys.path[:] = path


def _set_warning_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]  # it is a list, whatever its annotation says
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as warnings.catch_warnings does


def _signal_handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_signal_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        # None stands for a handler that was set from C, which Python can't restore
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _timer_runs() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_timer_runs(runs: bool) -> None:
    if not runs:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _wakeup_descriptor() -> int:
    if threading.current_thread() is not threading.main_thread():
        return -1
    descriptor = signal.set_wakeup_fd(-1)
    _set_wakeup_descriptor(descriptor)
    return descriptor


def _set_wakeup_descriptor(descriptor: int) -> None:
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def _numpy_generator() -> Any:
    # numpy imports its generators only when they are used
    numpy_random = sys.modules.get("numpy.random")
    return numpy_random.get_state() if numpy_random is not None else None


def _set_numpy_generator(state: Any) -> None:
    if state is not None:
        sys.modules["numpy.random"].set_state(state)


def _set_collecting(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


# torch


def _function_modes() -> list[Any]:
    return [_get_function_stack_at(index) for index in range(_len_torch_function_stack())]


def _set_function_modes(modes: list[Any]) -> None:
    while _len_torch_function_stack():
        _pop_torch_function_stack()
    for mode in modes:
        _push_on_torch_function_stack(mode)


def _dispatch_modes() -> list[Any]:
    return [_get_dispatch_stack_at(index) for index in range(_len_torch_dispatch_stack())]


def _set_dispatch_modes(modes: list[Any]) -> None:
    while _len_torch_dispatch_stack():
        _pop_torch_dispatch_stack(None)
    for mode in modes:
        _push_on_torch_dispatch_stack(mode)


def _set_inference_mode(enabled: bool) -> None:
    _inference_modes.append(torch._C._InferenceMode(enabled))


def _device() -> tuple[Any, Any]:
    return default_device.CURRENT_DEVICE, getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _set_device(state: tuple[Any, Any]) -> None:
    # the device's mode, if it has one, is restored with the function modes
    default_device.CURRENT_DEVICE, torch._GLOBAL_DEVICE_CONTEXT.device_context = state


def _autocast() -> tuple[list[tuple[str, bool, torch.dtype]], bool]:
    devices = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES
    ]
    return devices, torch.is_autocast_cache_enabled()


def _set_autocast(state: tuple[list[tuple[str, bool, torch.dtype]], bool]) -> None:
    devices, cached = state
    for device, enabled, dtype in devices:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    torch.clear_autocast_cache()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _print_options() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _set_print_options(options: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(options)


def _hooks() -> list[dict[int, Any]]:
    return [dict(hooks) for hooks in _HOOKS]


def _set_hooks(before: list[dict[int, Any]]) -> None:
    for hooks, kept in zip(_HOOKS, before, strict=True):
        hooks.clear()
        hooks.update(kept)


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


def _set_backends(enabled: tuple[bool, ...]) -> None:
    cuda: Any = torch.backends.cuda  # torch leaves it untyped
    cudnn = torch.backends.cudnn
    setters = (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp)
    for set_enabled, value in zip(setters, enabled, strict=False):
        set_enabled(value)
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = enabled[4:7]
    torch.backends.mha.set_fastpath_enabled(enabled[7])


def _cpu_generator() -> bytes:
    # a tensor kept here would count towards what the traced code allocates
    return torch.get_rng_state().numpy().tobytes()


def _set_cpu_generator(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _cuda_generators() -> list[Any] | None:
    cuda: Any = torch.cuda  # torch leaves it untyped
    # reading them would initialize CUDA
    return cuda.get_rng_state_all() if cuda.is_initialized() else None


def _set_cuda_generators(states: list[Any] | None) -> None:
    if states is not None:
        torch.cuda.set_rng_state_all(states)


_SETTINGS: tuple[State, ...] = (
    # the modes come first, since nothing else may be restored under one
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
    (_timer_runs, _set_timer_runs),
    (_signal_handlers, _set_signal_handlers),
    (_wakeup_descriptor, _set_wakeup_descriptor),
    (_folder, _set_folder),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), _set_import_path),
    (lambda: list(warnings.filters), _set_warning_filters),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _set_collecting),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (threading.getprofile, threading.setprofile),
)
_GENERATORS: tuple[State, ...] = (
    (_cpu_generator, _set_cpu_generator),
    (_cuda_generators, _set_cuda_generators),
    (random.getstate, random.setstate),
    (_numpy_generator, _set_numpy_generator),
)
