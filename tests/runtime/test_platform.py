"""Platform-dependent code is confined to attnshape/runtime, and `trace` and `check` work without it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnshape"
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "signal", "termios", "tty"}
POSIX_FUNCTIONS = {
    *("fork", "forkpty", "register_at_fork", "killpg", "setsid", "getpgid", "wait", "waitpid", "nice", "getuid"),
    *("mkfifo", "sysconf", "set_blocking"),
}

# torch is imported first, since it needs some of these; Windows has SIGINT, SIGTERM, SIGABRT and signal.signal
WITHOUT_POSIX = f"""
import sys, torch, os, signal
for name in {sorted(POSIX_FUNCTIONS | {"get_blocking", "sched_getaffinity", "sched_setaffinity"})!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in dir(signal):
    if (name.startswith("SIG") and name not in ("SIG_DFL", "SIG_IGN", "SIGINT", "SIGTERM", "SIGABRT")) or name in (
        "setitimer", "getitimer", "alarm", "ITIMER_REAL", "pthread_sigmask", "sigwait", "pthread_kill", "pause"
    ):
        delattr(signal, name)
for name in {sorted(POSIX_MODULES - {"signal"})!r}:
    sys.modules[name] = None
from attnshape.__main__ import _work
from attnshape.runtime.signals import leave, obey_signals
obey_signals()
leave(_work())
"""
WITHOUT_FORK = """
import os
del os.fork, os.register_at_fork
from attnshape.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "line",
    sampled(
        [
            "trace --format markdown",
            "trace --length 4000 --device meta --format markdown",
            "check multi-head",
            "catalog",
        ],
        ["trace --format markdown", "catalog"],
    ),
)
def test_commands_need_no_posix(line: str) -> None:
    usual, limited = (
        subprocess.run([sys.executable, *start, *line.split()], cwd=ROOT, capture_output=True, text=True, check=False)
        for start in (("-m", "attnshape"), ("-c", WITHOUT_POSIX))
    )
    assert (limited.returncode, limited.stdout) == (usual.returncode, usual.stdout)
    assert limited.stderr == usual.stderr


@pytest.mark.parametrize(
    ("line", "status"), [("catalog", 0), ("show missing.json", 2), ("trace exits.py:f --input x:B", 2)]
)
def test_worker_is_spawned_without_fork(line: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import os\ndef f(x):\n    os._exit(0)\n")
    usual, spawned = (
        subprocess.run(
            [sys.executable, *start, *line.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for start in (("-m", "attnshape"), ("-c", WITHOUT_FORK))
    )
    assert (usual.returncode, bool(usual.stdout), bool(usual.stderr)) == (status, status == 0, status != 0)
    assert (spawned.returncode, spawned.stdout, spawned.stderr) == (usual.returncode, usual.stdout, usual.stderr)


def test_no_time_limit_without_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from attnshape.runtime import time_limit

    monkeypatch.delattr(signal, "setitimer")
    assert time_limit.call_within(0.0, lambda: sum(range(1000))) == 499500


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_the_runtime_package_depends_on_posix(module: Path) -> None:
    parts = module.relative_to(PACKAGE).parts
    # the sandbox forks a process for each attempt: only `annotate` needs it, and reports where it can't run
    if parts[0] == "runtime" or "sandbox" in parts:
        return
    tree = ast.parse(module.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert not imported & POSIX_MODULES
    assert not used & POSIX_FUNCTIONS


def test_posix_functions_exist() -> None:
    assert os.name != "posix" or set(dir(os)) >= POSIX_FUNCTIONS
