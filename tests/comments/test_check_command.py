"""`attnshape check --select AS0`: formats, exit statuses, suppressions, and hostile, unusual or missing source."""

import contextlib
import json
import re
import signal
from pathlib import Path

import pytest

import attnshape.pipelines.comments
from attnshape.errors import format_exception
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from attnshape.pipelines.comments import check_comments
from tests.cli.running import Attnshape, Result

CODE = """
import torch


def attend(q, k, v):
    B, H, T, hs = q.shape
    scores = q @ k.mT / hs**0.5  # (B, H, T, S){first}
    out = scores.softmax(-1) @ v  # {second}
    return out.transpose(1, 2)  # (B, T, H, hs)


def case(B, H, Lq, Lk, Dk):
    return attend, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk))
"""
RIGHT, SWAPPED = "(B, H, T, hs)", "(B, T, H, hs)"


def write_model(second: str, first: str = "", name: str = "model.py") -> str:
    Path(name).write_text(CODE.replace("{first}", first).replace("{second}", second), encoding="utf-8")
    return f"check {name}:case --select AS0"


def test_correct_comments_are_counted_and_status_0(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(write_model(RIGHT))
    assert (done.status, done.err) == (0, "")
    assert "verified: 3 documented shapes hold\n" in done.out


def test_finding_points_at_the_shape_and_is_status_1(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(f"{write_model(SWAPPED)} --format text")
    assert done.status == 1
    message = "model.py:8:37: warning AS002 `out` is documented as (B, T, H, hs), but has shape (B, H, T, hs)"
    assert message in " ".join(done.out.split())
    assert "hint: write (B, H, T, hs)" in done.out
    assert "2 documented shapes hold" in done.out


def test_select_as0_checks_only_documented_shapes(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(write_model(RIGHT) + " --format json")
    report = json.loads(done.out)
    assert report["verified"] == ["3 documented shapes hold"]
    assert (report["facts"], report["patterns"], report["runs"]) == ([], [], 5)
    whole = json.loads(attnshape("check model.py:case --format json").out)
    assert report["verified"][0] in whole["verified"]
    assert len(whole["verified"]) > 3


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", "model.py:8:37: warning AS002 `out` is documented as (B, T, H, hs)"),
        ("markdown", "AS002"),
        ("github", "::warning file=model.py,line=8"),
        ("json", '"code": "AS002"'),
        ("sarif", '"ruleId": "AS002"'),
    ],
)
def test_every_format_has_the_finding(attnshape: Attnshape, folder: Path, form: str, expected: str) -> None:
    done = attnshape(write_model(SWAPPED) + f" --format {form}")
    assert done.status == 1
    assert expected.replace(" ", "") in done.out.replace(" ", "")
    if form in ("json", "sarif"):
        json.loads(done.out)


@pytest.mark.parametrize("comment", ["ignore[AS002]", "ignore[AS0]", "ignore", "ignore[AS002, AS103]"])
def test_ignore_comment_on_the_line_suppresses_the_finding(attnshape: Attnshape, folder: Path, comment: str) -> None:
    done = attnshape(write_model(f"{SWAPPED}  # attnshape: {comment}"))
    assert done.status == 0
    assert re.search(r"suppressed.*AS002", done.out, re.DOTALL)


def test_ignore_comment_with_another_code_suppresses_nothing(attnshape: Attnshape, folder: Path) -> None:
    assert attnshape(write_model(f"{SWAPPED}  # attnshape: ignore[AS003]")).status == 1


@pytest.mark.parametrize(
    ("options", "status"),
    [("AS0", 1), ("AS002", 1), ("AS003", 0), ("AS0 --ignore AS002", 0), ("AS0 --ignore AS001", 1)],
)
def test_select_and_ignore_codes(attnshape: Attnshape, folder: Path, options: str, status: int) -> None:
    write_model(SWAPPED)
    assert attnshape(f"check model.py:case --select {options}").status == status


def test_full_check_has_the_finding(attnshape: Attnshape, folder: Path) -> None:
    write_model(SWAPPED)
    done = attnshape("check model.py:case --format json")
    assert [finding["code"] for finding in json.loads(done.out)["findings"]] == ["AS002"]


MARKUP = [
    "(B, T, H, hs) \x1b[31m red \x1b[0m",
    "(B, T, H, hs)  [bold]x[/bold] | `x` <b>|</b>",
    "(B, T, H, hs) %0A::error::%0D",
    "(B, T, H, hs) \u202e \u2066 \x07",
]
LONG = [
    "(B, T, H, hs) " + "x" * 10_000,
    "(" + ", ".join(["B"] * 3000) + ")",
    "(" * 5000 + ")" * 5000,
    "(B, T, H, " + "-" * 3000 + "hs)",
    "(B, " + "(" * 90 + "T" + ")" * 90 + ", H, hs)",
    "(B, T**T**T, H, hs)",
    "(B, 9" + "9" * 5000 + ", H, hs)",
    "(B, T, H, hs/0)",
    "(B, T, H, hs // (B - B))",
    "(B, ̈T, H, hs)",
    "(B, ²T, H, ①)",
    "-> " * 2000,
    "(B, T) @ " * 1000,
    "q: " * 2000 + "(B, T)",
    "B x " * 3000,
    "a, " * 3000,
    ":math:`\\text{" * 500,
]


def checked_output(done: Result) -> str:
    """Return the output of a check, and assert a valid exit status and no control characters."""
    assert done.status in (0, 1), done.err
    assert "Traceback" not in done.out + done.err
    assert "not checked" not in done.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", done.out)
    return done.out


@pytest.mark.parametrize("comment", MARKUP, ids=range(len(MARKUP)))
def test_markup_and_control_characters_are_escaped(attnshape: Attnshape, folder: Path, comment: str) -> None:
    command = write_model(comment)
    assert "AS002" in checked_output(attnshape(f"{command} --format text"))
    markdown = checked_output(attnshape(f"{command} --format markdown"))
    assert "<b>" not in re.sub(r"(`+).*?\1", "", markdown, flags=re.DOTALL)
    github = checked_output(attnshape(f"{command} --format github")).splitlines()
    assert len([line for line in github if line.startswith("::")]) == 1
    assert all("::error::" not in line.removeprefix("::error ") for line in github)


@pytest.mark.parametrize("comment", LONG, ids=range(len(LONG)))
def test_long_and_odd_comments_do_not_crash(attnshape: Attnshape, folder: Path, comment: str) -> None:
    checked_output(attnshape(write_model(comment) + " --format text"))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_file_in_another_encoding_does_not_crash(attnshape: Attnshape, folder: Path, encoding: str) -> None:
    text = CODE.replace("{first}", "").replace("{second}", f"{SWAPPED} é")
    head = "# -*- coding: latin-1 -*-" if encoding == "latin-1" else ""
    Path("model.py").write_bytes((head + text).encode(encoding))
    done = attnshape("check model.py:case --select AS0")
    assert done.status == (1 if encoding == "latin-1" else 2)
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize(
    "change",
    [
        "Path(__file__).unlink(missing_ok=True)",
        "Path(__file__).write_text('')",
        "Path(__file__).write_text('def attend(:')",
        "Path(__file__).write_bytes(bytes(range(256)))",
        "Path(__file__).write_text('# (B, T, H)' * 1000)",
        "Path(__file__).write_text('\\n' * 20 + 'def attend(q): ...')",
        "Path(__file__).write_text('\\n' * 5 + 'def attend(q): ...  # (B, T)')",
    ],
)
def test_file_that_changes_during_the_run_does_not_crash(attnshape: Attnshape, folder: Path, change: str) -> None:
    command = write_model(SWAPPED)
    path = Path("model.py")
    path.write_text(
        "from pathlib import Path\n" + path.read_text().replace("    B, H, T", f"    {change}\n    B, H, T")
    )
    done = attnshape(command)
    assert done.status in (0, 1), done.err
    assert "Traceback" not in done.out + done.err


def test_function_without_source_has_no_findings(attnshape: Attnshape, folder: Path) -> None:
    inner = CODE.replace("{first}", "").replace("{second}", SWAPPED)
    Path("made.py").write_text(f"exec({inner!r})\n")
    done = attnshape("check made.py:case --select AS0 --format json")
    report = json.loads(done.out)
    assert (done.status, report["findings"], report["verified"]) == (0, [], [])


def test_torch_function_has_no_findings(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape("check torch.nn.functional:softmax --input 'input: B L' --with dim=-1 --select AS0")
    assert done.status == 0, done.err
    assert "AS00" not in done.out


def test_failing_target_is_status_2(attnshape: Attnshape, folder: Path) -> None:
    command = write_model(RIGHT)
    Path("model.py").write_text(Path("model.py").read_text().replace("q @ k.mT", "q @ k"))
    done = attnshape(command)
    assert (done.status, done.out) == (2, "")
    assert "the target fails" in done.err


@pytest.mark.parametrize("error", [RuntimeError("of the comparison"), RecursionError("too deep"), SystemExit(3)])
@pytest.mark.parametrize("step", ["verify_shape_comments", "may_document_shapes", "runs_at"])
def test_internal_error_is_reported_as_not_checked(
    monkeypatch: pytest.MonkeyPatch, folder: Path, error: BaseException, step: str
) -> None:
    write_model(SWAPPED)

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(attnshape.pipelines.comments, step, fails)
    alone = check_comments(TargetSpec("model.py:case"), RunOptions(), 300.0, contextlib.nullcontext)
    whole = check_request(TargetSpec("model.py:case"), RunOptions(), Claims(), 300.0, contextlib.nullcontext)
    why = f"the comparison failed: {format_exception(error)}"
    for report in (alone, whole):
        assert (("shape comments", why)) in [(entry.what, entry.why) for entry in report.not_checked]
        assert report.findings == ()
    assert len(whole.verified) > 3


def test_keyboard_interrupt_propagates(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    write_model(SWAPPED)

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(attnshape.pipelines.comments, "verify_shape_comments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_comments(TargetSpec("model.py:case"), RunOptions(), 300.0, contextlib.nullcontext)


POOL = '''
import torch
from torch import nn


class Pool(nn.Module):
    """Pool keys by their scores.

    Args:
        mask: (B, L, 1), true for keys that are kept.
    """

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, keys, mask):
        # keys: (B, L, D)
        scores = self.score(keys).squeeze(-1).masked_fill(~mask, -1e9)  # (B, L)
        return (scores.softmax(-1)[:, None] @ keys).squeeze(1)
'''


def test_shape_of_an_argument_that_attnshape_chose_is_not_a_finding(attnshape: Attnshape, folder: Path) -> None:
    Path("pool.py").write_text(POOL)
    chosen = json.loads(attnshape("check pool.py --select AS0 --format json --no-cache").out)
    report = chosen.get("results", [chosen])[0].get("report", chosen)
    assert '--input "mask: bool B L"' in report["found"]
    assert report["findings"] == []
    assert "the documented shape of mask, (B, L, 1)" in [one["what"] for one in report["not_checked"]]
    given = 'check pool.py:Pool --select AS0 --format json --init D --input "keys: B L D" --input "mask: bool B L"'
    (finding,) = json.loads(attnshape(given).out)["findings"]
    assert finding["message"] == "`mask` is documented as (B, L, 1), but has shape (B, L)"
