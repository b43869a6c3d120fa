"""Command lines of every verb, valid and invalid."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.command_lines import FAMILY
from tests.fuzz.harness import Harness

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux")  # noqa: PTH112


def test_command_lines():
    with Harness() as harness:
        assert_budget(FAMILY, harness)
