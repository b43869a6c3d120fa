"""What Python keeps for the whole process and the traced code may change: how to read it and to put it back."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

Kept = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How to read something, and how to set it."""

_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGCHLD", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - as text, to go back to
    except OSError:
        return None


def _set_folder(kept: str | None) -> None:
    if kept is not None:
        os.chdir(kept)


def _set_environment(kept: dict[str, str]) -> None:
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(kept)


def _set_path(kept: list[str]) -> None:
    sys.path[:] = kept


def _set_filters(kept: list[Any]) -> None:
    warnings.filters[:] = kept  # type: ignore[index]  # it is a list, whatever its annotation allows
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as warnings.catch_warnings does


def _signals() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_signals(kept: dict[int, Any]) -> None:
    for number, handler in kept.items():
        # None is a handler that was set from C, which Python can't put back
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _timer() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_timer(running: bool) -> None:
    if not running:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _wakeup() -> int:
    if threading.current_thread() is not threading.main_thread():
        return -1
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number, warn_on_full_buffer=False)
    return number


def _set_wakeup(number: int) -> None:
    signal.set_wakeup_fd(number, warn_on_full_buffer=False)


def _numpy_random() -> Any:
    # numpy imports its random numbers only where they are used
    module = sys.modules.get("numpy.random")
    return module.get_state() if module is not None else None


def _set_numpy_random(kept: Any) -> None:
    if kept is not None:
        sys.modules["numpy.random"].set_state(kept)


def _set_collecting(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


KEPT: tuple[Kept, ...] = (
    (_timer, _set_timer),
    (_signals, _set_signals),
    (_wakeup, _set_wakeup),
    (_folder, _set_folder),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), _set_path),
    (lambda: list(warnings.filters), _set_filters),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _set_collecting),
    (gc.get_threshold, lambda kept: gc.set_threshold(*kept)),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (threading.getprofile, threading.setprofile),
)
RANDOM: tuple[Kept, ...] = ((random.getstate, random.setstate), (_numpy_random, _set_numpy_random))
