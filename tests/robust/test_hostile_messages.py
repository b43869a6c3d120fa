"""Hostile text in what isn't rendered by a format: errors, summaries, failing tests, diffs on a terminal, snapshots."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from attnshape.annotate.changes import Annotations, Omission, Place
from attnshape.annotate.source import PythonSource
from attnshape.annotate.styles import AnnotatedFile, Rewrite
from attnshape.cli.annotate import annotation_summary
from attnshape.cli.output import print_error
from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot
from attnshape.errors import AttnshapeError
from attnshape.reporters.escaping import visible, visible_lines
from attnshape.testing import assertions, plugin
from tests.reporters import sample_reports, sample_traces
from tests.reporters.hostile_text import PAYLOADS, with_text
from tests.reporters.oracles import check_lines, check_no_commands, without_style
from tests.terminal import read_all

TEXTS = pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS)


def check_message(text: str, lines: int) -> None:
    check_lines(text)
    check_no_commands(text)
    assert len(text.split("\n")) == lines


@TEXTS
def test_error_is_two_lines(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_error(AttnshapeError(text, text))
    check_message(capsys.readouterr().err.removesuffix("\n"), 2)


@TEXTS
def test_failing_assertion(text: str) -> None:
    trace = with_text(sample_traces.every_text(), text)
    check_message(str(assertions._problem(trace, [])), 3)
    trace = with_text(sample_traces.verified(), text)
    for results in ([(text, None)], []):
        message = str(assertions._problem(trace, results))
        check_lines(message)
        check_no_commands(message)


@TEXTS
def test_failing_snapshot(text: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    trace = with_text(sample_traces.every_text(), text)
    check_message(plugin._failed(trace, update=True), 2)
    (tmp_path / "x.txt").write_text(f"attnshape snapshot 1\n{visible(text)}\n", encoding="utf-8")
    check_message(str(plugin._problem(tmp_path / "x.txt", trace, pytestconfig)), 2)
    missing = tmp_path / text.replace("\0", "")[:100]
    if not missing.exists():
        check_message(str(plugin._problem(missing, trace, pytestconfig)), 2)


@TEXTS
def test_snapshot_keeps_the_text(text: str) -> None:
    snapshot = snapshot_of(with_text(sample_traces.multi_head(), text))
    written = write_snapshot(snapshot)
    assert all(line.isprintable() for line in written.split("\n"))
    assert read_snapshot(written.encode().decode()) == snapshot


@TEXTS
def test_summary_of_annotations(text: str) -> None:
    source = PythonSource(Path(text), b"x = 1\n", "utf-8")
    place = Place(text, 1, "local", text, 0)
    annotated = AnnotatedFile(
        source,
        "jaxtyping",
        Rewrite(Annotations(unpacked=[place, place]), ((source, ()),)),
        omissions=(Omission(text, text),),
        verified_at=(text, text),
        findings=with_text(sample_reports.every_text(), text).findings,
    )
    for line in annotation_summary(annotated, written=False):
        check_message(visible(line), 1)


@TEXTS
def test_lines_for_a_terminal(text: str) -> None:
    data = f"+\t{text}\n".encode(errors="surrogateescape" if "\udcff" in text else "replace")
    shown = visible_lines(data).decode()
    assert shown.count("\n") == data.count(b"\n")
    check_lines(shown.replace("\t", "").replace("\r\n", "\n"))


MODEL = '''
def f(x):
    """Ring \x07 and clear \x1b[2J the screen, ##[error] too."""
    y = x + 1
    return y
'''


@pytest.mark.parametrize("color", [True, False])
def test_diff_is_escaped_on_a_terminal_only(color: bool, here: Path) -> None:
    (here / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "attnshape", "annotate", "model.py:f", "--input", "x: B L"]
    environment = {**os.environ, "TERM": "xterm", **({} if color else {"NO_COLOR": "1"})}
    leader, follower = pty.openpty()
    subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment, timeout=120, check=True)
    os.close(follower)
    shown = read_all(leader)
    assert ("\x1b[36m@@" in shown) == color
    check_lines(without_style(shown))
    assert "Ring \\x07 and clear \\x1b[2J the screen" in shown
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert "Ring \x07 and clear \x1b[2J the screen" in piped.stdout
