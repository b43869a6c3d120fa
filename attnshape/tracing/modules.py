"""Which module is running, and under what path it is known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Started(Protocol):
    """What is told that a module is being called."""

    def __call__(self, path: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        """Take note of the module's path, its positional arguments, and the frame that called the hook."""


class Finished(Protocol):
    """What is told that a module has returned."""

    def __call__(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """Take note of the module, its result, and the frame that called the hook."""


class ModuleStack:
    """The modules that are running, innermost last, kept by hooks on every module's call."""

    def __init__(self, root: nn.Module | None, started: Started, finished: Finished) -> None:
        self._paths = {id(module): path for path, module in root.named_modules()} if root is not None else {}
        self._running: list[str | None] = []
        self._started = started
        self._finished = finished
        self._handles: list[Any] = []

    @property
    def path(self) -> str | None:
        """The path of the innermost running module that has one; None for the root itself."""
        return next((path for path in reversed(self._running) if path is not None), None) or None

    def __enter__(self) -> ModuleStack:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        path = self._paths.get(id(module))
        if path:
            self._started(path, arguments, sys._getframe(1))
        self._running.append(path)

    def _leave(self, module: nn.Module, _: object, result: object) -> None:
        if self._running:
            self._running.pop()
        self._finished(module, result, sys._getframe(1))


def named_tensors(target: object) -> list[tuple[str, Any]]:
    """Return every parameter and buffer that the target holds, under its path."""
    root = module_of(target)
    if root is None:
        return []
    return [*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False)]


def module_of(target: object) -> nn.Module | None:
    """Return the module that a callable is, or is a method of."""
    if isinstance(target, nn.Module):
        return target
    owner = getattr(target, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def own_file(target: Callable[..., object]) -> str | None:
    """Return the file that a callable's code stands in; None where it has none."""
    function: Any = target.forward if isinstance(target, nn.Module) else target
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code.co_filename if code is not None else None
