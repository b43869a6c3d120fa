"""Targets that do what no attention code should."""

from __future__ import annotations

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.hostile_targets import FAMILY


def test_hostile_targets(harness: Harness):
    assert_budget(FAMILY, harness)
