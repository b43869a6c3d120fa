"""Starts watching in a process once it imports torch, and in the processes that it starts with multiprocessing."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attnshape.runtime.processes import ROOT
from attnshape.runtime.replacement import after_fork_in_child

if TYPE_CHECKING:
    from attnshape.programs.watch import Watch


class _Active:
    """What this process does."""

    folder: str = ""
    watch: Watch | None = None


def activate(folder: str) -> None:
    """Watch this process from its import of torch on, and the processes that it starts with multiprocessing.

    Args:
        folder: Where each process leaves what it captured.
    """
    _Active.folder = folder
    after_fork_in_child(_after_fork)
    after_import("multiprocessing.spawn", _pass_on_to_spawned)
    after_import("multiprocessing.util", _save_at_exit_of_children)
    was_imported = "torch" in sys.modules
    # never before: what a program sets in the environment for torch must be set by then
    after_import("torch", _install)
    if was_imported and _Active.watch is not None:
        _Active.watch.watch_loaded_classes()


def is_active() -> bool:
    """Return whether this process is watched."""
    return bool(_Active.folder)


def save_captures(is_final: bool = False) -> None:
    """Leave what this process has captured until now."""
    if _Active.watch is not None:
        from attnshape.programs.store import save

        with contextlib.suppress(Exception):
            captures = _Active.watch.captures()
            captures.is_final = is_final
            save(_Active.folder, captures)


def deactivate() -> None:
    """Leave what this process captured, and put everything back."""
    save_captures(is_final=True)
    if _Active.watch is not None:
        _Active.watch.uninstall()
    _Active.watch, _Active.folder = None, ""


def _install(module: ModuleType) -> None:
    from attnshape.programs.watch import Watch

    if _Active.folder:
        _Active.watch = Watch(save_captures)
        _Active.watch.install()


def _after_fork() -> None:
    if _Active.watch is not None:
        _Active.watch.forget()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # the finalizers that were registered before are forgotten in the child, once this has run
            util.register_after_fork(_Active.watch, lambda _: _finalize(util))


def _save_at_exit_of_children(util: Any) -> None:
    _finalize(util)


def _finalize(util: Any) -> None:
    """Save at the end of a child process of multiprocessing, which runs no functions of `atexit`."""
    util.Finalize(None, save_captures, (True,), exitpriority=-100)


_ARRIVE = """
import sys
sys.path.insert(0, {root!r})
try:
    from attnshape.programs.activation import activate
    activate({folder!r})
except Exception:
    pass
finally:
    sys.path.remove({root!r})
"""


class _Passenger:
    """Travels with what multiprocessing sends to a process that it spawns, and starts watching there.

    It is code, since this package needs to be importable there before the process has the paths of its parent.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_ARRIVE.format(root=ROOT, folder=_Active.folder),)


def _pass_on_to_spawned(spawn: Any) -> None:
    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        if _Active.folder:
            data["attnshape"] = _Passenger()
        return data

    spawn.get_preparation_data = get_preparation_data


# imports


def after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call a function with a module, now if it is imported already, otherwise once it is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        function(module)
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and has its loader call a function after the import."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own specification, with another loader; None for all other modules."""
        if fullname != self._name:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            _call_after(spec.loader, self._function)
        return spec


def _call_after(loader: Any, function: Callable[[ModuleType], None]) -> None:
    """Have a loader, which is of one module only, call a function after the module has run."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        with contextlib.suppress(Exception):
            function(module)

    loader.exec_module = exec_module
