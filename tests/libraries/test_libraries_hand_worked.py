"""The tables of hand-derived signatures are complete, and their sizes are distinguishable."""

import importlib.metadata
import re
from pathlib import Path

import pytest

from tests.libraries.tracing_cases import FOLDER, HAND_WORKED

IMPORTED = {
    name
    for path in (FOLDER / "cases").glob("*.py")
    for name in re.findall(r"^from (\w+)[\w.]* import|^import (\w+)$", path.read_text(), re.MULTILINE)
    for name in name
    if name
}
INSTALLED = importlib.metadata.packages_distributions()


@pytest.mark.libraries
def test_enough_modules_of_enough_packages() -> None:
    packages = {distribution for name in IMPORTED for distribution in INSTALLED.get(name, ())}
    assert len(HAND_WORKED) >= 45
    assert len(packages) >= 9


def test_every_case_has_a_table_entry() -> None:
    defined = {
        f"{path.stem}:{name}"
        for path in (FOLDER / "cases").glob("*.py")
        for name in re.findall(r"^def ([a-z]\w*)\(.*-> Any:$", path.read_text(), re.MULTILINE)
    }
    assert defined == set(HAND_WORKED)
    assert Path(FOLDER / "hand").is_dir()


@pytest.mark.parametrize("case", HAND_WORKED)
def test_sizes_are_distinct(case: str) -> None:
    worked = HAND_WORKED[case]
    assert len(worked.sizes) == 2
    assert worked.sizes[0].keys() == worked.sizes[1].keys()
    for sizes in worked.sizes:
        widths = {"Dk": sizes["D"] // sizes["H"]} if {"D", "H"} <= sizes.keys() and "Dk" not in sizes else {}
        groups = {"G": sizes["H"] // sizes["Hkv"]} if "Hkv" in sizes else {}
        numbers = [size for size in (sizes | widths | groups).values() if size > 1]
        assert len(set(numbers)) == len(numbers), sizes


@pytest.mark.parametrize("case", HAND_WORKED)
def test_formulas_change_with_the_sizes(case: str) -> None:
    worked = HAND_WORKED[case]
    first, second = worked.sizes
    for expression in {axis for text in (*worked.outputs, *worked.scores, *worked.avoided) for axis in text.split()}:
        if not expression.isdecimal():
            names = {"min": min}
            assert eval(expression, names, dict(first)) != eval(expression, names, dict(second)), expression


@pytest.mark.parametrize("case", HAND_WORKED)
def test_every_case_has_scores_or_a_reason(case: str) -> None:
    worked = HAND_WORKED[case]
    assert bool(worked.scores or worked.avoided) != bool(worked.without)
