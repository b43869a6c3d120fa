"""The tests on every supported Python, and on the oldest torch: `nox` runs them on each that is found, `nox -l` lists.

Words behind `--` go to pytest: `nox -s tests-3.13 -- tests/observation -n 0`. PyPI's torch for Linux needs CUDA, some
5 GB; where PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL leads to CPU-only wheels, pip takes these.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
SELECTION = ("-n", "2", "-m", "not slow and not libraries")
"""Every behaviour once, but for the libraries' attention, which not all Pythons can install."""
OLDEST_TORCH = "2.11.0"

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

if shutil.which("pyenv"):
    # pyenv's python3.12 works only while a 3.12 is switched on
    found = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True).stdout.split()
    os.environ["PYENV_VERSION"] = ":".join(one for one in found if one.rpartition(".")[0] in PYTHONS)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests that are neither slow nor need the libraries, or those that are named."""
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
    """Run what depends most on torch with the oldest version that is supported."""
    pins = re.sub(r"(?m)^torch==.*$", f"torch=={OLDEST_TORCH}", Path("constraints.txt").read_text())
    constraints = Path(session.create_tmp(), "constraints.txt")
    constraints.write_text(pins)
    session.install("-c", str(constraints), "-e", ".[test]")
    chosen = ("tests/tracing", "tests/inference", "tests/builtin", "tests/checks", "tests/cost", "tests/runtime")
    session.run("pytest", *(session.posargs or (*SELECTION, *chosen)))
