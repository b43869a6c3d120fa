"""docs/security.md: what never runs code runs none in a hostile folder, and what runs code does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attnshape
from attnshape.cli.app import app
from attnshape.comparison.snapshot import snapshot_of, write_snapshot
from attnshape.dims.arithmetic import AXIS, REAL, SIZE
from attnshape.model.trace import read_trace
from tests.docs.pages import DOCS

PAGE = (DOCS / "security.md").read_text(encoding="utf-8")
SHADOWED = ("json", "re", "rich", "typer", "msgspec", "torch", "numpy", "sitecustomize", "usercustomize", "conftest")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every Python file, target, option and text of a saved file would leave the marker `ran`."""
    folder = tmp_path_factory.mktemp("hostile")
    marker = str(folder / "ran")
    payload = f"open('{marker}','w').close()"
    code = f"{payload}\ndef f(x):\n    return x\n"
    (folder / "attnshape").mkdir()
    for name in ("model", "setup", "attnshape/__init__", *SHADOWED):
        (folder / f"{name}.py").write_text(code)
    targets = "".join(
        f'[tool.attnshape.targets."{name}"]\ntarget = "model.py:f"\ninit = "{payload}"\nwith = {{ x = "{payload}" }}\n'
        for name in ("self", "old.json", "new.json", "old.txt", "new.txt", "./old", "./new")
    )
    (folder / "pyproject.toml").write_text(targets)
    for side, L in (("old", 10), ("new", 11)):
        # diff evaluates the formulas of strides that have gaps
        saved = json.loads(attnshape.trace(every_other, inputs={"x": "B L D"}, L=L, D=6).to_json())
        (folder / f"{side}.json").write_text(json.dumps(planted(saved, payload)))
        (folder / f"{side}.txt").write_text(write_snapshot(snapshot_of(read_trace(folder / f"{side}.json"))))
        (folder / side).mkdir()
        shutil.copy(folder / f"{side}.json", folder / side / "trace.json")
    (folder / "pickled.json").write_bytes(b"cposix\nsystem\n(S'touch " + marker.encode() + b"'\ntR.")
    return folder


def every_other(x: torch.Tensor) -> torch.Tensor:
    return x[..., ::2].softmax(dim=-1) + x[..., 1::2]


def planted(value: Any, payload: str, key: str = "") -> Any:
    """Return a saved trace with the payload in each text that is an expression, a formula, a name or a message."""
    if isinstance(value, dict):
        filled = {name: planted(inner, payload, name) for name, inner in value.items()}
        if "signature" in filled and "axes" in filled:
            filled["signature"] = " ".join(axis["expression"] for axis in filled["axes"])
        return filled
    if isinstance(value, list):
        return [planted(inner, payload, key) for inner in value]
    is_text = key in ("expression", "strides", "function", "command", "target", "notes", "module", "declared")
    return payload if isinstance(value, str) and is_text else value


def status(folder: Path, *words: str, python: tuple[str, ...] = ()) -> int:
    command = shutil.which("attnshape", path=str(Path(sys.executable).parent))
    assert command is not None
    line = [sys.executable, *python, "-m", "attnshape"] if python else [command]
    return subprocess.run([*line, *words], cwd=folder, capture_output=True, timeout=120, check=False).returncode


SAFE = [
    ("show old.json", 0),
    ("show old.json --format markdown --explain --columns step,signature,strides,storage", 0),
    ("show old.json --format json", 0),
    ("show pickled.json", 2),
    ("diff old.json new.json", 1),
    ("diff old.txt new.txt", 1),
    ("diff ./old ./new", 1),
    ("diff old.json pickled.json", 2),
    ("rule AS201", 0),
    ("catalog", 0),
    ("catalog multi-head", 0),
    ("glossary", 0),
    ("--help", 0),
    ("--version", 0),
    ("trace --help", 0),
    ("trace model.py:f --input x:B/0", 2),
    ("trace model.py:f --dim C=__import__('os')", 2),
    ("check model.py:f --claim scale=__import__('os').getpid()", 2),
    ("check model.py:f --claim window=Q", 2),
]


@pytest.mark.parametrize(("line", "expected"), SAFE, ids=[line for line, _ in SAFE])
def test_nothing_of_a_hostile_folder_runs(line: str, expected: int, hostile: Path) -> None:
    assert status(hostile, *line.split()) == expected
    assert not (hostile / "ran").exists()


def test_python_m_is_as_safe_without_the_current_folder(hostile: Path) -> None:
    assert status(hostile, "show", "old.json", python=("-P",)) == 0
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize(
    ("line", "python"), [("trace model.py:f --input x:B", ()), ("check self", ()), ("show old.json", ("-B",))]
)
def test_the_same_folder_leaves_its_marker_where_code_runs(line: str, python: tuple[str, ...], hostile: Path) -> None:
    try:
        status(hostile, *line.split(), python=python)
        assert (hostile / "ran").exists()
    finally:
        (hostile / "ran").unlink(missing_ok=True)


def test_every_verb_is_on_the_page() -> None:
    import typer.main

    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert verbs == {verb for verb in verbs if re.search(rf"`{verb}\b", PAGE)}


def test_the_grammars_are_those_of_the_page() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(("| an axis", "| a size", "| a scale"))]
    operators: set[str] = set()
    for row, grammar in zip(rows, (AXIS, SIZE, REAL), strict=True):
        _, _, signs, functions, _ = row.split("|")
        operators |= set(re.findall(r"`(\S+)`", signs))
        assert operators == set(grammar.operators)
        assert re.findall(r"`(\w+)`", functions) == list(grammar.functions)
