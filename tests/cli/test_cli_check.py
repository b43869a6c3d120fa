"""The `check` command: its options, the findings that count, and its exit status, with a fake pipeline."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from tests.cli.running import Attnshape
from tests.reporters import sample_reports as samples


@dataclass
class FakeCheck:
    """A fake `check_request`: keeps its arguments and returns the given report."""

    report: Report
    calls: list[tuple[TargetSpec, RunOptions, Claims, float]] = field(default_factory=list)

    def __call__(
        self, request: TargetSpec, settings: RunOptions, claims: Claims, time_limit: float, **_: Any
    ) -> Report:
        self.calls.append((request, settings, claims, time_limit))
        return self.report


@pytest.fixture
def fake_check(monkeypatch: pytest.MonkeyPatch, folder: Path) -> FakeCheck:
    (folder / samples.FILE).write_text(samples.SOURCE)
    fake = FakeCheck(samples.two_findings())
    module = ModuleType("attnshape.pipelines.check")
    module.check_request = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "attnshape.pipelines.check", module)
    return fake


def codes_of(text: str, where: str = "findings") -> list[str]:
    return [finding["code"] for finding in json.loads(text)[where]]


def test_flags_are_passed_to_the_pipeline(attnshape: Attnshape, fake_check: FakeCheck) -> None:
    attnshape(
        "check model.py:attend --init 'D, H' --input 'q: B H L Dk' --with mask=None --heads 3 --dim T=4 --seed 7 "
        "--train --claim causal --claim mask=keep --time-limit 2.5"
    )
    ((request, settings, claims, limit),) = fake_check.calls
    assert (request.target, request.init, request.inputs) == ("model.py:attend", "D, H", {"q": "B H L Dk"})
    assert (request.arguments, request.sizes) == ({"mask": "None"}, {"H": 3, "T": 4})
    assert (settings.seed, settings.train, settings.command[:22]) == (7, True, "attnshape check model.")
    assert (claims.causal, claims.arguments, limit) == (True, {"mask": "keep"}, 2.5)


def test_findings_are_status_1(attnshape: Attnshape, fake_check: FakeCheck) -> None:
    assert attnshape("check model.py:attend").status == 1
    fake_check.report = samples.no_findings()
    assert attnshape("check model.py:attend").status == 0


@pytest.mark.parametrize(
    ("flags", "status"), [("", 0), ("--strict", 1), ("--select AS2", 1), ("--select AS3", 0), ("--ignore AS2", 0)]
)
def test_notices_count_if_strict_or_selected(
    flags: str, status: int, attnshape: Attnshape, fake_check: FakeCheck
) -> None:
    notice = replace(samples.SCALE, level="notice")
    fake_check.report = replace(samples.no_findings(), findings=(notice,))
    result = attnshape(f"check model.py:attend --format json {flags}")
    assert (result.status, json.loads(result.out)["strict"]) == (status, "strict" in flags or "select" in flags)


@pytest.mark.parametrize(
    ("flags", "codes", "status"),
    [
        ("", ["AS201", "AS405"], 1),
        ("--select AS2", ["AS201"], 1),
        ("--select AS2,as405", ["AS201", "AS405"], 1),
        ("--ignore AS2 --ignore AS405", [], 0),
        ("--select AS4 --ignore AS405", [], 0),
        ("--select AS1", [], 0),
    ],
)
def test_select_and_ignore(
    flags: str, codes: list[str], status: int, attnshape: Attnshape, fake_check: FakeCheck
) -> None:
    result = attnshape(f"check model.py:attend --format json {flags}")
    assert (codes_of(result.out), result.status, result.err) == (codes, status, "")
    assert sorted(codes_of(result.out) + codes_of(result.out, "suppressed")) == ["AS201", "AS405", "AS901"]


def test_ignore_comment_suppresses_a_finding(attnshape: Attnshape, fake_check: FakeCheck, folder: Path) -> None:
    source = samples.SOURCE.replace("math.sqrt(D)", "math.sqrt(D)  # attnshape: ignore[AS201]")
    source = source.replace("mask, scores, -10.0", "mask, scores, -10.0  # attnshape: ignore")
    (folder / samples.FILE).write_text(source)
    result = attnshape("check model.py:attend --format json")
    assert (codes_of(result.out), result.status) == ([], 0)
    assert codes_of(result.out, "suppressed") == ["AS901", "AS201", "AS405"]


def test_typed_claims_replace_those_of_a_named_target(
    attnshape: Attnshape, fake_check: FakeCheck, folder: Path
) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.attnshape.targets.ours]\ntarget = "model.py:attend"\nclaim = ["causal", "mask=keep"]\nexpect = "y: B"\n'
    )
    attnshape("check ours")
    attnshape("check ours --claim alibi")
    assert [claims.texts for _, _, claims, _ in fake_check.calls] == [("causal", "mask=keep"), ("alibi",)]
    assert {request.target for request, *_ in fake_check.calls} == {"model.py:attend"}


def test_trace_ignores_the_claims_of_a_named_target(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.attnshape.targets.ours]\ntarget = "scaled-dot-product"\nclaim = "causal"\n'
    )
    result = attnshape("trace ours --format json")
    assert result.status == 0, result.err


@pytest.mark.parametrize("name", ["auto", "text", "markdown", "json", "github", "sarif"])
def test_output_formats_and_files(name: str, attnshape: Attnshape, fake_check: FakeCheck, folder: Path) -> None:
    printed = attnshape(f"check model.py:attend --format {name}")
    assert (printed.status, printed.err) == (1, "")
    assert "AS201" in printed.out
    written = attnshape(f"check model.py:attend --format {name} --output report")
    assert (written.status, written.out, written.err) == (1, "", "")
    assert (folder / "report").read_text(encoding="utf-8") == printed.out


def test_piped_output_is_markdown_with_the_source_line(attnshape: Attnshape, fake_check: FakeCheck) -> None:
    out = attnshape("check model.py:attend").out
    assert "```python\nscores = q @ k.transpose(-2, -1) / math.sqrt(D)\n         ^^^" in out


def test_pattern_flag_draws_patterns(attnshape: Attnshape, fake_check: FakeCheck) -> None:
    assert "■" not in attnshape("check model.py:attend --format text").out
    assert "  ■ ■ ·\n" in attnshape("check model.py:attend --format text --pattern").out


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--claim casual", "--claim 'casual' isn't a claim", "did you mean causal?"),
        ("--select AS29", "--select names 'AS29'", "the family has AS201"),
        ("--ignore nothing", "--ignore names 'nothing'", "attnshape rule lists all codes"),
        ("--time-limit soon", "--time-limit is 'soon'", "for example --time-limit 60"),
        ("--time-limit 0", "--time-limit is 0.0", "for example --time-limit 60"),
        ("--time-limit nan", "--time-limit is nan", "for example --time-limit 60"),
        ("--time-limit inf", "--time-limit is inf", "for example --time-limit 60"),
        ("--format table", "--format table can't show a report", "text, markdown, json, html, github, sarif"),
        ("--format xml", "there is no format 'xml'", "text, markdown, json, html, github, sarif"),
        ("--format sarif --pattern", "--format sarif can't draw patterns", "text, markdown"),
        ("--output no/such/file", "there is no folder no/such", "mkdir"),
        ("--heads none", "--heads is 'none'", "for example"),
        ("--expect 'y: B'", "--expect", "attnshape check --help"),
    ],
)
def test_bad_flags_are_reported_before_any_run(
    words: str, message: str, hint: str, attnshape: Attnshape, fake_check: FakeCheck
) -> None:
    result = attnshape(f"check model.py:attend {words}")
    assert (result.status, result.out) == (2, "")
    error, given_hint = result.err.splitlines()
    assert message in error
    assert hint in given_hint
    assert not fake_check.calls


def test_files_without_attention_are_left_out_among_others(
    attnshape: Attnshape, fake_check: FakeCheck, folder: Path
) -> None:
    code = "def attention(q, k):\n    return (q @ k.mT).softmax(-1) @ k\n"
    (folder / "some.py").write_text(code)
    (folder / "none.py").write_text("def double(x):\n    return 2 * x\n")
    for words in ("none.py some.py", "some.py none.py"):
        result = attnshape(f"check {words}")
        assert "no attention was found in none.py" in result.err.splitlines()
        assert fake_check.calls.pop()[0].target == "some.py:attention"
    result = attnshape("check none.py none.py")
    assert (result.status, result.out) == (2, "")
    assert "hint: write none.py:double" in result.err
