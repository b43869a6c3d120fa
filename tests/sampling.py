"""Samples: of many values to test, some that run by default; the others are marked as slow."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def sampled(values: Iterable[str], quick: Collection[str]) -> list[ParameterSet]:
    """Return a parameter for each value; those that are not in `quick` are marked as slow."""
    chosen = [pytest.param(value, id=value, marks=() if value in quick else pytest.mark.slow) for value in values]
    missing = set(quick) - {str(one.id) for one in chosen}
    assert not missing, f"no such values: {missing}"
    return chosen
