"""Test on every supported Python, and with the oldest torch.

`nox` runs the tests on each Python that it finds; `nox -l` lists all sessions. Arguments after `--` go to pytest:
`nox -s tests-3.13 -- tests/observation -n 0`. PyPI's torch for Linux needs CUDA, some 5 GB; set PIP_FIND_LINKS or
PIP_EXTRA_INDEX_URL to a source of CPU-only wheels to avoid that.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
SELECTION = ("-n", "2", "-m", "not slow and not libraries")
"""Every behaviour once, without the attention libraries, which can't be installed on every Python."""
OLDEST_TORCH = "2.11.0"

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

if shutil.which("pyenv"):
    # pyenv's python3.12 works only while a version 3.12 is active
    found = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True).stdout.split()
    os.environ["PYENV_VERSION"] = ":".join(one for one in found if one.rpartition(".")[0] in PYTHONS)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests that are neither slow nor need the libraries, or the tests given after `--`."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("pytest", *(session.posargs or SELECTION))


@nox.session(python=PYTHONS)
def everything(session: nox.Session) -> None:
    """Run every test, at all sizes and seeds: hours, for a nightly run."""
    session.install("-c", "constraints.txt", "-e", ".[test,libraries]")
    session.install("--no-deps", "-r", "tests/libraries/no-deps.txt")
    session.run("pytest", "-n", "2", "-m", "slow or not slow", *session.posargs)


@nox.session(python="3.11")
def oldest_torch(session: nox.Session) -> None:
    """Run the tests that depend most on torch, with the oldest supported version."""
    pins = re.sub(r"(?m)^torch==.*$", f"torch=={OLDEST_TORCH}", Path("constraints.txt").read_text())
    constraints = Path(session.create_tmp(), "constraints.txt")
    constraints.write_text(pins)
    session.install("-c", str(constraints), "-e", ".[test]")
    chosen = ("tests/tracing", "tests/inference", "tests/builtin", "tests/checks", "tests/cost", "tests/runtime")
    session.run("pytest", *(session.posargs or (*SELECTION, *chosen)))
