"""Each kind of failure: the line, the operands by name, the mismatched axes, and a hint that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Attnshape
from tests.diagnostics import layouts, masks, products, values
from tests.diagnostics.failing_case import check

CASES = {**products.CASES, **masks.CASES, **layouts.CASES, **values.CASES}


@pytest.mark.parametrize("name", CASES)
def test_diagnosis(name: str, attnshape: Attnshape, folder: Path) -> None:
    check(CASES[name], attnshape, folder)
