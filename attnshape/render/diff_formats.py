"""The formats that `--format` names for differences: one line of the registry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnshape.comparing.difference import Difference
from attnshape.comparing.folders import Differences
from attnshape.errors import AttnshapeError
from attnshape.render import diff_folders
from attnshape.render.diff_markdown import markdown
from attnshape.render.diff_table import table
from attnshape.render.diff_view import view
from attnshape.render.formats import AUTO, Screen
from attnshape.render.text import visible


@dataclass(frozen=True)
class DiffFormat:
    """A format: how it draws what differs between two traces, and between two folders of them, made by a command."""

    one: Callable[[Difference, str, Screen], str]
    many: Callable[[Differences, str, Screen], str]


DIFF_FORMATS: dict[str, DiffFormat] = {
    "table": DiffFormat(
        lambda difference, command, screen: table(view(difference, command), screen.width, screen.color),
        lambda differences, command, screen: diff_folders.table(differences, command, screen.width, screen.color),
    ),
    "markdown": DiffFormat(
        lambda difference, command, screen: markdown(view(difference, command)),
        lambda differences, command, screen: diff_folders.markdown(differences, command),
    ),
    "json": DiffFormat(
        lambda difference, command, screen: difference.to_json() + "\n",
        lambda differences, command, screen: differences.to_json() + "\n",
    ),
}


def find(name: str) -> DiffFormat:
    """Return the format of that name. Raises AttnshapeError where there is none."""
    if name not in DIFF_FORMATS:
        raise AttnshapeError(
            f"there is no format {visible(name)!r}", f"the formats are {', '.join((AUTO, *DIFF_FORMATS))}"
        )
    return DIFF_FORMATS[name]
