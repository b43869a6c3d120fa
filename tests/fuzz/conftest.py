"""One harness for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.harness import Harness


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    if not Path("/proc/self").exists():
        pytest.skip("needs Linux")
    with Harness() as started:
        yield started
