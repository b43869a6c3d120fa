"""`--output FOLDER/`: one file for each trace, with safe and stable names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnshape.cli.batch import file_names
from attnshape.cli.jobs import Job, Refused
from attnshape.errors import AttnshapeError
from attnshape.options.spec import RunOptions, TargetSpec
from tests.cli.running import Attnshape
from tests.projects.models import DOUBLE, ENTRY, MISSING, RIGHT, SIZES
from tests.reporters.hostile_text import PAYLOADS


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    (folder / "model.py").write_text(RIGHT)
    (folder / "pyproject.toml").write_text(ENTRY + SIZES + DOUBLE)


def job(name: str, **sizes: int) -> Job:
    return Job(name, sizes, TargetSpec("average"), RunOptions())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_each_trace_is_a_file(attnshape: Attnshape, folder: Path) -> None:
    result = attnshape("trace --all --format json --output saved/traces/")
    assert (result.status, result.err) == (0, "")
    saved = folder / "saved" / "traces"
    assert names_in(saved) == ["attention,B=1,L=1.json", "attention,B=2,L=10.json", "double.json"]
    together = json.loads(attnshape("trace --all --format json").out)["results"]
    for entry in together:
        parts = [entry["name"], *(f"{symbol}={size}" for symbol, size in entry["sizes"].items())]
        assert json.loads((saved / f"{','.join(parts)}.json").read_text()) == entry["trace"]
    assert attnshape("show saved/traces/double.json").status == 0
    # the summary is on stdout
    assert result.out.endswith("**3 results: 3 fine**\n")


def test_existing_folder_needs_no_slash(attnshape: Attnshape, folder: Path) -> None:
    (folder / "saved").mkdir()
    assert attnshape("trace attention --format json --output saved").status == 0
    assert names_in(folder / "saved") == ["attention,B=1,L=1.json", "attention,B=2,L=10.json"]


def test_failed_target_removes_its_old_file(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(MISSING + DOUBLE)
    saved = folder / "saved"
    saved.mkdir()
    (saved / "missing.json").write_text("{}")
    (saved / "of mine.json").write_text("{}")
    result = attnshape("trace --all --format json --output saved/")
    assert result.status == 2
    assert names_in(saved) == ["double.json", "of mine.json"]
    assert "can't be carried out: there is no file nosuch.py" in result.out


def test_hostile_names_stay_in_the_folder(attnshape: Attnshape, folder: Path) -> None:
    names = ["../../up", "/tmp/x", "..", "a\nb", "a/b", "\x00", ".hidden", "CON", "x" * 300, "é"]
    entries = [DOUBLE.replace("targets.double", f"targets.{json.dumps(name)}") for name in names]
    (folder / "pyproject.toml").write_text("".join(entries))
    before = names_in(folder)
    result = attnshape("trace --all --format json --output saved/")
    assert (result.status, result.err) == (0, "")
    assert names_in(folder) == sorted([*before, "saved"])
    files = list((folder / "saved").rglob("*"))
    assert len(files) == len(names)
    assert all(file.is_file() and file.name.isprintable() and not file.name.startswith(".") for file in files)


NAMES = st.one_of(
    st.sampled_from([text for text in PAYLOADS.values() if text.isascii()]),
    st.text(max_size=12),
    st.text("aAbB.,=/%", max_size=8),
)
SETS = st.dictionaries(st.sampled_from(["B", "L", "b", "é", "T"]), st.integers(1, 12), max_size=3)


@settings(deadline=None, max_examples=120)
@given(st.lists(st.tuples(NAMES, SETS), max_size=6, unique_by=lambda one: (one[0], tuple(sorted(one[1].items())))))
def test_file_names_are_unique_and_portable(jobs: list[tuple[str, dict[str, int]]]) -> None:
    found = file_names([job(name, **sizes) for name, sizes in jobs])
    assert len({name.casefold() for name in found}) == len(jobs)
    for name in found:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~%,=")
        assert not name.startswith(".")
        assert len(name) < 200


def test_names_that_differ_only_in_case_get_suffixes() -> None:
    upper, lower, other = file_names([job("Cross"), job("cross"), job("other")])
    assert upper.startswith("Cross-")
    assert lower.startswith("cross-")
    assert upper.casefold() != lower.casefold()
    assert other == "other.json"


def test_file_name_does_not_depend_on_other_targets() -> None:
    (alone,) = file_names([job("cross", B=1)])
    assert alone == "cross,B=1.json"
    refused = Refused("bad", AttnshapeError("wrong"))
    assert file_names([job("b"), refused, job("cross", B=1), job("cross", B=2)])[1:3] == ["bad.json", alone]


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("trace --all --output saved/", "--output saved/ is a folder", "--format json"),
        ("trace --all --format markdown --output saved/", "--output saved/ is a folder", "--format json"),
        ("trace --all --format json --output model.py/", "no folder can be written there", "another path"),
        ("trace --all --format json --output model.py/x/", "no folder can be written there", "another path"),
        ("trace --all --format json --output no/such.json", "there is no folder no", "mkdir"),
        ("trace double --format json --output .", "--output . is a folder, expected a file", "trace.json"),
        ("check --all --output .", "--output . is a folder, expected a file", ""),
        ("trace --all --format json --columns step --output saved/", "always has the whole trace", "leave them out"),
    ],
)
def test_unwritable_output_is_reported_before_any_run(
    line: str, error: str, hint: str, attnshape: Attnshape, folder: Path
) -> None:
    result = attnshape(line)
    assert (result.status, result.out) == (2, "")
    message, given_hint = result.err.splitlines()
    assert error in message
    assert hint in given_hint
    assert list(folder.rglob("*.json")) == []


def test_trailing_slash_writes_a_single_trace_to_a_folder(attnshape: Attnshape, folder: Path) -> None:
    assert attnshape("trace double --format json --output alone/").status == 0
    assert names_in(folder / "alone") == ["double.json"]
