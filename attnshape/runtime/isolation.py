"""Isolation: what one run of the traced code changes in the process or in torch doesn't reach the next run."""

from __future__ import annotations

import builtins
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
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

from attnshape.runtime.capture import without_console

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
_AUTOCAST_DEVICES = ("cpu", "cuda")
_cuda: Any = torch.cuda  # torch leaves both untyped
_backends: Any = torch.backends.cuda
_inference_modes: list[object] = []
"""Inference modes that were entered and not left; a mode that is deleted restores what held when it was entered."""


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restore global state on exit.

    This covers torch's defaults, modes, flags and hooks; the standard streams, the current folder, the environment, the
    import path, signal handlers and warning filters; and all random number generators. Imported modules stay imported.
    """
    settings = [(read, restore, read()) for read, restore in _SETTINGS]
    generators = [(restore, read()) for read, restore in _GENERATORS]
    try:
        with _standard_streams_kept():
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


_NAMESPACES: dict[str, Any] = {
    **{module.__name__: module for module in (builtins, gc, os, random, signal, sys, threading, time, warnings, torch)},
    "torch.Tensor": torch.Tensor,
}


def _public_names() -> dict[str, Any]:
    """Return what the public names of Python and torch stand for."""
    return {
        f"{prefix}.{name}": value
        for prefix, owner in _NAMESPACES.items()
        for base in reversed(getattr(owner, "__mro__", (owner,)))
        for name, value in vars(base).items()
        if not name.startswith("_")
    }


_ORIGINAL = {name: value for name, value in _public_names().items() if callable(value) or hasattr(value, "__get__")}


def replaced_functions() -> dict[str, Any]:
    """Return the public functions and properties of Python and torch that are others now, and what they are."""
    now = _public_names()
    return {name: now.get(name) for name, value in _ORIGINAL.items() if now.get(name) is not value}


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


@contextlib.contextmanager
def unattended() -> Iterator[None]:
    """Discard what a run prints: the user sees the output of the run at the user's sizes only, and is asked only there.

    A warning that is given once in a process isn't used up.
    """
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with without_console(), warnings.catch_warnings():
            yield
    finally:
        torch.set_warn_always(always)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return what identifies an open file, None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _standard_streams_kept() -> Iterator[None]:
    """Restore descriptors 0 to 2 on exit, which code may close or redirect."""
    kept: list[tuple[int, int, tuple[int, int]]] = []
    with contextlib.suppress(OSError):  # the code may have left no descriptors
        for number in range(3):
            if (identity := _identity(number)) is not None:
                kept.append((number, os.dup(number), identity))  # noqa: PERF401 - the first ones count if one fails
    try:
        yield
    finally:
        for number, copy, identity in kept:
            if _identity(copy) == identity:  # else the code has closed the copy as well
                if _identity(number) != identity:
                    os.dup2(copy, number)
                os.close(copy)


def _unless_none(restore: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda before: restore(before) if before is not None else None


def _attribute(owner: Any, name: str) -> State:
    return partial(getattr, owner, name, None), partial(setattr, owner, name)


def _contents(container: Callable[[], Any]) -> State:
    """Return the state of a list or a dict that stays the same object."""

    def restore(before: Any) -> None:
        container().clear()
        (container().extend if isinstance(before, list) else container().update)(before)

    return lambda: container().copy(), restore


# Python


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - os.chdir takes it back as text
    except OSError:
        return None


def _set_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


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


# torch


def _modes(length: Callable[[], int], at: Callable[[int], Any], pop: Callable[[], Any], push: Any) -> State:
    """Return the state of a stack of modes."""

    def restore(modes: list[Any]) -> None:
        while length():
            pop()
        for mode in modes:
            push(mode)

    return lambda: [at(index) for index in range(length())], restore


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


def _set_inference_mode(enabled: bool) -> None:
    # the mode that the traced code entered would end in the middle of a later run, when its module is collected
    entered = (found for found in gc.get_objects() if type(found) is torch.inference_mode)
    _inference_modes.extend((*entered, torch._C._InferenceMode(enabled)))


def _cpu_generator() -> bytes:
    # a tensor kept here would count towards what the traced code allocates
    return torch.get_rng_state().numpy().tobytes()


def _set_cpu_generator(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _cuda_generators() -> list[Any] | None:
    # reading them would initialize CUDA
    return _cuda.get_rng_state_all() if _cuda.is_initialized() else None


_SETTINGS: tuple[State, ...] = (
    # the modes come first, since nothing else may be restored under one
    _modes(_len_torch_function_stack, _get_function_stack_at, _pop_torch_function_stack, _push_on_torch_function_stack),
    _modes(
        _len_torch_dispatch_stack,
        _get_dispatch_stack_at,
        partial(_pop_torch_dispatch_stack, None),
        _push_on_torch_dispatch_stack,
    ),
    (torch.is_inference_mode_enabled, _set_inference_mode),
    # the device's mode, if it has one, is restored with the function modes
    _attribute(default_device, "CURRENT_DEVICE"),
    _attribute(torch._GLOBAL_DEVICE_CONTEXT, "device_context"),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_autocast, _set_autocast),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
    _contents(lambda: vars(torch._tensor_str.PRINT_OPTS)),
    _contents(lambda: module_hooks._global_forward_hooks),
    _contents(lambda: module_hooks._global_forward_pre_hooks),
    _contents(lambda: module_hooks._global_backward_hooks),
    _contents(lambda: module_hooks._global_backward_pre_hooks),
    (_backends.flash_sdp_enabled, _backends.enable_flash_sdp),
    (_backends.mem_efficient_sdp_enabled, _backends.enable_mem_efficient_sdp),
    (_backends.math_sdp_enabled, _backends.enable_math_sdp),
    (_backends.cudnn_sdp_enabled, _backends.enable_cudnn_sdp),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (_timer_runs, lambda runs: runs or signal.setitimer(signal.ITIMER_REAL, 0)),
    (_signal_handlers, _set_signal_handlers),
    (_wakeup_descriptor, _set_wakeup_descriptor),
    (_folder, _unless_none(os.chdir)),
    (lambda: dict(os.environ), _set_environment),
    _contents(lambda: sys.path),
    (lambda: list(warnings.filters), _set_warning_filters),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, lambda enabled: (gc.enable if enabled else gc.disable)()),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (threading.getprofile, threading.setprofile),
)
_GENERATORS: tuple[State, ...] = (
    (_cpu_generator, _set_cpu_generator),
    (_cuda_generators, _unless_none(_cuda.set_rng_state_all)),
    (random.getstate, random.setstate),
    (_numpy_generator, _unless_none(lambda state: sys.modules["numpy.random"].set_state(state))),
)
