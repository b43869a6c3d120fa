"""Keeps modules of one target's folder from being taken for those of another's, where several are run in a row."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


class Neighbours:
    """The modules of each folder whose files are targets: they are found there, and nowhere else.

    `a/model.py` and `b/model.py` may both import a `layers` that lies beside them. Each gets its own, and none runs
    twice: a folder's modules come back, as they were, for the next target of the same folder.
    """

    def __init__(self) -> None:
        self._aside: dict[Path, dict[str, ModuleType]] = {}

    @contextlib.contextmanager
    def of(self, target: str) -> Iterator[None]:
        """Within it the modules beside a target are there; `target` is as typed, `folder/model.py:Name`."""
        folder = _folder(target)
        before = set(sys.modules)
        sys.modules.update(self._aside.pop(folder, {}))
        try:
            yield
        finally:
            if folder not in map(_resolved, ("", *sys.path)):
                tops = {name: sys.modules.get(name.partition(".")[0]) for name in set(sys.modules) - before}
                hidden = [name for name, top in tops.items() if _beside(top) == folder]
                self._aside[folder] = {name: sys.modules.pop(name) for name in hidden}


def _folder(target: str) -> Path:
    """Return the folder from which a target's file is imported: for one in a package, that in which the package is."""
    where = target.partition(":")[0].strip()
    folder = _resolved(where).parent if where.endswith(".py") or "/" in where else _resolved("")
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _beside(module: ModuleType | None) -> Path | None:
    """Return the folder in which a module is found by its name, None where it is no file's."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    folder = _resolved(file).parent
    return folder.parent if hasattr(module, "__path__") else folder


def _resolved(entry: str) -> Path:
    try:
        return Path(entry).resolve()
    except (OSError, ValueError, RuntimeError):
        return Path(entry)
