"""The fixture `shape_snapshot`, in separate test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # runs in this process would import it again and again
from msgspec.structs import replace

from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot
from attnshape.model.behaviour import Behaviour, Property, Statement
from attnshape.model.trace import Trace
from tests.reporters.sample_traces import failed, multi_head

ROOT = Path(__file__).parents[2]
HEADER = """
import sys
from pathlib import Path

import pytest

from attnshape import Trace

HERE = Path(__file__).parent


def saved(name="trace"):
    return Trace.from_json((HERE / f"{name}.json").read_text())


"""
ONE = "def test_one(shape_snapshot):\n    shape_snapshot(saved())\n"


class Run:
    """A folder with a test module, and its test runs; the plugin is loaded as its entry point would be."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = pytester.path
        self.snapshots = self.folder / "snapshots" / "test_it"
        self._pytester = pytester
        monkeypatch.setenv("COLUMNS", "100")

    def write(self, tests: str, trace: Trace) -> None:
        (self.folder / "test_it.py").write_text(HEADER + tests)
        self.save(trace)

    def save(self, trace: Trace, name: str = "trace") -> None:
        (self.folder / f"{name}.json").write_text(Trace.to_json(trace))

    def _words(self, *words: str) -> list[str]:
        plain = "-q -W ignore::pytest.PytestAssertRewriteWarning -p attnshape.testing.plugin"
        return [
            *plain.split(),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
            f"--rootdir={self.folder}",
            *words,
        ]

    def __call__(self, *words: str) -> tuple[int, str]:
        """Run the tests in this process, which has imported torch."""
        done = self._pytester.runpytest_inprocess(*self._words(*words))
        return done.ret, done.stdout.str() + done.stderr.str()

    def in_a_process(self, *words: str) -> tuple[int, str]:
        """Run the tests in a separate process."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", *self._words(*words)]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.snapshots.glob("*"))


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(pytester, monkeypatch)


def changed() -> Trace:
    """Return a trace whose fourth step has other strides."""
    trace = multi_head()
    step = trace.steps[3]
    (output,) = step.outputs
    other = replace(output, tensor=replace(output.tensor, stride=(1, 2, 3), contiguous=False, strides=("1", "2", "3")))
    return replace(trace, steps=(*trace.steps[:3], replace(step, outputs=(other,)), *trace.steps[4:]))


def test_missing_snapshot_fails_with_a_hint(run: Run) -> None:
    run.write(ONE, multi_head())
    status, output = run()
    assert status == 1
    assert "there is no snapshot snapshots/test_it/test_one.txt" in output
    assert "hint: pytest --shapes-update writes it" in output
    assert not run.snapshots.exists()


def test_written_snapshot_passes(run: Run) -> None:
    run.write(ONE, multi_head())
    status, output = run("--shapes-update")
    assert status == 0
    assert "attnshape: 1 snapshot written: snapshots/test_it/test_one.txt" in output
    text = (run.snapshots / "test_one.txt").read_text()
    assert text == write_snapshot(snapshot_of(multi_head()))
    # another machine, another torch
    run.save(replace(multi_head(), torch="9.9.0", python="3.99", device="cuda:1", seed=3, command="x", notes=("y",)))
    status, output = run()
    assert status == 0
    assert "attnshape" not in output


def test_behaviour_is_compared(run: Run) -> None:
    def behaving(text: str) -> Trace:
        seen = (Property(topic="visible keys", statements=(Statement(text),)),)
        return replace(multi_head(), behaviour=Behaviour(sizes={"L": 3}, properties=seen))

    run.write(ONE, behaving("attends causally"))
    run("--shapes-update")
    assert run()[0] == 0
    run.save(behaving("every query sees every key"))
    status, output = run()
    assert status == 1
    assert "visible keys: attends causally → every query sees every key" in output
    run.save(multi_head())
    status, output = run()
    assert status == 1
    assert "snapshots/test_it/test_one.txt has behaviour, and the test doesn't" in output
    run("--shapes-update")
    run.save(behaving("attends causally"))
    status, output = run()
    assert status == 1
    assert "the test has behaviour, and snapshots/test_it/test_one.txt doesn't" in output


def test_difference_is_shown_as_a_table(run: Run) -> None:
    run.write(ONE, multi_head())
    run("--shapes-update")
    run.save(changed())
    status, output = run()
    assert status == 1
    assert "the shapes aren't those of snapshots/test_it/test_one.txt" in output
    assert "→ 1 2 3 ≁" in output
    assert "differs in stride: 1 step changed" in output
    assert "hint: if they are right, pytest --shapes-update updates it" in output
    assert "Traceback" not in output
    assert len(output.splitlines()) < 30
    assert run("--shapes-update")[0] == 0
    assert run()[0] == 0


@pytest.mark.parametrize("variables", [{"CI": ""}, {"CI": "true"}], ids=["at-hand", "continuous-integration"])
def test_summary_has_only_the_first_line(run: Run, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run.write(ONE, multi_head())
    run("--shapes-update")
    run.save(changed())
    _, output = run("-rf")
    assert output.count("→ 1 2 3 ≁") == 1
    summary = next(line for line in output.splitlines() if line.startswith("FAILED"))
    assert summary.startswith("FAILED test_it.py::test_one - Failed: the shapes aren't those of snapshots/")


def test_failing_code_is_never_written_and_never_passes(run: Run) -> None:
    run.write(ONE, failed())
    for words in (("--shapes-update",), ()):
        status, output = run(*words)
        assert status == 1
        assert "model.py:attention fails at torch.matmul(query, key) (model.py:" in output
        assert "hint: fix it first" in output
        assert "Traceback" not in output
        assert not run.snapshots.exists()
    # nor with a snapshot of the failure
    run.snapshots.mkdir(parents=True)
    (run.snapshots / "test_one.txt").write_text(write_snapshot(snapshot_of(failed())))
    assert run()[0] == 1


def test_unchanged_snapshot_is_not_rewritten(run: Run) -> None:
    run.write(ONE, multi_head())
    run("--shapes-update")
    before = (run.snapshots / "test_one.txt").stat().st_mtime_ns
    assert "written" not in run("--shapes-update")[1]
    assert (run.snapshots / "test_one.txt").stat().st_mtime_ns == before


def test_many_differences_are_shortened(run: Run) -> None:
    trace = multi_head()
    run.write(ONE, trace)
    run("--shapes-update")
    step = trace.steps[0]
    many = [replace(step, index=index, expression=f"f{index}(x)", operation=f"f{index}") for index in range(1, 300)]
    run.save(replace(trace, steps=tuple(many), outputs=(), peak=trace.peak))
    _, output = run()
    assert "lines more" in output
    assert len(output.splitlines()) < 110


def test_parametrised_tests_and_classes_have_separate_files(run: Run) -> None:
    tests = (
        "@pytest.mark.parametrize('name', ['a', 'a/b', 'a_b', 'A:*', '../../x', 'é', 'y' * 300])\n"
        "def test_it(shape_snapshot, name):\n    shape_snapshot(saved())\n\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "class TestGroup:\n"
        "    def test_it(self, shape_snapshot, number):\n        shape_snapshot(saved(), name='first')\n"
        "        shape_snapshot(saved(), name='second part')\n"
    )
    run.write(tests, multi_head())
    assert run("--shapes-update")[0] == 0
    names = run.files
    assert len(names) == 7 + 4
    assert {"test_it-a.txt", "test_it-a_b.txt", "TestGroup.test_it-1@first.txt"} <= set(names)
    assert all(len(name) < 180 and name.isascii() and not set(name) & set("/\\:*?<>| []") for name in names)
    assert not list(run.folder.rglob("x*.txt"))
    status, output = run()
    assert (status, "no test uses" in output) == (0, False)


def test_second_snapshot_needs_a_name(run: Run) -> None:
    run.write("def test_one(shape_snapshot):\n    shape_snapshot(saved())\n    shape_snapshot(saved())\n", multi_head())
    status, output = run("--shapes-update")
    assert status == 1
    assert "a test's second snapshot needs a name of its own: shape_snapshot(…, name=…)" in output


def test_damaged_snapshot_is_reported_with_its_line(run: Run) -> None:
    run.write(ONE, multi_head())
    run("--shapes-update")
    path = run.snapshots / "test_one.txt"
    path.write_text(path.read_text().replace("\n3 ", "\n<<<<<<< HEAD\n3 ", 1))
    status, output = run()
    assert status == 1
    assert "snapshots/test_it/test_one.txt:10: this isn't a valid snapshot: " in output
    assert "hint: write it again: pytest --shapes-update" in output


def test_unused_snapshots_are_reported(run: Run) -> None:
    tests = (
        ONE
        + "\ndef test_two(shape_snapshot):\n    pytest.skip()\n\ndef test_three(shape_snapshot):\n    assert False\n"
    )
    run.write(tests, multi_head())
    run.snapshots.mkdir(parents=True)
    for name in ("test_two", "test_three", "test_three@more", "test_gone", "test_gone@more"):
        (run.snapshots / f"{name}.txt").write_text("")
    expected = (
        "attnshape: 2 snapshots that no test uses: "
        "snapshots/test_it/test_gone.txt, snapshots/test_it/test_gone@more.txt"
    )
    for words in ((), ("--shapes-update",), ("-k", "one")):
        assert expected in run(*words)[1]
    # tests that aren't collected may use them
    assert "no test uses" not in run("test_it.py::test_one")[1]


def test_unused_snapshots_are_reported_without_any_snapshot_test(run: Run) -> None:
    run.write("def test_one():\n    pass\n", multi_head())
    run.snapshots.mkdir(parents=True)
    for number in range(12):
        (run.snapshots / f"test_{number}.txt").write_text("")
    output = run()[1]
    assert "attnshape: 12 snapshots that no test uses: snapshots/test_it/test_0.txt, " in output
    assert ", and 2 more" in output


@pytest.mark.slow
def test_unused_snapshots_are_not_reported_with_last_failed(run: Run) -> None:
    run.write(ONE + "\ndef test_two(shape_snapshot):\n    shape_snapshot(saved())\n", multi_head())
    run("--shapes-update")
    run.save(changed())
    (run.snapshots / "test_two.txt").write_text(write_snapshot(snapshot_of(changed())))
    cached = ("-p", "cacheprovider")
    assert "1 failed" in run(*cached)[1]
    again = run("--lf", *cached)[1]
    assert "1 failed" in again
    assert "no test uses" not in again


def test_xdist_workers_write_and_report_all(run: Run) -> None:
    tests = "@pytest.mark.parametrize('n', range(12))\ndef test_it(shape_snapshot, n):\n    shape_snapshot(saved())\n"
    run.write(tests, multi_head())
    (run.snapshots / "test_gone.txt").parent.mkdir(parents=True)
    (run.snapshots / "test_gone.txt").write_text("")
    status, output = run.in_a_process("-n", "2", "--shapes-update")
    assert status == 0
    assert "attnshape: 1 snapshot that no test uses: snapshots/test_it/test_gone.txt" in output
    (run.snapshots / "test_gone.txt").unlink()
    assert "attnshape: 12 snapshots written: " in output
    assert run.files == sorted(f"test_it-{n}.txt" for n in range(12))
    for name in run.files:
        assert read_snapshot((run.snapshots / name).read_text()) == snapshot_of(multi_head())


def test_pytest_starts_without_torch(run: Run) -> None:
    run.write(ONE + "\ndef test_none():\n    assert 'torch' not in sys.modules\n", multi_head())
    assert run.in_a_process("--shapes-update")[0] == 0
    assert run.in_a_process()[0] == 0


def test_fixture_takes_the_arguments_of_trace(run: Run) -> None:
    tests = (
        "def attention(q, k):\n    return (q @ k.mT).softmax(-1)\n\n"
        "def test_one(shape_snapshot):\n"
        "    shape_snapshot(attention, inputs={'q': 'B Lq Dk', 'k': 'B Lk Dk'}, B=3)\n\n"
        "def test_two(shape_snapshot):\n    shape_snapshot(saved(), B=3)\n"
    )
    run.write(tests, multi_head())
    status, output = run("--shapes-update")
    assert status == 1
    assert "TypeError: a Trace is complete: it takes no B" in output
    assert "B=3" in (run.snapshots / "test_one.txt").read_text()
    assert run("-k", "one")[0] == 0


def test_entry_point_is_named_like_the_module() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "[project.entry-points.pytest11]" in text
    assert '"attnshape.testing.plugin" = "attnshape.testing.plugin"' in text
