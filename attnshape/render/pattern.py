"""A picture of which output positions depend on which input positions."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

from attnshape.report import Pattern

_DEPENDS, _APART = "■", "·"


def title(pattern: Pattern) -> str:
    """Return what the picture shows.

    >>> title(Pattern(output="output", input="x", queries="Lq", keys="L", rows=("#",)))
    'output (rows, Lq) depends on x (columns, L) at ■, not at ·'
    """
    rows, columns = f"{pattern.output} (rows, {pattern.queries})", f"{pattern.input} (columns, {pattern.keys})"
    return f"{rows} depends on {columns} at {_DEPENDS}, not at {_APART}"


def picture(pattern: Pattern, width: int) -> list[str]:
    """Return a line for each output position, at most `width` cells wide.

    >>> picture(Pattern(output="output", input="x", queries="L", keys="L", rows=("#.", "##")), 40)
    ['■ ·', '■ ■']
    """
    lines = [" ".join(_DEPENDS if char == "#" else _APART for char in row) for row in pattern.rows]
    return [line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…" for line in lines]
