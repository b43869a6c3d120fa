"""Goldens: expected output in files beside the tests. `pytest --update-goldens` rewrites them."""

from __future__ import annotations

from pathlib import Path

_update = False


def set_updating(update: bool) -> None:
    """Choose whether goldens are rewritten instead of compared."""
    global _update
    _update = update


def is_updating() -> bool:
    return _update


def assert_golden(path: Path, text: str) -> None:
    """Assert that a golden has this text; rewrite it first if goldens are being updated."""
    if _update:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
