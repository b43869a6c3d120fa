"""Text folded to a number of terminal cells, where its kind is best broken."""

from __future__ import annotations

import re

from rich.cells import cell_len, get_character_cell_size


def fold_words(text: str, width: int, hang: int = 2) -> list[str]:
    """Return prose as lines of at most `width` cells; those after the first are indented by `hang`.

    >>> fold_words("runs only where D is a multiple of H", 21)
    ['runs only where D is', '  a multiple of H']
    """
    return _fold(text, width, hang, dict.fromkeys(_after_spaces(text), 0))


def fold_code(text: str, width: int) -> list[str]:
    """Return code as lines of at most `width` cells, broken at spaces and before dots, outside brackets if possible.

    >>> fold_code("query = ….transpose(1, 2)", 22)
    ['query = …', '  .transpose(1, 2)']
    """
    depths = _depths(text, "([{", ")]}")
    dots = [match.start() for match in re.finditer(r"\.(?=[A-Za-z_])", text)]
    breaks = {match.end(): 2 * depths[match.end()] + 1 for match in re.finditer(r"[(\[{]", text)}
    breaks |= {place: 2 * depths[place] for place in (*_after_spaces(text), *dots)}
    return _fold(text, width, 2, breaks)


def fold_command(text: str, width: int) -> list[str]:
    r"""Return a command as lines of at most `width` cells that a shell reads as one.

    >>> fold_command("attnshape trace --keys 50", 20)
    ['attnshape trace \\', '  --keys 50']
    """
    if cell_len(text) <= width:
        return [text]
    # The words of a command are broken before a flag if possible, and never inside quotes.
    quoted = _quoted(text)
    breaks = {place: int(not text.startswith("--", place)) for place in _after_spaces(text) if not quoted[place]}
    parts = _cuts(text, width - len("  \\"), 0, breaks)
    # Between words an indent changes nothing; where a word had to be cut, it would.
    margins = ["", *("  " if part.endswith(" ") else "" for part in parts[:-1])]
    ends = [*("\\" for _ in parts[:-1]), ""]
    return [margin + part + end for margin, part, end in zip(margins, parts, ends, strict=True)]


def pad(text: str, width: int) -> str:
    """Return the text with blanks up to `width` cells.

    >>> pad("注意", 6)
    '注意  '
    """
    return text + " " * (width - cell_len(text))


def _after_spaces(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r" (?=[^ ])", text)]


def _depths(text: str, opening: str, closing: str) -> list[int]:
    depths = [0]
    for char in text:
        depths.append(depths[-1] + (char in opening) - (char in closing))
    return depths


def _quoted(text: str) -> list[bool]:
    """Return for each place of a command whether it is inside quotes."""
    places = [False]
    open_quote = ""
    for char in text:
        if open_quote:
            open_quote = "" if char == open_quote else open_quote
        elif char in "\"'":
            open_quote = char
        places.append(bool(open_quote))
    return places


def _fold(text: str, width: int, hang: int, breaks: dict[int, int]) -> list[str]:
    first, *others = (part.rstrip(" ") for part in _cuts(text, width, hang, breaks))
    return [first, *(" " * hang + part for part in others)]


def _cuts(text: str, width: int, hang: int, breaks: dict[int, int]) -> list[str]:
    """Cut the text at the cheapest places that fit, the last of equals; at any character where there is none."""
    parts: list[str] = []
    start = 0
    while True:
        limit = _fitting(text, start, width - (hang if parts else 0))
        if limit == len(text):
            return [*parts, text[start:]]
        ends = [place for place in breaks if start < place <= limit]
        end = min(ends, key=lambda place: (breaks[place], -place), default=limit)
        parts.append(text[start:end])
        start = end


def _fitting(text: str, start: int, width: int) -> int:
    """Return where a line from `start` must end; one character at least, however wide."""
    end, used = start, 0
    while end < len(text):
        used += get_character_cell_size(text[end])
        if used > width and end > start:
            break
        end += 1
    return end
