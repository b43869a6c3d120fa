"""Generated programs can be traced, recorded, checked and annotated, and their results stay the same."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.programs import FAMILY

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")  # noqa: PTH112


def test_programs():
    with Harness() as harness:
        assert_budget(FAMILY, harness)
