"""How a trace is to be shown, checked before any work is done for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnshape.cli.writing import check_writable, resolve_format, use_color, width, write
from attnshape.errors import AttnshapeError
from attnshape.model import Trace
from attnshape.render.columns import DEFAULT, parse_columns
from attnshape.render.formats import Format, Screen, find
from attnshape.render.view import Choice


@dataclass(frozen=True)
class Drawing:
    """A format, what to show in it, and where it goes."""

    name: str
    format: Format
    choice: Choice
    output: Path | None

    @staticmethod
    def prepare(
        name: str, output: Path | None, columns: str | None, match: str | None, depth: int | None, explain: bool
    ) -> Drawing:
        """Return the drawing. Raises AttnshapeError where a name in it is unknown or the file can't be written."""
        check_writable(output)
        if depth is not None and depth < 0:
            raise AttnshapeError(f"--depth is {depth}, expected 0 or more", "for example --depth 1")
        choice = Choice(parse_columns(columns) if columns is not None else DEFAULT, match, depth, explain)
        found = resolve_format(name, output)
        return Drawing(found, find(found, choice), choice, output)

    def drawn(self, trace: Trace) -> str:
        """Return the trace as text."""
        return self.format.draw(trace, self.choice, Screen(width(), use_color(self.output)))

    def draw(self, trace: Trace) -> None:
        """Write the trace."""
        write(self.drawn(trace), self.output)
