"""What is expected of each example, and how it is asked for."""

import json
from pathlib import Path
from typing import Any

from attnshape.options.spec import TargetSpec
from tests.specs import spec_of

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))


def flags(name: str) -> dict[str, list[str]]:
    """Return the flags of an example's command, each with its values."""
    argv = EXPECTED[name]["argv"]
    given: dict[str, list[str]] = {}
    for flag, value in zip(argv[1::2], argv[2::2], strict=True):
        given.setdefault(flag, []).append(value)
    return given


def asked(name: str) -> TargetSpec:
    """Return what an example's command asks for."""
    return spec_of(*EXPECTED[name]["argv"])[0]
