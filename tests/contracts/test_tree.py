"""The shape of the code: import direction, public names, sizes of modules."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "attnshape").rglob("*.py"))


def test_imports_run_one_way() -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert linter is not None
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name",
    [
        *("errors", "dims", "axis", "signature", "sizes", "model", "schema", "step_text"),
        *(
            "comparing.compare",
            "comparing.folders",
            "render.formats",
            "render.diff_formats",
            "cli.app",
            "pytest_plugin",
        ),
        *("written.words", "written.notation", "written.comments", "written.types"),
    ],
)
def test_no_torch_is_imported_for(name: str) -> None:
    code = f"import sys, attnshape.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("module", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_modules_are_small_and_say_what_they_are(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text))
    assert module.stem not in {"utils", "util", "helpers", "misc", "common"}


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    import attnshape

    assert attnshape.__version__ == version("attnshape")
