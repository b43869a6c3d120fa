"""Parametrises a test with many values, of which only some run by default."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def sampled(values: Iterable[str], quick: Collection[str]) -> list[ParameterSet]:
    """Return a parameter for each value, and mark those that are not in `quick` as slow."""
    parameters = [pytest.param(value, id=value, marks=() if value in quick else pytest.mark.slow) for value in values]
    missing = set(quick) - {str(parameter.id) for parameter in parameters}
    assert not missing, f"no such values: {missing}"
    return parameters
