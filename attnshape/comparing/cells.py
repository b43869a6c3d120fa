"""The cells of a snapshot's lines: any text, on one line, so that it is read back as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_CELL = re.compile(rf'((?:{_QUOTED}|[^|"])*)(\||$)')
_PLAIN = re.compile(rf'[^|"](?:{_QUOTED}|[^|"])*')
_PLAIN_WORD = re.compile(r"""[^\s"|=,×]+""")
WORD = rf'(?:{_QUOTED}|[^\s"|=,×]+)'
"""A word as `word` writes it, in regular expressions."""


def cell(text: str) -> str:
    r"""Return a text as a cell: in quotes where a line could not be read back otherwise.

    >>> print(cell("x + y"), cell("mask | causal"), cell("a\nb"))
    x + y "mask | causal" "a\nb"
    """
    plain = text.isprintable() and text == text.strip() and _PLAIN.fullmatch(text)
    return text if plain else quoted(text)


def word(text: str) -> str:
    """Return a text as one of a cell's words.

    >>> print(word("H*Dk"), word("two words"))
    H*Dk "two words"
    """
    return text if text.isprintable() and _PLAIN_WORD.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """Return a text in quotes."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def unquoted(text: str) -> str:
    """Return the text of a cell or a word. Raises ValueError where its quotes hold none."""
    if not text.startswith('"'):
        return text
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(f"{text[:40]} isn't a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text[:40]} is what can't be written") from None
    return value


def line(cells: Sequence[str]) -> str:
    """Return cells as a line."""
    return " | ".join(cells).rstrip(" |")


def split(text: str) -> list[str]:
    """Return the cells of a line, still in quotes. Raises ValueError where a quote has no end."""
    cells: list[str] = []
    place = 0
    while True:
        found = _CELL.match(text, place)
        if found is None:
            raise ValueError(f"a quote has no end in {text[place:].strip()[:40]!r}")
        cells.append(found[1].strip())
        place = found.end()
        if found[2] != "|":
            return cells
