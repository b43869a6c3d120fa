"""Faults of streams, disks and limits."""

from __future__ import annotations

from tests.fuzz.cases import assert_budget
from tests.fuzz.faults import FAMILY
from tests.fuzz.harness import Harness


def test_faults(harness: Harness):
    assert_budget(FAMILY, harness)
