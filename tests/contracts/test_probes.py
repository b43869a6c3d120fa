"""The probes and the rules belong together: every code has a page, a probe and mutants, and a probe fails alone."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape import examine
from attnshape.attention.outcome import Outcome
from attnshape.attention.subject import Subject
from attnshape.claims import Claims
from attnshape.probes.registry import PROBES
from attnshape.report import Report
from attnshape.rules.pages import codes, page
from attnshape.settings import Settings
from attnshape.target.request import Request
from attnshape.written import verify

PROBES_FOLDER = Path(examine.__file__).parent / "probes"


def _checked() -> Report:
    return examine.check_request(Request(""), Settings(), Claims(), 60.0, contextlib.nullcontext)


def test_every_code_is_one_that_a_probe_finds_and_has_a_page() -> None:
    found = {code for probe in PROBES for code in probe.CODES} | set(verify.CODES)
    assert found == set(codes())
    for code in found:
        assert page(code).title


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__.rpartition(".")[2])
def test_a_probe_declares_the_codes_that_it_writes(probe: object) -> None:
    name = probe.__name__.rpartition(".")[2]  # type: ignore[attr-defined]
    written = set(re.findall(r'"(AS\d{3})"', (PROBES_FOLDER / f"{name}.py").read_text()))
    assert written <= set(probe.CODES)  # type: ignore[attr-defined]


def test_every_probe_in_the_folder_is_in_the_registry() -> None:
    files = {path.stem for path in PROBES_FOLDER.glob("*.py")} - {"__init__", "registry", "scales"}
    assert files == {probe.__name__.rpartition(".")[2] for probe in PROBES}


def test_a_probe_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject) -> Iterator[Outcome]:
        yield from ()
        raise ValueError("no [red]such[/red] axis\n| there")

    whole = _checked()
    monkeypatch.setattr(PROBES[0], "examine", broken)
    report = _checked()
    failed = [one for one in report.unexamined if one.what == PROBES[0].WHAT]
    assert [one.why for one in failed] == ["the probe failed: ValueError: no [red]such[/red] axis\n| there"]
    assert set(report.proved) == set(whole.proved) - {"batch elements stay apart"}
    assert report.findings == ()
