"""Imports files with other contents than they have on the disk."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_Loader = importlib.machinery.SourceFileLoader


def lay(files: Mapping[str, bytes]) -> None:
    """Import these files from now on with these contents, and write no bytecode. There is no way back."""
    sys.dont_write_bytecode = True
    read, stats = _Loader.get_data, _Loader.path_stats

    def get_data(self: _Loader, path: str) -> bytes:
        return files[path] if path in files else read(self, path)

    def path_stats(self: _Loader, path: str) -> Any:
        if path in files:
            raise OSError("its bytecode is of other source")
        return stats(self, path)

    _Loader.get_data = get_data  # type: ignore[assignment, method-assign]  # the same
    _Loader.path_stats = path_stats  # type: ignore[method-assign]
    for file, data in files.items():
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
        linecache.cache[file] = (len(data), None, lines, file)


def import_hooked(file: str) -> None:
    """Import a file that is part of no package so that import hooks see it, as `import NAME` would."""
    path = Path(file)
    spec = importlib.machinery.PathFinder.find_spec(path.stem, [str(path.parent)])
    if spec is None or spec.loader is None or path.stem in sys.stdlib_module_names or path.stem in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
