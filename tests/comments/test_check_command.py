"""`attnshape check --select AS0`: formats, exit statuses, suppressions, and hostile, unusual or missing source."""

import contextlib
import json
import re
import signal
from pathlib import Path

import pytest

import attnshape.pipelines.comments
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


def written(second: str, first: str = "", name: str = "model.py") -> str:
    Path(name).write_text(CODE.replace("{first}", first).replace("{second}", second), encoding="utf-8")
    return f"check {name}:case --select AS0"


def test_what_holds_is_counted_and_is_status_0(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(written(RIGHT))
    assert (done.status, done.err) == (0, "")
    assert "verified: 3 documented shapes hold\n" in done.out


def test_a_finding_is_at_the_shape_and_is_status_1(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(f"{written(SWAPPED)} --format text")
    assert done.status == 1
    message = "model.py:8:37: AS002 `out` is documented as (B, T, H, hs), but has shape (B, H, T, hs)"
    assert message in " ".join(done.out.split())
    assert "hint: write (B, H, T, hs)" in done.out
    assert "2 documented shapes hold" in done.out


def test_only_what_is_written_is_looked_at(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape(written(RIGHT) + " --format json")
    report = json.loads(done.out)
    assert report["verified"] == ["3 documented shapes hold"]
    assert (report["facts"], report["patterns"], report["runs"]) == ([], [], 5)
    whole = json.loads(attnshape("check model.py:case --format json").out)
    assert report["verified"][0] in whole["verified"]
    assert len(whole["verified"]) > 3


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("text", "model.py:8:37: AS002 `out` is documented as (B, T, H, hs)"),
        ("markdown", "AS002"),
        ("github", "::error file=model.py,line=8"),
        ("json", '"code": "AS002"'),
        ("sarif", '"ruleId": "AS002"'),
    ],
)
def test_every_format_says_it(attnshape: Attnshape, folder: Path, form: str, shown: str) -> None:
    done = attnshape(written(SWAPPED) + f" --format {form}")
    assert done.status == 1
    assert shown.replace(" ", "") in done.out.replace(" ", "")
    if form in ("json", "sarif"):
        json.loads(done.out)


@pytest.mark.parametrize("comment", ["ignore[AS002]", "ignore[AS0]", "ignore", "ignore[AS002, AS103]"])
def test_a_comment_on_its_line_silences_it(attnshape: Attnshape, folder: Path, comment: str) -> None:
    done = attnshape(written(f"{SWAPPED}  # attnshape: {comment}"))
    assert done.status == 0
    assert re.search(r"suppressed.*AS002", done.out, re.DOTALL)


def test_a_comment_of_another_code_silences_nothing(attnshape: Attnshape, folder: Path) -> None:
    assert attnshape(written(f"{SWAPPED}  # attnshape: ignore[AS003]")).status == 1


@pytest.mark.parametrize(
    ("options", "status"),
    [("AS0", 1), ("AS002", 1), ("AS003", 0), ("AS0 --ignore AS002", 0), ("AS0 --ignore AS001", 1)],
)
def test_codes_are_selected(attnshape: Attnshape, folder: Path, options: str, status: int) -> None:
    written(SWAPPED)
    assert attnshape(f"check model.py:case --select {options}").status == status


def test_a_check_of_everything_has_it_too(attnshape: Attnshape, folder: Path) -> None:
    written(SWAPPED)
    done = attnshape("check model.py:case --format json")
    assert [one["code"] for one in json.loads(done.out)["findings"]] == ["AS002"]


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


def shown(done: Result) -> str:
    """Return what a check wrote, which ended as a check does and holds nothing that a terminal would obey."""
    assert done.status in (0, 1), done.err
    assert "Traceback" not in done.out + done.err
    assert "not checked" not in done.out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", done.out)
    return done.out


@pytest.mark.parametrize("comment", MARKUP, ids=range(len(MARKUP)))
def test_markup_and_control_characters_are_text(attnshape: Attnshape, folder: Path, comment: str) -> None:
    command = written(comment)
    assert "AS002" in shown(attnshape(f"{command} --format text"))
    markdown = shown(attnshape(f"{command} --format markdown"))
    assert "<b>" not in re.sub(r"(`+).*?\1", "", markdown, flags=re.DOTALL)
    github = shown(attnshape(f"{command} --format github")).splitlines()
    assert len([line for line in github if line.startswith("::")]) == 1
    assert all("::error::" not in line.removeprefix("::error ") for line in github)


@pytest.mark.parametrize("comment", LONG, ids=range(len(LONG)))
def test_long_and_odd_comments_end_no_check(attnshape: Attnshape, folder: Path, comment: str) -> None:
    shown(attnshape(written(comment) + " --format text"))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_in_another_encoding_ends_no_check(attnshape: Attnshape, folder: Path, encoding: str) -> None:
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
def test_a_file_that_changes_while_it_runs_ends_no_check(attnshape: Attnshape, folder: Path, change: str) -> None:
    command = written(SWAPPED)
    path = Path("model.py")
    path.write_text(
        "from pathlib import Path\n" + path.read_text().replace("    B, H, T", f"    {change}\n    B, H, T")
    )
    done = attnshape(command)
    assert done.status in (0, 1), done.err
    assert "Traceback" not in done.out + done.err


def test_a_function_without_source_claims_nothing(attnshape: Attnshape, folder: Path) -> None:
    inner = CODE.replace("{first}", "").replace("{second}", SWAPPED)
    Path("made.py").write_text(f"exec({inner!r})\n")
    done = attnshape("check made.py:case --select AS0 --format json")
    report = json.loads(done.out)
    assert (done.status, report["findings"], report["verified"]) == (0, [], [])


def test_a_target_of_torch_alone_claims_nothing(attnshape: Attnshape, folder: Path) -> None:
    done = attnshape("check torch.nn.functional:softmax --input 'input: B L' --with dim=-1 --select AS0")
    assert done.status == 0, done.err
    assert "AS00" not in done.out


def test_one_that_fails_is_status_2(attnshape: Attnshape, folder: Path) -> None:
    command = written(RIGHT)
    Path("model.py").write_text(Path("model.py").read_text().replace("q @ k.mT", "q @ k"))
    done = attnshape(command)
    assert (done.status, done.out) == (2, "")
    assert "the target fails" in done.err


@pytest.mark.parametrize("error", [RuntimeError("of the comparison"), RecursionError("too deep"), SystemExit(3)])
@pytest.mark.parametrize("step", ["verify_shape_comments", "may_document_shapes", "runs_at"])
def test_an_error_in_the_comparison_ends_no_check(
    monkeypatch: pytest.MonkeyPatch, folder: Path, error: BaseException, step: str
) -> None:
    written(SWAPPED)

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(attnshape.pipelines.comments, step, fails)
    alone = check_comments(TargetSpec("model.py:case"), RunOptions(), 60.0, contextlib.nullcontext)
    whole = check_request(TargetSpec("model.py:case"), RunOptions(), Claims(), 60.0, contextlib.nullcontext)
    why = f"the comparison failed: {type(error).__name__}: {error}"
    for report in (alone, whole):
        assert (("shape comments", why)) in [(one.what, one.why) for one in report.not_checked]
        assert report.findings == ()
    assert len(whole.verified) > 3


def test_interruptions_end_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    written(SWAPPED)

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(attnshape.pipelines.comments, "verify_shape_comments", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_comments(TargetSpec("model.py:case"), RunOptions(), 60.0, contextlib.nullcontext)
