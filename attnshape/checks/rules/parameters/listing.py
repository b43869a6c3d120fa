"""Names several parameters in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from attnshape.model.formatting import join_words, pluralize


def _unit(name: str, names: set[str], values: Mapping[str, Tensor]) -> str:
    """Return the path of the largest module with a parameter all of whose parameters are among the names."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        path = ".".join(parts[:end])
        if all(other in names for other in values if other.startswith(f"{path}.")):
            return path
    return name


def listed(names: Sequence[str], values: Mapping[str, Tensor]) -> str:
    """Return what the parameters are called, and "has" or "have": by modules, at most three of them."""
    units: dict[str, list[str]] = {}
    for name in names:
        units.setdefault(_unit(name, set(names), values), []).append(name)
    texts = [
        f"{unit} ({pluralize(len(group), 'parameter')})" if len(group) > 1 else group[0]
        for unit, group in units.items()
    ]
    if len(texts) > 3:
        texts = [*texts[:2], f"{len(texts) - 2} others"]
    return f"{join_words(texts)} {'has' if len(units) == 1 else 'have'}"
