"""What all tests share: the options of the command line, marks, and a process that tests can rely on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytest.register_assert_rewrite("tests.goldens")

from tests.goldens import set_updating  # noqa: E402  # so that its assertion shows what differs

# the tests' tensors are small, and two workers with several threads each would wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# the same width whatever terminal the tests are started from
os.environ["COLUMNS"] = "80"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the files that tests compare output with")


def pytest_configure(config: pytest.Config) -> None:
    set_updating(config.getoption("--update-goldens"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # -n alone distributes tests one by one, and each worker would make what a group of tests shares
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
    """Make SIGINT work here and in child processes even in a shell's background job, which starts with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
