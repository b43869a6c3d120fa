"""What a target imported is forgotten, also after an import that was interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from attnshape.targets.imports import forget_imports


class Vanishing(ModuleType):
    """A module that takes another one along as soon as it is looked at."""

    @property
    def __file__(self) -> str:  # type: ignore[override]
        sys.modules.pop("taken_along", None)
        return str(Path("somewhere", "vanishing.py").resolve())


def test_module_that_is_gone_again_is_no_error() -> None:
    with forget_imports():
        for name in ("vanishing_first", "taken_along", "vanishing_last"):
            sys.modules[name] = Vanishing(name)
    assert not {"vanishing_first", "taken_along", "vanishing_last"} & sys.modules.keys()
