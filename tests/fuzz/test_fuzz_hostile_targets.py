"""Targets that do what no attention code should."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.hostile_targets import FAMILY

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")  # noqa: PTH112


def test_hostile_targets():
    with Harness() as harness:
        assert_budget(FAMILY, harness)
