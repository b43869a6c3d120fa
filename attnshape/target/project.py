"""Targets that the project's own pyproject.toml names: `[tool.attnshape.targets.NAME]`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from attnshape.errors import AttnshapeError

FILE = "pyproject.toml"


def project_targets() -> dict[str, dict[str, Any]]:
    """Return the current folder's named targets. Raises AttnshapeError where the file can't be read as TOML."""
    path = Path(FILE)
    if not path.is_file():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise AttnshapeError(f"{FILE} can't be read: {error}", "mend it, or name the target as file.py:Name") from None
    table: Any = content
    for key in ("tool", "attnshape", "targets"):
        table = table.get(key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise AttnshapeError(
            f"{FILE}: tool.attnshape.targets isn't a table of targets",
            'write [tool.attnshape.targets.NAME] with target = "model.py:Name"',
        )
    return table


def named_target(name: str, allowed: tuple[str, ...]) -> dict[str, list[str]] | None:
    """Return a named target's flags with their values as text, None where there is none of that name.

    `allowed` are the flags' names. Raises AttnshapeError where the entry has another key, or none called target.
    """
    entry = project_targets().get(name)
    if entry is None:
        return None
    flags: dict[str, list[str]] = {}
    for key, value in entry.items():
        if key != "target" and key not in allowed:
            raise AttnshapeError(
                f"{FILE}: target {name!r} has the unknown key {key!r}", f"the keys are target, {', '.join(allowed)}"
            )
        if isinstance(value, dict):
            flags[key] = [f"{inner}={item}" for inner, item in value.items()]
        elif isinstance(value, list):
            flags[key] = [str(item) for item in value]
        elif isinstance(value, bool):
            flags[key] = ["true"] if value else []
        else:
            flags[key] = [str(value)]
    if not isinstance(entry.get("target", ""), str):
        raise AttnshapeError(f"{FILE}: the key target of {name!r} isn't a text", 'write target = "model.py:Name"')
    if "target" not in flags:
        raise AttnshapeError(f"{FILE}: target {name!r} has no key target", 'add target = "model.py:Name"')
    return flags
