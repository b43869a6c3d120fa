"""The sandbox verifies annotations before they are written, and leaves out those that fail."""

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


def model_request(folder: Path, text: str, name: str = "model") -> TargetSpec:
    (folder / f"{name}.py").write_text(text)
    return request(f"{folder}/{name}.py:f", "--input", "x: B L", "--input", "y: L D")


PLAIN = "def f(x, y):\n    z = x @ y\n    w = z + 1\n    return w\n"


def test_annotations_that_pass_are_written(folder: Path) -> None:
    annotation = annotated([model_request(folder, PLAIN)], folder, enforce=True)
    text = annotation.files[0][1].decode()
    assert 'z: Float[Tensor, "B D"]' in text
    assert len(annotation.verified_at) == 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("argument", 'x: Float[Tensor, "B L"]'),
        ("local", 'z: Float[Tensor, "B D"]'),
        ("result", '-> Float[Tensor, "B D"]'),
    ],
)
@pytest.mark.parametrize("enforce", [False, True])
def test_generated_annotation_that_fails_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, enforce: bool
) -> None:
    """Simulate a bug: every type of one kind has a wrong number of axes."""
    original = jaxtyping_style._FunctionAnnotator._change

    def wrong(self, place, edits, change):  # type: ignore[no-untyped-def]
        if place.kind == kind and place.name in ("", "x", "z"):
            edits = [edit.__class__(edit.start, edit.end, edit.text.replace(' "', ' "7 ')) for edit in edits]
        return original(self, place, edits, change)

    monkeypatch.setattr(jaxtyping_style._FunctionAnnotator, "_change", wrong)
    result = annotated([model_request(folder, PLAIN)], folder, enforce=enforce)
    written = result.files[0][1].decode()
    assert '"7 ' not in written
    assert text not in written
    assert 'w: Float[Tensor, "B D"]' in written
    assert [omission.what.split()[:3] for omission in result.omissions] == [["no", "annotation", "for"]]
    assert "Error" in result.omissions[0].why or "Violation" in result.omissions[0].why


def test_annotation_that_cannot_be_evaluated_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unbound(form: Form, *rest: object) -> TypeText | None:
        type_text = format_type(form, *rest)  # type: ignore[arg-type]
        return (
            TypeText(type_text.text.replace('"B D"', '"B 2*Q"'), type_text.kinds, type_text.binds)
            if type_text is not None
            else None
        )

    monkeypatch.setattr(jaxtyping_style, "format_type", unbound)
    result = annotated([model_request(folder, PLAIN)], folder)
    assert result.omissions
    assert all(b"z: Float" not in data and b"w: Float" not in data for _, data in result.files)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("def f(x, y) -> int:", "return value"),
        ("def f(x, y, n: str = 'a', *, m: int | None = None):\n    g(None)\n", ""),
        ("def f(x: int, y):", "'x'"),
    ],
)
def test_function_whose_own_annotations_fail_is_not_checked(folder: Path, head: str, why: str) -> None:
    text = PLAIN.replace("def f(x, y):", head) + "\n\ndef g(n: int):\n    return n\n"
    annotation = annotated([model_request(folder, text)], folder, enforce=True)
    annotated_text = annotation.files[0][1].decode()
    assert 'z: Float[Tensor, "B D"]' in annotated_text
    unchecked = "g" if "g(None)" in head else "f"
    assert [omission.what for omission in annotation.omissions] == [
        f"no check of the arguments and the result of {unchecked}"
    ]
    assert why in annotation.omissions[0].why
    assert f"@jaxtyped(typechecker=None)\ndef {unchecked}(" in annotated_text
    assert ("@jaxtyped(typechecker=beartype)" in annotated_text) is (unchecked == "g")
    (folder / "model.py").write_text(annotated_text)
    again = annotated([request(f"{folder}/model.py:f", "--input", "x: B L", "--input", "y: L D")], folder, enforce=True)
    assert again.files == []


