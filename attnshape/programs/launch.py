"""Runs a Python program in this process as Python itself would, and reports its attention at the end.

The command `attnshape run` replaces itself with a new Python that runs this file, so that the program's process is the
one that the user started: with its number, its signals, its terminal and its exit status.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from attnshape.runtime.processes import package_command
from attnshape.runtime.replacement import after_fork_in_child

PLAN = "ATTNSHAPE_RUN"
"""The environment variable with the plan; the program doesn't see it."""
_HERE = str(Path(__file__).parent)


def main() -> None:
    """Run the program of the plan, and start the report when it ends."""
    plan = json.loads(os.environ.pop(PLAN))
    launcher = sys.modules["__main__"]
    from attnshape.programs.activation import activate, deactivate

    reporter = _Reporter(plan)
    # what is registered first runs last, after the program's own
    atexit.register(reporter.report, deactivate, launcher)
    if "pipe" in plan:
        _hold(plan["pipe"])
    activate(plan["folder"])
    sys.orig_argv[:] = [sys.executable, *plan["typed"]]
    sys.argv[:] = plan["argv"]
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    try:
        if plan["module"]:
            sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python does
            import runpy

            runpy._run_module_as_main(plan["module"])  # type: ignore[attr-defined]
        else:
            _run_script(program, plan["script"])
    except SystemExit:
        raise
    except BaseException as error:
        _show_without_launcher(error)
        raise


def _hold(pipe: int) -> None:
    """Keep the pipe open until this process ends, and in no other process."""
    os.set_inheritable(pipe, False)
    after_fork_in_child(lambda: os.close(pipe))


def _run_script(program: types.ModuleType, script: str) -> None:
    """Run a file as `python FILE` does."""
    path = os.path.abspath(script)  # noqa: PTH100 - links stay
    sys.path[0] = os.path.dirname(os.path.realpath(script))  # noqa: PTH120 - the same as Python
    program.__dict__.update(
        __file__=path,
        __builtins__=builtins,
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __cached__=None,
        __annotations__={},
    )
    with io.open_code(path) as stream:
        source = stream.read()
    code = compile(source, path, "exec", dont_inherit=True)
    del source
    exec(code, program.__dict__)


def _show_without_launcher(error: BaseException) -> None:
    """Have the traceback of an uncaught exception shown without the frames of this package."""
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, traceback: Any) -> None:
        trim_traceback(value)
        hook(kind, value, value.__traceback__)

    sys.excepthook = show


def trim_traceback(error: BaseException) -> None:
    """Remove the frames of this package from the traceback of an exception, and from those that led to it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _trimmed(one.__traceback__)
        waiting += [one.__cause__, one.__context__]


def _trimmed(traceback: types.TracebackType | None) -> types.TracebackType | None:
    kept = None
    levels = []
    while traceback is not None:
        levels.append(traceback)
        traceback = traceback.tb_next
    for level in reversed(levels):
        if os.path.dirname(level.tb_frame.f_code.co_filename) != _HERE:  # noqa: PTH120 - no files are touched
            level.tb_next = kept
            kept = level
    return kept


class _Reporter:
    """Starts the report in a process of its own, with the folder and the environment that the program began with."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._folder = os.getcwd()  # noqa: PTH109 - as above
        self._environment = dict(os.environ)
        self._process = os.getpid()

    def report(self, save: Any, launcher: object) -> None:
        """Report what was captured, once the program has ended; `launcher` is kept alive until then."""
        if os.getpid() != self._process:
            return
        with contextlib.suppress(Exception):  # the program's exit status stays as it is
            save()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        command, environment = report_command(self._plan, self._environment)
        process = None
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self._folder, env=environment
            )
            process.wait()
        except BaseException:  # noqa: BLE001 - a second Ctrl-C ends the report
            if process is not None:
                process.kill()
                process.wait()


def report_command(plan: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that reports what is in the folder of a plan, and its environment."""
    return package_command("attnshape.cli.run_report", [json.dumps(plan)], environment)
