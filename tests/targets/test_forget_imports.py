"""What a target imported is forgotten, also after an import that was interrupted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from attnshape.targets.imports import forget_imports


class Vanishing(ModuleType):
    """A module that takes another one along as soon as it is looked at."""

    @property
    def __file__(self) -> str:  # type: ignore[override]
        sys.modules.pop("taken_along", None)
        return str(Path("somewhere", "vanishing.py").resolve())


@pytest.mark.parametrize("installed", [True, False])
def test_installed_modules_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    place = folder / ("dist-packages" if installed else "project")
    place.mkdir()
    (place / "imported_once.py").touch()
    monkeypatch.syspath_prepend(place)
    with forget_imports():
        importlib.import_module("imported_once")
    assert (sys.modules.pop("imported_once", None) is not None) is installed


@pytest.mark.parametrize("parent_is_gone", [False, True])
def test_namespace_package_in_a_package(folder: Path, monkeypatch: pytest.MonkeyPatch, parent_is_gone: bool) -> None:
    inside = folder / "around_spaces" / "space" / "inner_space"
    inside.mkdir(parents=True)
    (folder / "around_spaces" / "__init__.py").touch()
    (inside / "deep.py").touch()
    monkeypatch.syspath_prepend(folder)
    for _ in range(2):
        with forget_imports():
            importlib.import_module("around_spaces.space.inner_space.deep")
            if parent_is_gone:
                del sys.modules["around_spaces"]
        assert "around_spaces.space.inner_space.deep" not in sys.modules
        sys.modules.pop("around_spaces.space", None)
        sys.modules.pop("around_spaces.space.inner_space", None)


def test_module_that_is_gone_again_is_no_error() -> None:
    with forget_imports():
        for name in ("vanishing_first", "taken_along", "vanishing_last"):
            sys.modules[name] = Vanishing(name)
    assert not {"vanishing_first", "taken_along", "vanishing_last"} & sys.modules.keys()
