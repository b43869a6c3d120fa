"""The formats that `--format` names: one line of the registry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnshape.errors import AttnshapeError
from attnshape.model import Trace
from attnshape.render.markdown import markdown
from attnshape.render.table import table
from attnshape.render.text import visible
from attnshape.render.view import Choice, view
from attnshape.schema import to_json

AUTO = "auto"
"""A table on a terminal, Markdown elsewhere."""


@dataclass(frozen=True)
class Screen:
    """What a text is drawn on."""

    width: int
    color: bool = False


@dataclass(frozen=True)
class Format:
    """A format: how it draws a trace, and whether it can show a part of it."""

    draw: Callable[[Trace, Choice, Screen], str]
    chooses: bool = True


FORMATS: dict[str, Format] = {
    "table": Format(lambda trace, choice, screen: table(view(trace, choice), screen.width, screen.color)),
    "markdown": Format(lambda trace, choice, screen: markdown(view(trace, choice))),
    "json": Format(lambda trace, choice, screen: to_json(trace) + "\n", chooses=False),
}


def find(name: str, choice: Choice) -> Format:
    """Return the format of that name.

    Raises AttnshapeError where there is none, and where it shows whole traces only and `choice` asks for a part.
    """
    # `auto` is the caller's to resolve: only it knows where the text goes.
    if name not in FORMATS:
        raise AttnshapeError(f"there is no format {visible(name)!r}", f"the formats are {', '.join((AUTO, *FORMATS))}")
    found = FORMATS[name]
    if not found.chooses and choice != Choice():
        others = ", ".join(key for key, one in FORMATS.items() if one.chooses)
        raise AttnshapeError(
            f"--format {name} always is the whole trace: --columns, --match, --depth and --explain are for tables",
            f"leave them out, or choose another format: {others}",
        )
    return found
