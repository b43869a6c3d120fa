"""What is written was verified before: what doesn't hold is left out, what can't run is an error."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnshape.annotate import jaxtyping_style
from attnshape.annotate.sandbox.attempt import AttemptResult, SandboxJob, TargetCall
from attnshape.annotate.sandbox.verification import run_in_sandbox
from attnshape.annotate.types import TypeText, format_type
from attnshape.cli.annotate import annotation_summary
from attnshape.errors import AttnshapeError
from attnshape.observation.forms import Form
from attnshape.options.spec import TargetSpec
from tests.annotate.running import annotated, request
from tests.cli.running import folder

__all__ = ["folder"]


def asked(folder: Path, text: str, name: str = "model") -> TargetSpec:
    (folder / f"{name}.py").write_text(text)
    return request(f"{folder}/{name}.py:f", "--input", "x: B L", "--input", "y: L D")


PLAIN = "def f(x, y):\n    z = x @ y\n    w = z + 1\n    return w\n"


def test_what_runs_is_what_would_be_written(folder: Path) -> None:
    made = annotated([asked(folder, PLAIN)], folder, enforce=True)
    text = made.files[0][1].decode()
    assert 'z: Float[Tensor, "B D"]' in text
    assert len(made.verified_at) == 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("argument", 'x: Float[Tensor, "B L"]'),
        ("local", 'z: Float[Tensor, "B D"]'),
        ("result", '-> Float[Tensor, "B D"]'),
    ],
)
@pytest.mark.parametrize("enforce", [False, True])
def test_an_annotation_of_ours_that_does_not_hold_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, enforce: bool
) -> None:
    """As if there were a bug: every type of the one kind says another number of axes."""
    original = jaxtyping_style._FunctionAnnotator._change

    def wrong(self, place, edits, made):  # type: ignore[no-untyped-def]
        if place.kind == kind and place.name in ("", "x", "z"):
            edits = [one.__class__(one.start, one.end, one.text.replace(' "', ' "7 ')) for one in edits]
        return original(self, place, edits, made)

    monkeypatch.setattr(jaxtyping_style._FunctionAnnotator, "_change", wrong)
    made = annotated([asked(folder, PLAIN)], folder, enforce=enforce)
    written = made.files[0][1].decode()
    assert '"7 ' not in written
    assert text not in written
    assert 'w: Float[Tensor, "B D"]' in written
    assert [one.what.split()[:3] for one in made.omissions] == [["no", "annotation", "for"]]
    assert "Error" in made.omissions[0].why or "Violation" in made.omissions[0].why


def test_an_annotation_that_cannot_be_computed_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unbound(form: Form, *rest: object) -> TypeText | None:
        made = format_type(form, *rest)  # type: ignore[arg-type]
        return TypeText(made.text.replace('"B D"', '"B 2*Q"'), made.kinds, made.binds) if made is not None else None

    monkeypatch.setattr(jaxtyping_style, "format_type", unbound)
    made = annotated([asked(folder, PLAIN)], folder)
    assert made.omissions
    assert all(b"z: Float" not in data and b"w: Float" not in data for _, data in made.files)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("def f(x, y) -> int:", "return value"),
        ("def f(x, y, n: str = 'a', *, m: int | None = None):\n    g(None)\n", ""),
        ("def f(x: int, y):", "'x'"),
    ],
)
def test_a_function_whose_own_annotations_do_not_hold_is_not_checked(folder: Path, head: str, why: str) -> None:
    text = PLAIN.replace("def f(x, y):", head) + "\n\ndef g(n: int):\n    return n\n"
    made = annotated([asked(folder, text)], folder, enforce=True)
    written = made.files[0][1].decode()
    assert 'z: Float[Tensor, "B D"]' in written
    unchecked = "g" if "g(None)" in head else "f"
    assert [one.what for one in made.omissions] == [f"no check of the arguments and the result of {unchecked}"]
    assert why in made.omissions[0].why
    assert f"@jaxtyped(typechecker=None)\ndef {unchecked}(" in written
    assert ("@jaxtyped(typechecker=beartype)" in written) is (unchecked == "g")
    (folder / "model.py").write_text(written)
    again = annotated([request(f"{folder}/model.py:f", "--input", "x: B L", "--input", "y: L D")], folder, enforce=True)
    assert again.files == []


def test_where_a_local_annotation_of_the_author_does_not_hold_there_is_no_hook(folder: Path) -> None:
    text = PLAIN.replace("w = z + 1", "w = z + 1\n    n: int = 'text'")
    made = annotated([asked(folder, text)], folder, enforce=True)
    assert made.rewrite.hook is None
    assert "the annotation in line 4 of model.py doesn't hold" in made.omissions[0].what


def test_annotations_that_are_strings_are_checked_too(folder: Path) -> None:
    future = "from __future__ import annotations\n\n"
    made = annotated([asked(folder, future + PLAIN)], folder, enforce=True)
    assert made.omissions == ()
    assert b'y: Float[Tensor, "L D"]) -> Float[Tensor, "B D"]' in made.files[0][1]
    wrong = future + PLAIN.replace("(x, y)", "(x: int, y: 'torch.Tensor')").replace("def f", "import torch\n\n\ndef f")
    made = annotated([asked(folder, wrong)], folder, enforce=True)
    assert [one.what for one in made.omissions] == ["no check of the arguments and the result of f"]
    assert b"y: 'Float[torch.Tensor, \"L D\"]'" in made.files[0][1]


@pytest.mark.slow
def test_checks_are_on_whatever_the_environment_says(folder: Path) -> None:
    text = PLAIN.replace("f(x,", "f(x: int,")
    (folder / "model.py").write_text(text)
    command = [sys.executable, "-m", "attnshape", "annotate", "model.py:f", "--input", "x: B L", "--input", "y: L D"]
    done = subprocess.run(
        [*command, "--enforce"],
        cwd=folder,
        env=os.environ | {"JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "left out: no check of the arguments and the result of f" in done.stderr


def test_without_beartype_s_checks_nothing_is_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    with pytest.raises(AttnshapeError, match="can't be verified with -O or PYTHONOPTIMIZE"):
        annotated([asked(folder, PLAIN)], folder)


def test_decorators_above_stay_above(folder: Path) -> None:
    text = (
        "import torch\n\n\nclass M:\n    @staticmethod\n    @torch.no_grad()\n    def g(x, y):\n        z = x @ y\n"
        "        return torch.cat((z, z), -1)\n\n\ndef f(x, y):\n    return M.g(x, y)\n"
    )
    made = annotated([asked(folder, text)], folder, enforce=True)
    written = made.files[0][1].decode()
    assert made.omissions == ()
    above = [
        "@staticmethod",
        "@jaxtyped(typechecker=None)",
        "@torch.no_grad()",
        "@jaxtyped(typechecker=beartype)",
        "def g(",
    ]
    assert "\n    ".join(above) in written
    assert '-> Float[torch.Tensor, "B 2*D"]:' in written


def test_what_changes_the_results_is_an_error(folder: Path) -> None:
    """A function that looks at its own annotations."""
    text = PLAIN.replace("return w", "return w + len(f.__annotations__)")
    with pytest.raises(AttnshapeError, match="gives other results"):
        annotated([asked(folder, text)], folder)


def test_what_runs_only_beside_the_tool_is_an_error(folder: Path) -> None:
    """What is in no other process, and is only missed where the file isn't annotated."""
    text = PLAIN + "\n\nimport sys\nassert 'tests.annotate.running' in sys.modules or f.__annotations__\n"
    with pytest.raises(AttnshapeError, match="as it is doesn't run in a process of its own"):
        annotated([asked(folder, text)], folder)


