"""Reads the rules' pages: what each code means, and how to mend it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnshape.errors import AttnshapeError
from attnshape.hints import nearest

FOLDER = Path(__file__).parent
PREFIX = "AS"

FAMILIES: dict[str, str] = {
    "AS0": "what is written",
    "AS1": "meaning of axes",
    "AS2": "scores",
    "AS3": "softmax",
    "AS4": "masks",
    "AS5": "causality",
    "AS6": "shared heads",
    "AS7": "positions",
    "AS8": "inputs that don't matter",
    "AS9": "state",
}

SECTIONS = ("Wrong", "Right", "Why it is silent", "What it costs", "How to mend", "How it is shown")
"""What each page has, in this order."""

_ALL_LISTED = "attnshape rule lists all codes"


@dataclass(frozen=True)
class Page:
    """One rule's page."""

    code: str
    title: str
    sections: Mapping[str, str]
    """The Markdown beneath each heading."""
    markdown: str
    """The page as a whole."""


def page(code: str) -> Page:
    """Return a code's page, however the code is capitalised. Raises AttnshapeError where there is no such code.

    >>> page("as201").title
    "scores are scaled by the model's width"
    """
    found = code.strip().upper()
    if found not in codes():
        raise AttnshapeError(f"there is no rule {code[:40]!r}", meant(found))
    return _read(found)


def meant(word: str) -> str:
    """Return a hint for what is no code: the others of its family, or the nearest code, or where all are listed.

    >>> meant("AS699"), meant("nonsense")
    ('the family has AS601, AS602', 'attnshape rule lists all codes')
    """
    if re.fullmatch(rf"{PREFIX}\d+", word.strip().upper()):  # numbers have no near ones
        beside = codes_under(word.strip()[: len(PREFIX) + 1])
        return f"the family has {', '.join(beside)}" if beside else _ALL_LISTED
    hint = nearest(word, codes())
    return hint if hint.startswith("did you mean") else _ALL_LISTED


def pages() -> list[Page]:
    """Return all pages, by code."""
    return [_read(code) for code in codes()]


def family(code: str) -> str:
    """Return the title of a code's family.

    >>> family("AS201")
    'scores'
    """
    return FAMILIES[code[: len(PREFIX) + 1]]


@functools.cache
def codes() -> tuple[str, ...]:
    """Return all codes, sorted."""
    return tuple(sorted(file.stem for file in FOLDER.glob(f"{PREFIX}*.md")))


def codes_under(prefix: str) -> tuple[str, ...]:
    """Return the codes that begin so, in any capitals; none where no code does.

    >>> codes_under("as6")
    ('AS601', 'AS602')
    """
    wanted = prefix.strip().upper()
    return tuple(code for code in codes() if code.startswith(wanted)) if wanted.startswith(PREFIX) else ()


@functools.cache
def _read(code: str) -> Page:
    text = (FOLDER / f"{code}.md").read_text(encoding="utf-8")
    heading, *parts = text.split("\n## ")
    named = (part.partition("\n") for part in parts)
    sections = {name.strip(): body.strip() for name, _, body in named}
    return Page(code, heading.partition(": ")[2].strip(), sections, text)
