"""Finds the modules of installed packages that a file's code uses."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType

from attnshape.paths import installed_package


def libraries(files: Iterable[str]) -> tuple[str, ...]:
    """Return the modules of installed packages that files' modules have names of, or modules that these have names of.

    `files` are absolute; those that aren't imported in this process are passed over, as are imports in functions.
    """
    by_file = {file: module for module in list(sys.modules.values()) if (file := _file(module)) is not None}
    waiting = [by_file[file] for file in files if file in by_file]
    seen = set(waiting)
    found: dict[str, None] = {}
    while waiting:
        for used in _used(waiting.pop()):
            file = _file(used)
            if used in seen or file is None:
                continue
            seen.add(used)
            if installed_package(file) is not None:
                found[used.__name__] = None
            else:
                waiting.append(used)
    return tuple(found)


def _used(module: ModuleType) -> list[ModuleType]:
    """Return the modules of what a module's names are bound to."""
    found = []
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else None
        if isinstance(value, type | FunctionType):
            name = value.__module__
        one = sys.modules.get(name) if isinstance(name, str) else None
        found += [one] if isinstance(one, ModuleType) else []
    return found


def _file(module: object) -> str | None:
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return file if isinstance(file, str) else None
