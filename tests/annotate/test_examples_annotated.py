"""Annotated with --enforce, every example passes its checks at three sets of sizes with bit-identical results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.annotate.form_strings import only_insert
from tests.annotate.running import annotated, forget
from tests.annotate.test_library_files import assert_only_types_changed
from tests.examples.expectations import EXPECTED, example_spec
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).parent / "run_examples.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with two copies of the examples: `edited`, which is annotated, and `plain`, which isn't."""
    root = tmp_path_factory.mktemp("examples").resolve()
    for package in ("edited", "plain"):
        shutil.copytree(
            ROOT / "examples", root / package, ignore=lambda _, names: [n for n in names if n[-3:] != ".py"]
        )
        (root / package / "__init__.py").touch()
    path = list(sys.path)
    yield root
    sys.path[:] = path
    forget(root)


@pytest.mark.xdist_group("annotated examples")
@pytest.mark.parametrize("name", sampled(EXPECTED, ["examples/own_dims.py"]))
def test_annotated_example_is_checked_and_gives_identical_results(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    request = example_spec(name)
    request = replace(request, target=request.target.replace("examples/", "edited/"))
    first = annotated([request], folder, enforce=True)
    assert len(first.changes) >= 3
    assert first.omissions == ()
    for (source, edits), (_, data) in zip(first.rewrite.files, first.files, strict=True):
        if source.path.stem == "__init__":
            assert only_insert(edits)
        else:
            assert_only_types_changed(source.data, edits, data)
        source.path.write_bytes(data)
    assert annotated([request], folder, enforce=True).files == []

    done = subprocess.run(
        [sys.executable, "-P", str(RUN), name],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"hooked": True, "same": [True] * 3}
