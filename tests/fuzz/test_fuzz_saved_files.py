"""Forged and damaged traces and snapshots are shown and compared, or refused."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.saved_files import FAMILY

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")  # noqa: PTH112


def test_saved_files():
    with Harness() as harness:
        assert_budget(FAMILY, harness)
