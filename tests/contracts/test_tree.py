"""The direction of imports, the modules that don't import torch, and the version."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_imports_follow_the_layers() -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert linter is not None
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name",
    [
        *("errors", "dims.sizes", "model.trace", "model.report", "model.difference", "options.pyproject"),
        *(
            "comparison.compare",
            "comparison.saved",
            "reporters.registry",
            "reporters.diff_view",
            "cli.app",
            "testing.plugin",
        ),
        *("comments.notation", "comments.grammar", "comments.annotations"),
    ],
)
def test_module_does_not_import_torch(name: str) -> None:
    code = f"import sys, attnshape.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    import attnshape

    assert attnshape.__version__ == version("attnshape")
