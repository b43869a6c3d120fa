"""Options, marks and fixtures for all tests, and a reproducible process environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
# targets, which have no doctests and import large libraries
collect_ignore_glob = ["libraries/cases/*", "mutants/pairs/*", "mutants/unusual/*", "comments/sources/*"]
pytest.register_assert_rewrite("tests.goldens")

from tests.goldens import set_updating  # noqa: E402  # so that its assertion shows what differs

# the tensors are small, and the threads of several workers would compete for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# else each process that a test starts compiles the package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# the same width in every terminal
os.environ["COLUMNS"] = "80"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the files that tests compare output with")


def pytest_configure(config: pytest.Config) -> None:
    set_updating(config.getoption("--update-goldens"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # -n alone distributes tests one by one, so that each worker would create the fixtures of a group
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("nightly"):
        item.add_marker("slow")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Enable SIGINT here and in child processes, even in a shell's background job, which starts with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
