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

from attnshape.options.spec import TargetSpec
from tests.annotate.copied_sources import COPIED, QUICK, Copied, lay_out
from tests.annotate.form_strings import only_insert
from tests.annotate.running import annotated, forget
from tests.libraries.tracing_cases import HAND_WORKED

RUN = Path(__file__).parent / "run_checked.py"


# the last test runs what the others have written
pytestmark = [pytest.mark.libraries, pytest.mark.xdist_group("annotated copies")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with the copies: `bed`, which is annotated, and `plain`, which isn't."""
    made = tmp_path_factory.mktemp("copies").resolve()
    lay_out(made, "bed", COPIED)
    lay_out(made, "plain", COPIED)
    path = list(sys.path)
    yield made
    sys.path[:] = path
    forget(made)


def sizes(one: Copied) -> dict[str, list[dict[str, int]]]:
    """Return three sets of sizes for each case of a copy."""
    return {name: three(*HAND_WORKED[f"{one.cases}:{name}"].sizes) for name in one.names}


def three(first: dict[str, int], second: dict[str, int]) -> list[dict[str, int]]:
    return [first, second, {**first, "B": first["B"] + 1}]


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.module, marks=() if one.module in QUICK else pytest.mark.slow) for one in COPIED],
)
def test_a_file_is_annotated_and_stays_as_it_was_elsewhere(
    one: Copied, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = {name: HAND_WORKED[f"{one.cases}:{name}"].sizes[0] for name in one.names}
    requests = [TargetSpec(f"bed_{one.name}.py:{name}", sizes=numbers) for name, numbers in given.items()]
    first = annotated(requests, folder, enforce=True)
    assert len(first.changes) >= 4
    assert first.verified_at
    file = folder / "bed" / f"{one.name}.py"
    before = file.read_bytes()
    for (source, edits), (_, data) in zip(first.rewrite.files, first.files, strict=True):
        if source.path == file:
            only_types_are_new(before, edits, data)
        else:
            assert only_insert(edits)
        source.path.write_bytes(data)
    again = annotated(requests, folder, enforce=True)
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
    done_before = [one for one in COPIED if b"@jaxtyped" in (folder / "bed" / f"{one.name}.py").read_bytes()]
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
