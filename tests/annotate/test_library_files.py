"""Source files of attention that others wrote: annotated, checked as they run, the same bits, stable, and no byte else.

What is annotated is run once more here, apart from the tool's own proof.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape.annotate.source import inserted
from attnshape.proving.prover import Prover
from attnshape.target.request import Request
from tests.annotate.bed import CHOSEN, Copied, lay_out
from tests.annotate.running import annotated, forget
from tests.libraries.tracing_cases import HAND_WORKED

RUN = Path(__file__).parent / "run_checked.py"


pytestmark = pytest.mark.xdist_group("annotated copies")  # the last test runs what the others have written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with the copies: `bed`, which is annotated, and `plain`, which isn't."""
    made = tmp_path_factory.mktemp("copies").resolve()
    lay_out(made, "bed", CHOSEN)
    lay_out(made, "plain", CHOSEN)
    path = list(sys.path)
    yield made
    sys.path[:] = path
    forget(made)


def sizes(one: Copied) -> dict[str, list[dict[str, int]]]:
    """Return three sets of sizes for each case of a copy."""
    return {name: three(*HAND_WORKED[f"{one.cases}:{name}"].sizes) for name in one.names}


def three(first: dict[str, int], second: dict[str, int]) -> list[dict[str, int]]:
    return [first, second, {**first, "B": first["B"] + 1}]


@pytest.mark.parametrize("one", [pytest.param(one, id=one.module) for one in CHOSEN])
def test_a_file_is_annotated_and_stays_as_it_was_elsewhere(
    one: Copied, folder: Path, prover: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = {name: HAND_WORKED[f"{one.cases}:{name}"].sizes[0] for name in one.names}
    requests = [Request(f"bed_{one.name}.py:{name}", given=numbers) for name, numbers in given.items()]
    first = annotated(requests, folder, prover, enforce=True)
    assert len(first.changes) >= 4
    assert first.proved_at
    file = folder / "bed" / f"{one.name}.py"
    before = file.read_bytes()
    for (source, edits), (_, data) in zip(first.rewritten.files, first.files, strict=True):
        if source.path == file:
            only_types_are_new(before, edits, data)
        else:
            assert inserted(edits)
        source.path.write_bytes(data)
    again = annotated(requests, folder, prover, enforce=True)
    assert again.files == []


def only_types_are_new(before: bytes, edits: object, after: bytes) -> None:
    """Take what was put in out again, and put what it replaced back."""
    kept, done = b"", 0
    position = 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):  # type: ignore[call-overload]
        piece = before[position : edit.start]
        assert after[done : done + len(piece)] == piece
        done += len(piece) + len(edit.text.encode())
        kept += piece + before[edit.start : edit.end]
        if edit.end > edit.start:
            old = before[edit.start : edit.end].decode()
            assert "Tensor" in old
            assert "\n" not in old
        position = edit.end
    assert after[done:] == before[position:]
    assert kept + before[position:] == before


def test_annotated_files_are_checked_as_they_run_and_give_the_same_bits(folder: Path) -> None:
    done_before = [one for one in CHOSEN if b"@jaxtyped" in (folder / "bed" / f"{one.name}.py").read_bytes()]
    wanted = {one.name: sizes(one) for one in done_before}
    done = subprocess.run(
        [sys.executable, "-P", str(RUN)],
        input=json.dumps(wanted),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said.keys() == wanted.keys()
    for name, one in said.items():
        assert one["hooked"], name
        assert one["decorated"], name
        assert one["same"] == [True] * 3 * len(wanted[name]), name


def test_there_are_enough_files() -> None:
    assert len(CHOSEN) >= 15
