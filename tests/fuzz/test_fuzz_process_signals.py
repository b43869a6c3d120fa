"""Signals end a process at once, whatever it is doing, and nothing is left."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.process_signals import FAMILY

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")  # noqa: PTH112


def test_process_signals():
    with Harness() as harness:
        assert_budget(FAMILY, harness)
