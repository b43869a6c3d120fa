"""Text for the terminal: lines with a style, folded to a number of cells, and columns that share a width."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, get_character_cell_size

from attnshape.reporters.labels import INNER

GAP = 2
"""The cells between two columns."""
NARROWEST = 24
"""The least width that text is laid out for."""
_COMFORTABLE = 28
"""The width from which a folded column still reads well."""
_CODE_HANG = 2
"""The indent of all lines of folded code but the first."""


@dataclass(frozen=True)
class StyledLine:
    """A line, and its style in rich's notation."""

    text: str
    style: str = ""


def render_lines(lines: Sequence[StyledLine], color: bool) -> str:
    """Return the lines as one text; without its escape codes, the coloured text equals the plain text.

    >>> render_lines([StyledLine("scores ", "bold"), StyledLine("weights")], color=False)
    'scores\\nweights\\n'
    """
    return _render_color(lines) if color else "".join(f"{line.text.rstrip()}\n" for line in lines)


def styled(text: str, width: int, style: str = "", hang: int = 2) -> list[StyledLine]:
    """Return prose as lines of one style, folded as `fold_words` does."""
    return [StyledLine(line, style) for line in fold_words(text, width, hang)]


def header_lines(command: str, title: str, width: int) -> list[StyledLine]:
    """Return the lines above a result: the command, in a form that a shell reads, and what was run."""
    lines = [StyledLine(line, "dim") for line in fold_command(command, width)] if command else []
    return lines + styled(title, width, "bold")


def render_sections(sections: Sequence[Sequence[StyledLine]], color: bool) -> str:
    """Return the sections as one text with a blank line between any two; empty sections are left out."""
    first, *others = (section for section in sections if section)
    return render_lines([*first, *(line for section in others for line in (StyledLine(""), *section))], color)


def fold_words(text: str, width: int, hang: int = 2) -> list[str]:
    """Return prose as lines of at most `width` cells, all but the first indented by `hang`.

    >>> fold_words("runs only where D is a multiple of H", 21)
    ['runs only where D is', '  a multiple of H']
    """
    return _fold(text, width, hang, dict.fromkeys(_after_spaces(text), 0))


def fold_code(text: str, width: int) -> list[str]:
    """Return code as lines of at most `width` cells, broken at spaces and before dots, if possible outside brackets.

    An identifier is only broken where it is longer than a line.

    >>> fold_code("query = ….transpose(1, 2)", 22)
    ['query = …', '  .transpose(1, 2)']
    >>> fold_code("scores = … / math.sqrt(Dk)", 20)
    ['scores = … /', '  math.sqrt(Dk)']
    >>> fold_code("attend(attn_mask=attn_mask)", 20)
    ['attend(', '  attn_mask=', '  attn_mask)']
    """
    nesting = ((char in "([{") - (char in ")]}") for char in text)
    depths = list(itertools.accumulate(nesting, initial=0))
    # a dot after a name belongs to the name more than a dot after a call
    dots = {match.start(): bool(match[1]) for match in re.finditer(r"(?<=(\w))\.(?=[A-Za-z_])|\.(?=[A-Za-z_])", text)}
    last_resort = 2 * max(depths) + 2
    breaks = {match.end(): last_resort for match in re.finditer(r"[^\w\s.](?=\w)", text)}
    breaks |= {match.end(): 2 * depths[match.end()] + 1 for match in re.finditer(r"[(\[{]", text)}
    breaks |= {place: 2 * depths[place] + 4 * after_name for place, after_name in dots.items()}
    breaks |= {place: 2 * depths[place] for place in _after_spaces(text) if not text[:place].endswith(INNER)}
    return _fold(text, width, _CODE_HANG, breaks)


def longest_identifier(text: str) -> int:
    """Return how wide a column of folded code must be to keep each identifier in the text on one line.

    >>> longest_identifier("proj.unflatten(-1, (3, E))")
    13
    """
    # with the dot before it and the sign after it
    return max((cell_len(word) for word in re.findall(r"\.?\w+[^\w\s.]?", text)), default=0) + _CODE_HANG


def fold_command(text: str, width: int) -> list[str]:
    r"""Return a command as lines of at most `width` cells that a shell reads as one.

    >>> fold_command("attnshape trace --keys 50", 20)
    ['attnshape trace \\', '  --keys 50']
    """
    if cell_len(text) <= width:
        return [text]
    # break before a flag if possible, and never inside quotes
    quoted = _quoted(text)
    breaks = {place: int(not text.startswith("--", place)) for place in _after_spaces(text) if not quoted[place]}
    parts = _cuts(text, width - len("  \\"), 0, breaks)
    # an indent between words changes nothing; inside a word that had to be cut, it would
    margins = ["", *("  " if part.endswith(" ") else "" for part in parts[:-1])]
    ends = [*("\\" for _ in parts[:-1]), ""]
    return [margin + part + end for margin, part, end in zip(margins, parts, ends, strict=True)]


