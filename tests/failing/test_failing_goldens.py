"""What a failure looks like in each format, to the letter.

ATTNSHAPE_UPDATE_GOLDENS=1 pytest tests/failing/test_failing_goldens.py writes them anew: read each before you keep it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.running import Attnshape
from tests.failing.failing_case import drawn
from tests.failing.layouts import CASES as LAYOUTS
from tests.failing.products import CASES as PRODUCTS

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
    result = drawn(CASES[name], form, attnshape, folder)
    assert (result.status, result.err) == (1, "")
    text = result.out
    text = re.sub(r"proved by \d+ runs", "proved by n runs", text)  # fewer on a machine that is busy
    if form == "json":  # the rest of a trace has goldens of its own, and versions in it
        text = json.dumps(json.loads(text)["failure"], indent=1, ensure_ascii=False) + "\n"
    golden = GOLDENS / f"{name}_{form}.txt"
    if os.environ.get("ATTNSHAPE_UPDATE_GOLDENS"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_there_is_no_golden_too_many() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == {f"{name}_{form}" for name in CASES for form in FORMS}
