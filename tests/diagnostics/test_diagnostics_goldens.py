"""Exact output of failures in each format.

pytest --update-goldens tests/diagnostics rewrites the goldens: read each before you keep it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.running import Attnshape
from tests.diagnostics.failing_case import traced_as
from tests.diagnostics.layouts import CASES as LAYOUTS
from tests.diagnostics.products import CASES as PRODUCTS
from tests.goldens import assert_golden

GOLDENS = Path(__file__).parent / "goldens"
CASES = {
    "key_not_transposed": PRODUCTS["key_not_transposed"],
    "linear_of_another_width": PRODUCTS["linear_of_another_width"],
    "merge_without_contiguous": LAYOUTS["merge_without_contiguous"],
}
FORMS = ("table", "markdown", "json")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_golden(name: str, form: str, attnshape: Attnshape, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    result = traced_as(CASES[name], form, attnshape, folder)
    assert (result.status, result.err) == (1, "")
    text = result.out
    text = re.sub(
        r"verified at \d+ sets of sizes", "verified at n sets of sizes", text
    )  # fewer on a machine that is busy
    if form == "json":  # the rest of a trace has goldens of its own, and versions in it
        text = json.dumps(json.loads(text)["failure"], indent=1, ensure_ascii=False) + "\n"
    golden = GOLDENS / f"{name}_{form}.txt"
    assert_golden(golden, text)


def test_every_golden_is_used() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == {f"{name}_{form}" for name in CASES for form in FORMS}
