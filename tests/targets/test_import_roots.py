"""From which folder a target's file is imported, where it imports modules of its project."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.running import Attnshape

MODEL = "def double(x):\n    return scale(x) * 2\n"


@pytest.fixture
def project(folder: Path) -> Path:
    """Return a folder with a project inside whose scripts run in its folder `src`."""
    source = folder / "project" / "src"
    for name in ("models", "rooted_layers"):
        (source / name).mkdir(parents=True)
    (source / "rooted_layers" / "scaling.py").write_text("def scale(x):\n    return x + 1\n")
    return source


def test_module_of_a_folder_around_the_file(project: Path, attnshape: Attnshape):
    (project / "models" / "rooted_model.py").write_text(f"from rooted_layers.scaling import scale\n\n\n{MODEL}")
    before = list(sys.path)
    result = attnshape("trace project/src/models/rooted_model.py:double --input 'x: B L'")
    assert result.status == 0, result.err
    assert sys.path == before


def test_relative_import_without_a_package(project: Path, attnshape: Attnshape):
    (project / "models" / "scaling.py").write_text("def scale(x):\n    return x + 1\n")
    (project / "models" / "relative_model.py").write_text(f"from .scaling import scale\n\n\n{MODEL}")
    result = attnshape("trace project/src/models/relative_model.py:double --input 'x: B L'")
    assert result.status == 0, result.err


def test_module_that_is_nowhere(project: Path, attnshape: Attnshape):
    (project / "models" / "lost_model.py").write_text(f"from rooted_layers.nothing import scale\n\n\n{MODEL}")
    result = attnshape("trace project/src/models/lost_model.py:double --input 'x: B L'")
    assert result.status == 2
    assert "No module named 'rooted_layers.nothing'" in result.err


def test_file_beside_installed_packages(folder: Path, attnshape: Attnshape):
    installed = folder / "site-packages"
    package = installed / "installed_model"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "attention.py").write_text(MODEL.replace("scale(x)", "x"))
    (installed / "__init__.py").write_text("raise RuntimeError('no package')\n")
    result = attnshape("trace site-packages/installed_model/attention.py:double --input 'x: B L'")
    assert result.status == 0, result.err
    assert "doesn't import" not in result.out
