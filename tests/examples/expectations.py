"""The expected results of each example, and its command."""

import json
from pathlib import Path
from typing import Any

from attnshape.options.spec import TargetSpec
from tests.specs import spec_of

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))


def flags(name: str) -> dict[str, list[str]]:
    """Return the flags of an example's command, each with its values."""
    argv = EXPECTED[name]["argv"]
    values: dict[str, list[str]] = {}
    for flag, value in zip(argv[1::2], argv[2::2], strict=True):
        values.setdefault(flag, []).append(value)
    return values


def example_spec(name: str) -> TargetSpec:
    """Return the target spec of an example's command."""
    return spec_of(*EXPECTED[name]["argv"])[0]
