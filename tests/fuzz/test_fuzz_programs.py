"""Generated programs can be traced, recorded, checked and annotated, and their results stay the same."""

from __future__ import annotations

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Harness
from tests.fuzz.programs import FAMILY


def test_programs(harness: Harness):
    assert_budget(FAMILY, harness)
