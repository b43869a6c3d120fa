"""Parametrises a test with many values, of which only some run by default."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def sampled(values: Iterable[object], quick: Collection[str]) -> list[ParameterSet]:
    """Return a parameter for each value, with its text as id, and mark those whose id is not in `quick` as slow."""
    parameters = [
        pytest.param(value, id=str(value), marks=() if str(value) in quick else pytest.mark.slow) for value in values
    ]
    missing = set(quick) - {str(parameter.id) for parameter in parameters}
    assert not missing, f"no such values: {missing}"
    return parameters
