"""`attnshape rule`: pages and their list, for people and for pipes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from attnshape.checks.rules.pages import codes, page
from tests.cli.running import ROOT, Attnshape
from tests.terminal import read_all


def test_without_a_code_all_are_listed(attnshape: Attnshape) -> None:
    result = attnshape("rule")
    assert (result.status, result.err) == (0, "")
    assert [word for word in result.out.split() if word in codes()] == list(codes())
    assert "AS2  scores\n  AS201  scores are scaled by the model's width\n" in result.out


@pytest.mark.parametrize("given", ["AS201", "as201", " As201 "])
def test_a_page_in_a_pipe_is_its_markdown(given: str, attnshape: Attnshape) -> None:
    result = attnshape("rule", given)
    assert (result.status, result.err) == (0, "")
    assert result.out == page("AS201").markdown


def test_a_family_is_listed(attnshape: Attnshape) -> None:
    assert attnshape("rule as6").out == (
        "AS6  grouped heads\n"
        "  AS601  key and value heads are repeated in the wrong order\n"
        "  AS602  key and value heads are repeated along the wrong axis\n"
    )
    assert attnshape("rule AS11").out.count("AS11") == 6


@pytest.mark.parametrize("given", ["AS999", "softmax", "", "\x1b[31m", "../../README"])
def test_what_is_no_code_is_refused(given: str, attnshape: Attnshape) -> None:
    result = attnshape("rule", given)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: there is no rule ")
    assert "\nhint: " in result.err
    assert "\x1b" not in result.err


def test_the_list_fits_its_width(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = attnshape("rule").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.startswith("  AS") for line in lines) == len(codes())


def test_no_torch_is_imported() -> None:
    script = (
        "import sys\n"
        "from attnshape.cli.app import run\n"
        "status = [run(words) for words in (['rule'], ['rule', 'AS201'], ['rule', 'AS3'], ['check', '--help'])]\n"
        "print(status, [name for name in ('torch', 'rich.console') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] []"


@pytest.mark.parametrize("color", [True, False])
def test_a_page_on_a_terminal_is_laid_out(color: bool) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60"}
    environment |= {} if color else {"NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "attnshape", "rule", "AS201"], cwd=ROOT, stdout=follower, env=environment
    ) as process:
        os.close(follower)
        shown = read_all(leader)
    assert process.returncode == 0
    assert ("\x1b[" in shown) == color
    assert "```" not in shown
    assert "  scores = q @ k.transpose(-2, -1) / math.sqrt(Dk)" in shown
    if not color:
        assert max(map(len, shown.splitlines())) <= 60