def test_failing_local_annotation_of_the_author_disables_the_hook(folder: Path) -> None:
    text = PLAIN.replace("w = z + 1", "w = z + 1\n    n: int = 'text'")
    annotation = annotated([model_request(folder, text)], folder, enforce=True)
    assert annotation.rewrite.hook is None
    assert "the annotation in line 4 of model.py doesn't hold" in annotation.omissions[0].what


def test_string_annotations_are_checked(folder: Path) -> None:
    future = "from __future__ import annotations\n\n"
    annotation = annotated([model_request(folder, future + PLAIN)], folder, enforce=True)
    assert annotation.omissions == ()
    assert b'y: Float[Tensor, "L D"]) -> Float[Tensor, "B D"]' in annotation.files[0][1]
    wrong = future + PLAIN.replace("(x, y)", "(x: int, y: 'torch.Tensor')").replace("def f", "import torch\n\n\ndef f")
    annotation = annotated([model_request(folder, wrong)], folder, enforce=True)
    assert [omission.what for omission in annotation.omissions] == ["no check of the arguments and the result of f"]
    assert b"y: 'Float[torch.Tensor, \"L D\"]'" in annotation.files[0][1]


@pytest.mark.slow
def test_jaxtyping_disable_does_not_disable_the_checks(folder: Path) -> None:
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


def test_python_optimize_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    with pytest.raises(AttnshapeError, match="can't be verified with -O or PYTHONOPTIMIZE"):
        annotated([model_request(folder, PLAIN)], folder)


def test_order_of_decorators_is_kept(folder: Path) -> None:
    text = (
        "import torch\n\n\nclass M:\n    @staticmethod\n    @torch.no_grad()\n    def g(x, y):\n        z = x @ y\n"
        "        return torch.cat((z, z), -1)\n\n\ndef f(x, y):\n    return M.g(x, y)\n"
    )
    annotation = annotated([model_request(folder, text)], folder, enforce=True)
    written = annotation.files[0][1].decode()
    assert annotation.omissions == ()
    above = [
        "@staticmethod",
        "@jaxtyped(typechecker=None)",
        "@torch.no_grad()",
        "@jaxtyped(typechecker=beartype)",
        "def g(",
    ]
    assert "\n    ".join(above) in written
    assert '-> Float[torch.Tensor, "B 2*D"]:' in written


def test_annotations_that_change_the_results_are_an_error(folder: Path) -> None:
    """The function reads its own annotations."""
    text = PLAIN.replace("return w", "return w + len(f.__annotations__)")
    with pytest.raises(AttnshapeError, match="gives other results"):
        annotated([model_request(folder, text)], folder)


def test_code_that_runs_only_in_the_tools_process_is_an_error(folder: Path) -> None:
    """The code needs a module that no other process has, unless the file is annotated."""
    text = PLAIN + "\n\nimport sys\nassert 'tests.annotate.running' in sys.modules or f.__annotations__\n"
    with pytest.raises(AttnshapeError, match="as it is doesn't run in a process of its own"):
        annotated([model_request(folder, text)], folder)


def test_nondeterministic_results_are_not_an_error(folder: Path) -> None:
    text = "import os\n\n" + PLAIN.replace("return w", "return w + int.from_bytes(os.urandom(3))")
    annotation = annotated([model_request(folder, text)], folder)
    assert annotation.files
    assert any("differ from each other" in omission.why for omission in annotation.omissions)
    summary = list(annotation_summary(annotation, written=False))
    assert any(line.startswith("verified: runs and passes its checks at ") for line in summary)
    assert not any("same bits" in line for line in summary)


