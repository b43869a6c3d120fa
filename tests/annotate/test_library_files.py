"""Attention code of published libraries: annotated, then checked as it runs, with bit-identical results.

These tests run the annotated code once more, apart from the tool's own sandbox.
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
from tests.sampling import sampled

RUN = Path(__file__).parent / "run_checked.py"


# the last test runs the files that the other tests have written
pytestmark = [pytest.mark.libraries, pytest.mark.xdist_group("annotated copies")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with two sets of copies: `annotated`, which is annotated, and `plain`, which isn't."""
    root = tmp_path_factory.mktemp("copies").resolve()
    lay_out(root, "annotated", COPIED)
    lay_out(root, "plain", COPIED)
    path = list(sys.path)
    yield root
    sys.path[:] = path
    forget(root)


def sizes(copied: Copied) -> dict[str, list[dict[str, int]]]:
    """Return three sets of sizes for each case of a copy."""
    return {name: three(*HAND_WORKED[f"{copied.cases}:{name}"].sizes) for name in copied.names}


def three(first: dict[str, int], second: dict[str, int]) -> list[dict[str, int]]:
    return [first, second, {**first, "B": first["B"] + 1}]


@pytest.mark.parametrize("copied", sampled(COPIED, QUICK))
def test_only_types_change_in_an_annotated_file(copied: Copied, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    sizes_of = {name: HAND_WORKED[f"{copied.cases}:{name}"].sizes[0] for name in copied.names}
    requests = [TargetSpec(f"annotated_{copied.name}.py:{name}", sizes=numbers) for name, numbers in sizes_of.items()]
    first = annotated(requests, folder, enforce=True)
    assert len(first.changes) >= 4
    assert first.verified_at
    file = folder / "annotated" / f"{copied.name}.py"
    before = file.read_bytes()
    for (source, edits), (_, data) in zip(first.rewrite.files, first.files, strict=True):
        if source.path == file:
            assert_only_types_changed(before, edits, data)
        else:
            assert only_insert(edits)
        source.path.write_bytes(data)
    again = annotated(requests, folder, enforce=True)
    assert again.files == []


def assert_only_types_changed(before: bytes, edits: object, after: bytes) -> None:
    """Assert that undoing the edits restores the old source, and that they replace nothing but types."""
    restored, consumed = b"", 0
    position = 0
    for edit in sorted(edits, key=lambda each: (each.start, each.end)):  # type: ignore[call-overload]
        piece = before[position : edit.start]
        assert after[consumed : consumed + len(piece)] == piece
        consumed += len(piece) + len(edit.text.encode())
        restored += piece + before[edit.start : edit.end]
        if edit.end > edit.start:
            old = before[edit.start : edit.end].decode()
            assert "Tensor" in old
            assert "\n" not in old
        position = edit.end
    assert after[consumed:] == before[position:]
    assert restored + before[position:] == before


def test_annotated_files_are_checked_and_give_identical_results(folder: Path) -> None:
    annotated_copies = [
        copied for copied in COPIED if b"@jaxtyped" in (folder / "annotated" / f"{copied.name}.py").read_bytes()
    ]
    sizes_of = {copied.name: sizes(copied) for copied in annotated_copies}
    done = subprocess.run(
        [sys.executable, "-P", str(RUN)],
        input=json.dumps(sizes_of),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert outcomes.keys() == sizes_of.keys()
    for name, outcome in outcomes.items():
        assert outcome["hooked"], name
        assert outcome["decorated"], name
        assert outcome["same"] == [True] * 3 * len(sizes_of[name]), name
