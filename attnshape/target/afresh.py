"""Forgets what one target imported, so that the next one imports its own."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

_INSTALLED = tuple(
    dict.fromkeys(
        [
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *(str(Path(file).resolve().parent) for file in (torch.__file__, str(Path(__file__).parent))),
        ]
    )
)


@contextlib.contextmanager
def imports_forgotten() -> Iterator[None]:
    """Take out at the end the modules that were imported within, but for those of installed packages.

    Two versions of a project have modules of the same names: the second one would get those of the first.
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if not _is_installed(sys.modules[name]):
                del sys.modules[name]


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))
    return not places or any(str(place).startswith(f"{folder}/") for place in places for folder in _INSTALLED)
