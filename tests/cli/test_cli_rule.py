"""`attnshape rule`: pages and their list, on terminals and in pipes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from attnshape.checks.rules.pages import codes, page
from tests.cli.running import ROOT, Attnshape
from tests.terminal import read_all


def test_no_code_lists_all_rules(attnshape: Attnshape) -> None:
    result = attnshape("rule")
    assert (result.status, result.err) == (0, "")
    assert [word for word in result.out.split() if word in codes()] == list(codes())
    assert "AS2  scores\n  AS201  scores are scaled by the model's width\n" in result.out


@pytest.mark.parametrize("code", ["AS201", "as201", " As201 "])
def test_page_in_a_pipe_is_markdown(code: str, attnshape: Attnshape) -> None:
    result = attnshape("rule", code)
    assert (result.status, result.err) == (0, "")
    assert result.out == page("AS201").markdown


def test_family_is_listed(attnshape: Attnshape) -> None:
    assert attnshape("rule as6").out == (
        "AS6  heads\n"
        "  AS601  key and value heads are repeated in the wrong order\n"
        "  AS602  key and value heads are repeated along the wrong axis\n"
        "  AS603  heads are mixed\n"
        "  AS604  heads are merged in another order than they were split\n"
    )
    assert attnshape("rule AS11").out.count("AS11") == 9


@pytest.mark.parametrize("code", ["AS999", "softmax", "", "\x1b[31m", "../../README"])
def test_unknown_code_is_refused(code: str, attnshape: Attnshape) -> None:
    result = attnshape("rule", code)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: there is no rule ")
    assert "\nhint: " in result.err
    assert "\x1b" not in result.err


def test_list_fits_the_width(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = attnshape("rule").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.startswith("  AS") for line in lines) == len(codes())


def test_rule_does_not_import_torch() -> None:
    script = (
        "import sys\n"
        "from attnshape.cli.app import run\n"
        "status = [run(words) for words in (['rule'], ['rule', 'AS201'], ['rule', 'AS3'], ['check', '--help'])]\n"
        "print(status, [name for name in ('torch', 'rich.console') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] []"


@pytest.mark.parametrize("color", [True, False])
def test_page_on_a_terminal_is_rendered(color: bool) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60"}
    environment |= {} if color else {"NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "attnshape", "rule", "AS201"], cwd=ROOT, stdout=follower, env=environment
    ) as process:
        os.close(follower)
        printed = read_all(leader)
    assert process.returncode == 0
    assert ("\x1b[" in printed) == color
    assert "```" not in printed
    assert "  scores = q @ k.transpose(-2, -1) / math.sqrt(Dk)" in printed
    if not color:
        assert max(map(len, printed.splitlines())) <= 60
