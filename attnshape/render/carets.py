"""Tensors beneath each other, with a caret line under the axes that are marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from attnshape.render.fold import fold_words, pad
from attnshape.render.summary import Marked

_INDENT = "    "
_GAP = "  "


def tensor_lines(tensors: Sequence[Marked], width: int) -> list[str]:
    """Return a line for each tensor, and one of carets where axes are marked; words where that finds no room.

    >>> key = Marked("key", ("B", "Lk", "Dk"), ("2", "16", "64"), frozenset({1}))
    >>> print("\\n".join(tensor_lines([Marked("q", ("B", "Dk"), ("2", "64")), key], 40)))
        q    B Dk     2 64
        key  B Lk Dk  2 16 64
               ^^       ^^
    """
    names = max((cell_len(one.name) for one in tensors), default=0)
    signatures = max((cell_len(" ".join(one.signature)) for one in tensors), default=0)
    lines: list[str] = []
    for one in tensors:
        parts = (pad(one.name, names), pad(" ".join(one.signature), signatures), " ".join(one.shape) or "scalar")
        lines.append((_INDENT + _GAP.join(parts)).rstrip())
        if one.marks:
            marks = (" " * names, pad(_carets(one.signature, one.marks), signatures), _carets(one.shape, one.marks))
            lines.append((_INDENT + _GAP.join(marks)).rstrip())
    if all(cell_len(line) <= width for line in lines):
        return lines
    return [line for one in tensors for line in fold_words(_in_words(one), width)]


def _carets(words: Sequence[str], marks: frozenset[int]) -> str:
    return " ".join(("^" if place in marks else " ") * cell_len(word) for place, word in enumerate(words))


def _in_words(one: Marked) -> str:
    marked = [f"{one.signature[place]} ({one.shape[place]})" for place in sorted(one.marks) if place < len(one.shape)]
    text = f"{one.name}: {' '.join(one.signature)} ({' '.join(one.shape) or 'scalar'})"
    return f"{text}, here {', '.join(marked)}" if marked else text
