"""Command lines of every verb, valid and invalid."""

from __future__ import annotations

from tests.fuzz.cases import assert_budget
from tests.fuzz.command_lines import FAMILY
from tests.fuzz.harness import Harness


def test_command_lines(harness: Harness):
    assert_budget(FAMILY, harness)
