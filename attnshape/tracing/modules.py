"""Which module is running, and under what path it is known."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Watcher(Protocol):
    """What is told of the modules' calls."""

    def started(self, module: nn.Module, path: str | None, args: tuple[Any, ...], frame: FrameType) -> None:
        """A module other than the root is called; the frame is the one that its body will run under."""

    def finished(self, module: nn.Module, keywords: dict[str, Any], result: object) -> None:
        """A module other than the root has returned, or failed, which returns None."""


class ModuleStack:
    """The modules that are running, innermost last, kept by hooks on every module's call."""

    def __init__(self, root: nn.Module | None, watcher: Watcher) -> None:
        self._paths = {id(module): path for path, module in root.named_modules()} if root is not None else {}
        self._root = root
        self._running: list[str | None] = []
        """For each, the path of the innermost that has one."""
        self._watcher = watcher
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    @property
    def path(self) -> str | None:
        """The path of the innermost running module that has one; None for the root itself."""
        return self._running[-1] or None if self._running else None

    def __enter__(self) -> ModuleStack:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._root = None  # it may hold tensors

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread:  # every thread's calls come by, but only one is watched
            return
        around = self._running[-1] if self._running else None
        self._running.append(self._paths.get(id(module), around))
        if module is not self._root:
            self._watcher.started(module, self.path, args, sys._getframe(1))

    def _leave(self, module: nn.Module, _: object, *rest: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # torch leaves out the keyword arguments where the module has failed
        keywords, result = rest if len(rest) == 2 else ({}, None)
        if module is not self._root:
            self._watcher.finished(module, keywords, result)
        if self._running:
            self._running.pop()


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