def pad(text: str, width: int) -> str:
    """Return the text padded with spaces to `width` cells.

    >>> pad("注意", 6)
    '注意  '
    """
    return text + " " * (width - cell_len(text))


@dataclass(frozen=True)
class ColumnLayout:
    """The widths of the columns that fit, the name of the first column after the numbers, and the names left out."""

    widths: tuple[int, ...]
    first: str
    left_out: tuple[str, ...] = ()
    is_crowded: bool = False
    """Whether columns are left out, or so narrow that many of their cells are folded."""

    def lines(self, cells: Sequence[str]) -> list[str]:
        """Return the lines of a row: numbers aligned right, everything else left."""
        return self.stacked([(cell,) for cell in cells])

    def stacked(self, cells: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of a row whose cells have several texts, one below the other."""
        folded = [
            [line for text in texts for line in fold_code(text, width)]
            for texts, width in zip(cells, self.widths, strict=False)
        ]
        folded[0] = [" " * (self.widths[0] - cell_len(line)) + line for line in folded[0]]
        return [(" " * GAP).join(map(pad, line, self.widths)).rstrip() for line in zip_longest(*folded, fillvalue="")]


def lay_out(
    names: Sequence[str], least: Sequence[int | None], rows: Sequence[Sequence[str]], width: int
) -> ColumnLayout:
    """Fit columns into a width: fold text columns, then leave out columns from the right.

    `least` is for each column the least width to fold its cells to; None for cells that are never folded. An identifier
    is kept on one line, unless it is longer than half of the width. The numbers and the first column after them are
    always kept.
    """
    columns = [[row[place] for row in rows] for place in range(len(names))]
    wanted = [max(cell_len(name), *map(cell_len, cells), 1) for name, cells in zip(names, columns, strict=True)]
    words = [min(max(map(longest_identifier, cells), default=0), width // 2) for cells in columns]
    smallest = [
        min(full, max(limit, word)) if limit else full for full, limit, word in zip(wanted, least, words, strict=True)
    ]
    kept = len(wanted)
    while kept > 2 and sum(smallest[:kept]) + GAP * (kept - 1) > width:
        kept -= 1
    room = width - GAP * (kept - 1)
    widths = wanted[:kept]
    while sum(widths) > room:
        widest = max(range(1, kept), key=lambda place: widths[place] * (widths[place] > smallest[place]))
        widths[widest] -= 1
    folds = any(actual < min(full, _COMFORTABLE) for actual, full in zip(widths, wanted, strict=False))
    return ColumnLayout(tuple(widths), names[1], tuple(names[kept:]), folds or kept < len(wanted))


def _after_spaces(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r" (?=[^ ])", text)]


def _quoted(text: str) -> list[bool]:
    """Return for each position in a command whether it is inside quotes."""
    places = [False]
    open_quote = ""
    for char in text:
        if char == open_quote:
            open_quote = ""
        elif char in "\"'" and not open_quote:
            open_quote = char
        places.append(bool(open_quote))
    return places


def _fold(text: str, width: int, hang: int, breaks: dict[int, int]) -> list[str]:
    first, *others = (part.rstrip(" ") for part in _cuts(text, width, hang, breaks))
    return [first, *(" " * hang + part for part in others)]


def _cuts(text: str, width: int, hang: int, breaks: dict[int, int]) -> list[str]:
    """Cut the text at the cheapest breaks that fit, the last among equals; at any character if there is none."""
    parts: list[str] = []
    start = 0
    places = sorted(breaks)
    while True:
        limit = _fitting(text, start, width - (hang if parts else 0))
        if limit == len(text):
            return [*parts, text[start:]]
        ends = places[bisect.bisect_right(places, start) : bisect.bisect_right(places, limit)]
        # a line of a few characters would cost more than a break inside brackets
        ends = [place for place in ends if 3 * (place - start) > limit - start] or ends
        end = min(ends, key=lambda place: (breaks[place], -place), default=limit)
        # at the start of a line `::name::` would be a command to GitHub's runner; after a space it is escaped already
        while text.startswith("::", end) and end > start + 1:
            end -= 1
        parts.append(text[start:end])
        start = end


def _fitting(text: str, start: int, width: int) -> int:
    """Return where a line that begins at `start` must end, at least one character later."""
    end, used = start, 0
    while end < len(text):
        used += get_character_cell_size(text[end])
        if used > width and end > start:
            break
        end += 1
    return end


def _render_color(lines: Sequence[StyledLine]) -> str:
    # only coloured text pays for the import
    import io

    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system="standard", no_color=False, legacy_windows=False, _environ={}
    )
    for line in lines:
        console.print(Text(line.text.rstrip(), style=line.style), soft_wrap=True)
    return file.getvalue()
