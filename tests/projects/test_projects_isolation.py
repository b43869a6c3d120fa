"""Targets run one after another in one process, without affecting each other."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ROOT, Attnshape
from tests.cli.test_cli_progress import screen
from tests.projects.models import DOUBLE, ENTRY, RIGHT
from tests.terminal import read_all

DOUBLES = "def f(x):\n    made = x * 2\n    return made\n"


def entries(**targets: str) -> str:
    return "".join(
        f'[tool.attnshape.targets.{name}]\ntarget = "{target}"\ninputs = ["x: B L"]\n'
        for name, target in targets.items()
    )


def results(text: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(text)["results"]}


def expression(entry: dict[str, Any]) -> str:
    return str(entry["trace"]["steps"][-1]["expression"])


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("def f(:\n", "invalid syntax"),
        ("import helper\nimport nosuch_library\n", "bad.py has no f"),
        (
            "import os, sys, torch\nos.chdir('/')\nsys.path.clear()\ntorch.set_default_dtype(torch.float16)\n"
            "os.environ.clear()\nraise ValueError('spoilt')\n",
            "ValueError: spoilt",
        ),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_failing_import_does_not_affect_the_next_target(
    bad: str, error: str, attnshape: Attnshape, folder: Path
) -> None:
    write(folder, {"bad.py": bad, "good.py": f"import helper\n{DOUBLES}", "helper.py": "", "model.py": RIGHT})
    (folder / "pyproject.toml").write_text(entries(bad="bad.py:f", good="good.py:f") + ENTRY)
    result = attnshape("trace --all --format json")
    found = results(result.out)
    assert result.status == 2
    assert error.lower() in found["bad"]["error"]["message"].lower()
    alone = attnshape("trace good --format json").trace
    assert {**found["good"]["trace"], "command": ""} == {**alone, "command": ""}
    assert found["attention"]["trace"]["complete"] is True
    assert found["attention"]["trace"]["dtype"] == "float32"


def test_files_of_the_same_name_import_from_their_own_folder(attnshape: Attnshape, folder: Path) -> None:
    model = "from layers import scale\n\n\ndef f(x):\n    made = scale(x)\n    return made\n"
    for name, number in (("a", 2), ("b", 3), ("c", 5)):
        runs = f"import builtins\nbuiltins.ran_{name} = getattr(builtins, 'ran_{name}', 0) + 1\n"
        write(
            folder,
            {f"{name}/model.py": model, f"{name}/layers.py": f"{runs}def scale(x):\n    return x * {number}\n"},
        )
    (folder / "pyproject.toml").write_text(
        entries(a="a/model.py:f", b="b/model.py:f", c="c/model.py:f", again="a/model.py:f", b2="./b/model.py:f")
    )
    result = attnshape("trace --all --format json")
    found = results(result.out)
    assert result.status == 0
    assert {name: expression(entry) for name, entry in found.items()} == {
        "a": "x * 2",
        "b": "x * 3",
        "c": "x * 5",
        "again": "x * 2",
        "b2": "x * 3",
    }
    import builtins

    # modules that register something, such as a torch operator, must be imported only once
    assert [vars(builtins).pop(f"ran_{name}") for name in "abc"] == [1, 1, 1]


def test_packages_of_the_same_name_in_folders(attnshape: Attnshape, folder: Path) -> None:
    model = "from pkg.layers import scale\n\n\ndef f(x):\n    made = scale(x)\n    return made\n"
    for name, number in (("a", 2), ("b", 3)):
        write(
            folder,
            {
                f"{name}/pkg/__init__.py": "",
                f"{name}/pkg/model.py": model,
                f"{name}/pkg/layers.py": f"def scale(x):\n    return x * {number}\n",
            },
        )
    (folder / "pyproject.toml").write_text(entries(a="a/pkg/model.py:f", b="b/pkg/model.py:f"))
    found = results(attnshape("trace --all --format json").out)
    assert [expression(result) for result in found.values()] == ["x * 2", "x * 3"]


def test_project_modules_are_imported_once(attnshape: Attnshape, folder: Path) -> None:
    write(
        folder,
        {
            # no other test has modules of these names
            "imported_first.py": f"import imported_by_both\n{DOUBLES}",
            "imported_next.py": f"import imported_by_both\n{DOUBLES}",
            "imported_by_both.py": "import builtins\nbuiltins.ran = getattr(builtins, 'ran', 0) + 1\n",
        },
    )
    (folder / "pyproject.toml").write_text(
        entries(a="imported_first.py:f", b="imported_next.py:f", c="imported_first:f")
    )
    assert attnshape("trace --all").status == 0
    import builtins

    assert vars(builtins).pop("ran") == 1


SLOW = """
import time
def f(x):
    time.sleep(2.6 if x.shape[0] == 4 else 0)
    return x * 2
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}


def start(folder: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "attnshape", *words]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=follower, stderr=follower)
    os.close(follower)
    return process, leader


@pytest.fixture
def slow(folder: Path) -> Path:
    write(folder, {"slow.py": SLOW, "model.py": RIGHT})
    (folder / "pyproject.toml").write_text(
        entries(slow="slow.py:f") + "sizes = [{ B = 4, L = 1 }, { B = 5 }]\n" + DOUBLE
    )
    return folder


@pytest.mark.slow
def test_progress_is_shown_and_erased(slow: Path) -> None:
    process, leader = start(slow, "trace", "--all")
    output = read_all(leader)
    assert process.wait() == 0
    assert "attnshape: 1 of 3: slow, B=4 L=1: run" in output
    lines = screen(output)
    assert not any("attnshape: " in line for line in lines)
    assert [line for line in lines if set(line) == {"="}] == ["=" * 13, "=" * 9, "=" * 6, "=" * 7]
    assert lines[-2:] == ["3 results: 3 fine", ""]


@pytest.mark.slow
def test_ctrl_c_ends_the_whole_batch(slow: Path) -> None:
    process, leader = start(slow, "trace", "--all")
    output = ""
    until = time.monotonic() + 60
    while "1 of 3" not in output and time.monotonic() < until:
        output += os.read(leader, 65536).decode()
    process.send_signal(signal.SIGINT)
    output += read_all(leader)
    assert process.wait() == 130
    assert "Traceback" not in output
    assert "double" not in output


def test_ctrl_c_leaves_no_partial_file(slow: Path) -> None:
    process, leader = start(slow, "trace", "--all", "--output", "all.json", "--format", "json")
    until = time.monotonic() + 60
    while b"1 of 3" not in os.read(leader, 65536) and time.monotonic() < until:
        pass
    process.send_signal(signal.SIGINT)
    read_all(leader)
    assert process.wait() == 130
    assert {path.name for path in slow.iterdir()} - {"__pycache__"} == {"slow.py", "model.py", "pyproject.toml"}
