"""Clean processes: this package again, in a new Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
"""The folder that this package is imported from."""


def package_command(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module of this package in a new Python, and its environment.

    Nothing is imported from the current folder first, and the package is found where it is now.
    """
    path = os.pathsep.join([ROOT, *filter(None, [environment.get("PYTHONPATH")])])
    return [sys.executable, "-P", "-m", module, *arguments], {**environment, "PYTHONPATH": path}
