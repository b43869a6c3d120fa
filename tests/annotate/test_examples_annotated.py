"""Every example: annotated and enforced it runs checked at three sets of sizes, gives the same bits, and is stable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnshape.annotate.source import inserted
from attnshape.proving.prover import Prover
from tests.annotate.running import annotated, forget
from tests.annotate.test_library_files import only_types_are_new
from tests.examples.expectations import EXPECTED, asked

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).parent / "run_examples.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with the examples twice: `bed`, which is annotated, and `plain`, which isn't."""
    made = tmp_path_factory.mktemp("examples").resolve()
    for package in ("bed", "plain"):
        shutil.copytree(
            ROOT / "examples", made / package, ignore=lambda _, names: [n for n in names if n[-3:] != ".py"]
        )
        (made / package / "__init__.py").touch()
    path = list(sys.path)
    yield made
    sys.path[:] = path
    forget(made)


@pytest.mark.xdist_group("annotated examples")
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_annotated(name: str, folder: Path, prover: Prover, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    request = asked(name)
    request = replace(request, target=request.target.replace("examples/", "bed/"))
    first = annotated([request], folder, prover, enforce=True)
    assert len(first.changes) >= 3
    assert first.left_out == ()
    for (source, edits), (_, data) in zip(first.rewritten.files, first.files, strict=True):
        if source.path.stem == "__init__":
            assert inserted(edits)
        else:
            only_types_are_new(source.data, edits, data)
        source.path.write_bytes(data)
    assert annotated([request], folder, prover, enforce=True).files == []


@pytest.mark.xdist_group("annotated examples")
def test_annotated_examples_are_checked_as_they_run_and_give_the_same_bits(folder: Path) -> None:
    argv = {name: EXPECTED[name]["argv"] for name in EXPECTED}
    done = subprocess.run(
        [sys.executable, "-P", str(RUN)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        input=json.dumps(argv),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said == {name: {"hooked": True, "same": [True] * 3} for name in EXPECTED}
