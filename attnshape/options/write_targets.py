"""Writes targets into a pyproject.toml, and keeps everything else in it as it is: comments, order and formatting."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnshape.errors import AttnshapeError
from attnshape.runtime.files import check_replaceable, write_atomically

if TYPE_CHECKING:
    from tomlkit.items import Item, Table

_KEYS = ("tool", "attnshape", "targets")


def write_targets(path: Path, targets: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Add targets to a pyproject.toml, which is created if there is none.

    Args:
        path: The file.
        targets: The keys of each target and their values, by the target's name.

    Returns:
        The names that were written: those that the file doesn't have yet.

    Raises:
        AttnshapeError: The file can't be read, edited or written.
    """
    text = _read(path)
    before = _parsed(path, text)
    present = _targets_of(path, before)
    new = {name: dict(keys) for name, keys in targets.items() if name not in present}
    if not new:
        return []
    after = _with_targets(text, new)
    expected = _merged(before, new)
    try:
        is_right = tomllib.loads(after) == expected
    except ValueError:
        is_right = False
    if not is_right:  # where the targets' table is written inline, for example
        raise AttnshapeError(
            f"{path}: the targets can't be added to it without changing something else",
            "write them yourself: attnshape targets lists what they name",
        )
    try:
        check_replaceable(path)
        write_atomically(path, after.encode())
    except OSError as error:
        raise AttnshapeError(
            f"{path} can't be written: {error.strerror or error}", "see who may write it, or name another folder's"
        ) from None
    return list(new)


def _read(path: Path) -> str:
    try:
        # the ends of lines stay as they are
        return path.read_bytes().decode() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise AttnshapeError(f"{path} can't be read: {error}", "fix it, and try again") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise AttnshapeError(f"{path} can't be read: {error}", "fix it, and try again") from None


def _targets_of(path: Path, table: Mapping[str, Any]) -> Mapping[str, Any]:
    for place, key in enumerate(_KEYS, 1):
        value = table.get(key, {})
        if not isinstance(value, dict):
            raise AttnshapeError(f"{path}: {'.'.join(_KEYS[:place])} isn't a table", "make it one, or remove it")
        table = value
    return table


def _merged(before: Mapping[str, Any], new: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return the contents that the file must have in the end."""

    def merge(table: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        if not keys:
            return {**table, **new}
        return {**table, keys[0]: merge(table.get(keys[0], {}), keys[1:])}

    return merge(before, _KEYS)


def _with_targets(text: str, new: Mapping[str, Mapping[str, object]]) -> str:
    """Return the text with the targets at its end, where they fit whatever comes before."""
    import tomlkit  # only what writes targets needs it

    document = tomlkit.document()
    table: Any = document
    for key in _KEYS:
        table.append(key, tomlkit.table(is_super_table=True))
        table = table[key]
    for name, keys in new.items():
        table.append(name, _table(keys))
    end = "\r\n" if "\r\n" in text else "\n"
    own = text.rstrip("\r\n")
    added = tomlkit.dumps(document).strip().replace("\n", end)
    return f"{own}{end}{end}{added}{end}" if own else f"{added}{end}"


def _table(keys: Mapping[str, object]) -> Table:
    import tomlkit

    table = tomlkit.table()
    for key, value in keys.items():
        table.append(key, _item(value))
    return table


def _item(value: object) -> Item:
    """Return a value as it is written on one line: tables inside a target are inline."""
    import tomlkit

    if isinstance(value, Mapping):
        inline = tomlkit.inline_table()
        for key, inner in value.items():
            inline.append(str(key), _item(inner))
        return inline
    if isinstance(value, (list, tuple)):
        array = tomlkit.array()
        for inner in value:
            array.append(_item(inner))
        return array
    return tomlkit.item(value)
