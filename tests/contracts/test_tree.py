"""The direction of imports, the modules that don't import torch, and the version."""

import json
import re
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


FOLLOW = """
import json, sys
from attnshape.cli.app import run

entered = []
def profile(frame, event, _):
    file, _, path = frame.f_code.co_filename.partition("/attnshape/")
    if event == "call" and path:
        entered.append(f"{path.removesuffix('.py')}.{frame.f_code.co_qualname}")

sys.setprofile(profile)
run(["trace", "--batch", "2", "--format", "table"])
sys.setprofile(None)
sys.stderr.write(json.dumps(list(dict.fromkeys(entered))))
"""


def test_the_walk_in_contributing_is_what_happens() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = text.partition("## One command, step by step")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in walk.splitlines() if re.match(r"\| \d+ \|", line)]
    assert 10 < len(rows) <= 20
    done = subprocess.run([sys.executable, "-c", FOLLOW], cwd=ROOT, capture_output=True, text=True, check=True)
    entered = json.loads(done.stderr)
    walked = [re.findall(r"`([^`]+)`", row)[0] for row in rows if "__main__" not in row]
    assert [name for name in entered if name in walked] == walked
