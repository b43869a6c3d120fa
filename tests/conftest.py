"""Options, marks and fixtures for all tests, and a reproducible process environment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

pytest_plugins = ["pytester"]
CI_RUNS_ONE_IN = 8
"""Of the values with which slow tests are run, other than those marked `slow(in_ci=True)`."""
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
    slow = item.get_closest_marker("slow")
    if item.get_closest_marker("nightly"):
        item.add_marker("slow")
    elif slow is not None and not slow.kwargs.get("in_ci") and not _is_sampled(item):
        item.add_marker("nightly")


def _is_sampled(item: pytest.Item) -> bool:
    """Return whether CI runs a slow test with its values; all tests of a value share what they make of it."""
    values = getattr(item, "callspec", None)
    return values is None or crc32(values.id.encode()) % CI_RUNS_ONE_IN == 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _forgets_temporary_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules of temporary folders after each test: another test's `layers` would get this one's."""
    folder = str(tmp_path_factory.getbasetemp().parent)
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(folder)]


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Enable SIGINT here and in child processes, even in a shell's background job, which starts with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