def test_file_that_asserts_its_own_source_is_an_error(folder: Path) -> None:
    text = PLAIN + "\n\nfrom pathlib import Path\nassert 'Float' not in __import__('inspect').getsource(f)\n"
    with pytest.raises(AttnshapeError, match="doesn't run: AssertionError"):
        annotated([model_request(folder, text)], folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nos._exit(3)\n", "ended with status 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "ended with status -9"),
        ("raise SystemExit(2)\n", "SystemExit"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_sandbox_reports_every_kind_of_failure(folder: Path, text: str, message: str) -> None:
    (folder / "bad.py").write_text(PLAIN)
    call = TargetCall(
        request(f"{folder}/bad.py:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},)
    )
    blame = run_in_sandbox(SandboxJob({str(folder / "bad.py"): text.encode()}, (call,), 0, False)).failure
    assert blame is not None
    assert blame.kind == "other"
    assert message in blame.message
    again = run_in_sandbox(SandboxJob({}, (call,), 0, False))
    assert again.failure is None
    assert [result.shape for result in again.results[0]] == [(2, 4)]


def sandboxed(folder: Path, text: str, **options: float) -> AttemptResult:
    """Run this text in the sandbox in place of the plain file on disk, and return the result."""
    (folder / "bad.py").write_text(PLAIN)
    call = TargetCall(
        request(f"{folder}/bad.py:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},)
    )
    return run_in_sandbox(SandboxJob({str(folder / "bad.py"): text.encode()}, (call,), 0, False), **options)


@pytest.mark.slow
def test_attempt_is_ended_at_the_time_limit(folder: Path) -> None:
    """Even if it is stuck in C code, where no Python signal handler runs."""
    began = time.monotonic()
    # holds the interpreter's lock; a statement of the file itself would be left out, and the rest defined
    text = f"import ctypes\n{PLAIN}\n\ndef f(x, y):\n    ctypes.PyDLL(None).sleep(60)\n"
    failure = sandboxed(folder, text, time_limit=8.0).failure
    assert failure is not None
    assert failure.message == "it took too long"
    assert time.monotonic() - began < 30


def test_attempt_leaves_no_modules_or_processes(folder: Path) -> None:
    """Even if the processes that it started hold its pipes open."""
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
def test_sandbox_ignores_cached_bytecode(folder: Path, module: str) -> None:
    path = folder / "cached.py"
    path.write_text(PLAIN)
    py_compile.compile(str(path))
    call = TargetCall(request(f"{path}:f", "--input", "x: B L", "--input", "y: L D"), ({"B": 2, "L": 3, "D": 4},))
    new = PLAIN.replace("return w", "return w.mT").encode()
    module_file = str(path) if module else ""
    answer = run_in_sandbox(SandboxJob({str(path): new}, (call,), 0, False, module, module_file))
    assert [result.shape for result in answer.results[0]] == [(4, 2)]
    assert [result.shape for result in run_in_sandbox(SandboxJob({}, (call,), 0, False)).results[0]] == [(2, 4)]


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
def test_default_of_none_is_not_rejected(folder: Path, annotation: str, allows: bool) -> None:
    head = "from typing import Any, Optional, Union\nfrom torch import Tensor\n\n"
    text = (
        f"{head}def f(x, y):\n    return helper(x, y)\n\n\n"
        f"def helper(x, y, more: {annotation} = None):\n    return x @ y\n"
    )
    result = annotated([model_request(folder, text)], folder, enforce=True)
    written = result.files[0][1].decode()
    assert f"more: {annotation} = None" in written
    assert f"@jaxtyped(typechecker={'beartype' if allows else 'None'})\ndef helper(" in written
    assert any("more is None by default" in omission.why for omission in result.omissions) is not allows


@pytest.mark.parametrize("module", ["typing", "typing_extensions"])
def test_overloads_are_unchanged(folder: Path, module: str) -> None:
    overloads = "@overload\ndef f(x, y: int): ...\n@overload\ndef f(x, y: None): ...\n"
    result = annotated(
        [model_request(folder, f"from {module} import overload\n{overloads}{PLAIN}")], folder, enforce=True
    )
    assert f"{overloads}@jaxtyped(typechecker=beartype)\ndef f(x: " in result.files[0][1].decode()
