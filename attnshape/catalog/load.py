"""From a mechanism's name to its case functions. Imports the mechanism, and torch with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from attnshape.catalog.case import Case
from attnshape.catalog.registry import module_name


def load(name: str) -> dict[str, Callable[..., Case]]:
    """Return a mechanism's case functions by their names, in file order. Raises AttnshapeError for an unknown name."""
    module = importlib.import_module(f"attnshape.catalog.mechanisms.{module_name(name)}")
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__annotations__", {}).get("return") is Case
    }
