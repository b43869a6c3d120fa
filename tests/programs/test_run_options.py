"""`--save` and `--check` of `attnshape run`."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.programs.programs import SOURCES, watched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and a program."""
    for file in SOURCES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_save_adds_a_target_once_and_keeps_the_rest(folder: Path) -> None:
    file = folder / "pyproject.toml"
    before = '# kept\n[tool.attnshape.targets."causal-self-attention"]\ntarget = "multi-head"  # mine\n'
    file.write_text(before)
    first = watched(["train.py"], folder, options=("--save",))
    assert first.status == 7
    assert "added to pyproject.toml: causal-self-attention-2" in first.errors
    after = file.read_text()
    assert after.startswith(before)
    assert tomllib.loads(after)["tool"]["attnshape"]["targets"]["causal-self-attention-2"] == {
        "target": "model.py:CausalSelfAttention",
        "init": "GPTConfig(block_size=32, n_head=H, n_embd=D, dropout=0.1)",
        "inputs": ["x: B L D"],
        "sizes": {"H": 4, "D": 32, "B": 6, "L": 32},
    }
    second = watched(["train.py"], folder, options=("--save",))
    assert "in pyproject.toml already: causal-self-attention-2" in second.errors
    assert file.read_text() == after


def test_check_reports_after_the_summary_and_keeps_the_status(folder: Path) -> None:
    source = (folder / "model.py").read_text()
    wrong = source.replace("y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)")
    assert wrong != source
    (folder / "model.py").write_text(wrong)
    run = watched(["train.py"], folder, options=("--check",))
    assert run.status == 7
    summary, _, report = run.errors.partition("attnshape check model.py:CausalSelfAttention")
    assert summary.startswith("attnshape: 1 attention")
    assert ": error AS" in report


def test_own_option_after_the_program_is_noted(folder: Path) -> None:
    (folder / "plain.py").write_text("import sys\nprint(sys.argv[1:])\n")
    run = watched(["plain.py", "--check"], folder)
    assert run.output == "['--check']\n"
    assert "note: --check is the program's, since it comes after plain.py; ours come before it" in run.errors
    assert "note" not in watched(["plain.py", "check"], folder).errors
