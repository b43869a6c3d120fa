"""Lines of text for the terminal, which colour only decorates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A line, and its style in rich's words."""

    text: str
    style: str = ""


def drawn(lines: Sequence[Line], color: bool) -> str:
    """Return the lines as one text; without its escapes, the coloured one is the plain one.

    >>> drawn([Line("scores ", "bold"), Line("weights")], color=False)
    'scores\\nweights\\n'
    """
    return _colored(lines) if color else "".join(f"{line.text.rstrip()}\n" for line in lines)


def _colored(lines: Sequence[Line]) -> str:
    # Only a text in colour pays for the import.
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as capture:
        for line in lines:
            console.print(Text(line.text.rstrip(), style=line.style), soft_wrap=True)
    return capture.get()
