"""Signals end a process at once, whatever it is doing, and nothing is left."""

from __future__ import annotations

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.process_signals import FAMILY


def test_process_signals(harness: Harness):
    assert_budget(FAMILY, harness)