def test_results_that_differ_by_themselves_are_no_error(folder: Path) -> None:
    text = "import os\n\n" + PLAIN.replace("return w", "return w + int.from_bytes(os.urandom(3))")
    made = annotated([asked(folder, text)], folder)
    assert made.files
    assert any("differ from each other" in one.why for one in made.omissions)
    said = list(annotation_summary(made, written=False))
    assert any(line.startswith("verified: runs and passes its checks at ") for line in said)
    assert not any("same bits" in line for line in said)


def test_a_file_that_looks_at_its_own_source_is_an_error_or_runs(folder: Path) -> None:
    text = PLAIN + "\n\nfrom pathlib import Path\nassert 'Float' not in __import__('inspect').getsource(f)\n"
    with pytest.raises(AttnshapeError, match="doesn't run: AssertionError"):
        annotated([asked(folder, text)], folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\nos._exit(3)\n", "ended with status 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "ended with status -9"),
        ("raise SystemExit(2)\n", "SystemExit"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_whatever_the_code_does_there_is_an_answer(folder: Path, text: str, said: str) -> None:
    (folder / "bad.py").write_text(PLAIN)
    call = TargetCall(
        request(f"{folder}/bad.py:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},)
    )
    blame = run_in_sandbox(SandboxJob({str(folder / "bad.py"): text.encode()}, (call,), 0, False)).failure
    assert blame is not None
    assert blame.kind == "other"
    assert said in blame.message
    again = run_in_sandbox(SandboxJob({}, (call,), 0, False))
    assert again.failure is None
    assert [one.shape for one in again.results[0]] == [(2, 4)]


def sandboxed(folder: Path, text: str, **options: float) -> AttemptResult:
    """Return what comes of a file with this text in the sandbox, where the file on disk is a plain one."""
    (folder / "bad.py").write_text(PLAIN)
    call = TargetCall(
        request(f"{folder}/bad.py:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},)
    )
    return run_in_sandbox(SandboxJob({str(folder / "bad.py"): text.encode()}, (call,), 0, False), **options)


@pytest.mark.slow
def test_an_attempt_that_takes_too_long_is_ended(folder: Path) -> None:
    """Even where it is stuck in C, where no Python signal handler runs."""
    began = time.monotonic()
    text = "import ctypes\nctypes.PyDLL(None).sleep(60)\n" + PLAIN  # holds the interpreter's lock
    failure = sandboxed(folder, text, time_limit=8.0).failure
    assert failure is not None
    assert failure.message == "it took too long"
    assert time.monotonic() - began < 30


def test_an_attempt_leaves_nothing_behind(folder: Path) -> None:
    """Neither modules, nor processes that it started, even if these hold its pipes open."""
    text = f"""import subprocess, sys
sys.marked = getattr(sys, "marked", 0) + 1
assert sys.marked == 1
sleeping = subprocess.Popen(["sleep", "60"], close_fds=False)
open({str(folder / "pid")!r}, "w").write(str(sleeping.pid))
{PLAIN}"""
    for _ in range(2):
        assert sandboxed(folder, text).failure is None
        status = Path(f"/proc/{(folder / 'pid').read_text()}/status")
        for _ in range(100):
            if not status.exists() or "zombie" in status.read_text():
                break
            time.sleep(0.05)
        else:
            pytest.fail("the process that the attempt started still runs")


@pytest.mark.parametrize("module", ["", "cached"])
def test_bytecode_of_the_file_on_the_disk_is_not_taken_for_it(folder: Path, module: str) -> None:
    path = folder / "cached.py"
    path.write_text(PLAIN)
    py_compile.compile(str(path))
    call = TargetCall(request(f"{path}:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},))
    new = PLAIN.replace("return w", "return w.mT").encode()
    alone = str(path) if module else ""
    answer = run_in_sandbox(SandboxJob({str(path): new}, (call,), 0, False, module, alone))
    assert [one.shape for one in answer.results[0]] == [(4, 2)]
    assert [one.shape for one in run_in_sandbox(SandboxJob({}, (call,), 0, False)).results[0]] == [(2, 4)]


@pytest.mark.parametrize(
    ("annotation", "allows"),
    [
        ("Tensor", False),
        ("'Tensor'", False),
        ("Union[Tensor, int]", False),
        ("int", False),
        ("Optional[int]", True),
        ("'Tensor | None'", True),
        ("Union[Tensor, None]", True),
        ("Any", True),
    ],
)
def test_a_default_of_none_is_not_refused(folder: Path, annotation: str, allows: bool) -> None:
    head = "from typing import Any, Optional, Union\nfrom torch import Tensor\n\n"
    text = (
        f"{head}def f(x, y):\n    return helper(x, y)\n\n\n"
        f"def helper(x, y, more: {annotation} = None):\n    return x @ y\n"
    )
    made = annotated([asked(folder, text)], folder, enforce=True)
    written = made.files[0][1].decode()
    assert f"more: {annotation} = None" in written
    assert f"@jaxtyped(typechecker={'beartype' if allows else 'None'})\ndef helper(" in written
    assert any("more is None by default" in one.why for one in made.omissions) is not allows


@pytest.mark.parametrize("module", ["typing", "typing_extensions"])
def test_overloads_are_left_as_they_are(folder: Path, module: str) -> None:
    overloads = "@overload\ndef f(x, y: int): ...\n@overload\ndef f(x, y: None): ...\n"
    made = annotated([asked(folder, f"from {module} import overload\n{overloads}{PLAIN}")], folder, enforce=True)
    assert f"{overloads}@jaxtyped(typechecker=beartype)\ndef f(x: " in made.files[0][1].decode()
