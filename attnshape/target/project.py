"""Targets that the project's own pyproject.toml names: `[tool.attnshape.targets.NAME]`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from attnshape.errors import AttnshapeError
from attnshape.target.entry import FILE, Entry, entry_of

_EXAMPLE = (
    'write for example [tool.attnshape.targets.attention], and below it target = "model.py:Attention", init = "D, H" '
    'and inputs = ["x: B L D"]'
)


def project_targets() -> dict[str, Any]:
    """Return what the current folder's file has under each name, not looked at yet.

    Raises AttnshapeError where the file can't be read as TOML, or its targets aren't a table.
    """
    path = Path(FILE)
    if not path.is_file():
        return {}
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise AttnshapeError(f"{FILE} can't be read: {error}", "mend it, or name the target as file.py:Name") from None
    except RecursionError:
        raise AttnshapeError(f"{FILE} can't be read: it is nested too deeply", "mend it") from None
    for key in ("tool", "attnshape", "targets"):
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise AttnshapeError(
            f"{FILE}: tool.attnshape.targets isn't a table of targets",
            'write [tool.attnshape.targets.NAME] with target = "model.py:Name"',
        )
    return table


def named_target(name: str) -> Entry | None:
    """Return the target of a name, None where there is none. Raises AttnshapeError where its entry is wrong."""
    targets = project_targets()
    return entry_of(name, targets[name]) if name in targets else None


def every_target() -> dict[str, Any]:
    """Return what `project_targets` does. Raises AttnshapeError where there is none."""
    targets = project_targets()
    if not targets:
        missing = f"{FILE} names no target" if Path(FILE).is_file() else f"there is no {FILE} in the current folder"
        raise AttnshapeError(f"--all runs every target that {FILE} names, and {missing}", _EXAMPLE)
    return targets
