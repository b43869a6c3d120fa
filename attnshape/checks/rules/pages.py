"""The documentation page of each code. This module doesn't import torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnshape.errors import AttnshapeError, did_you_mean
from attnshape.model.report import Level

_FOLDER = Path(__file__).parent
PREFIX = "AS"

FAMILIES: dict[str, str] = {
    "AS0": "shape comments",
    "AS1": "meaning of axes",
    "AS2": "scores",
    "AS3": "softmax",
    "AS4": "masks",
    "AS5": "causality",
    "AS6": "heads",
    "AS7": "positions",
    "AS8": "unused inputs",
    "AS9": "state",
}

LEVELS: dict[str, Level] = {
    "AS0": "warning",
    "AS208": "notice",
    "AS408": "notice",
    "AS709": "notice",
    "AS712": "notice",
    "AS806": "notice",
    "AS816": "notice",
}
"""The level of the codes with a prefix, where it isn't `error`. A rule may lower it where only a claim settles it."""

SECTIONS = ("Wrong", "Right", "Why it is silent", "What it costs", "How to fix", "How it is detected")
"""The sections of each page, in this order."""

_ALL_LISTED = "attnshape rule lists all codes"


@dataclass(frozen=True)
class Page:
    """One code's page, a Markdown file in the folder of its rule."""

    code: str
    title: str
    sections: Mapping[str, str]
    """The Markdown of each section by its heading."""
    markdown: str
    """The whole page."""


def page(code: str) -> Page:
    """Return a code's page. The code may be in lower case.

    Raises:
        AttnshapeError: There is no such code.

    >>> page("as201").title
    "scores are scaled by the model's width"
    """
    wanted = code.strip().upper()
    if wanted not in codes():
        raise AttnshapeError(f"there is no rule {code[:40]!r}", suggest_code(wanted))
    return _read_page(wanted)


def suggest_code(word: str) -> str:
    """Return a hint for an unknown code: the codes of its family, the most similar code, or how to list all.

    >>> suggest_code("AS699"), suggest_code("nonsense")
    ('the family has AS601, AS602, AS603, AS604', 'attnshape rule lists all codes')
    """
    if re.fullmatch(rf"{PREFIX}\d+", word.strip().upper()):  # of numbers, the most similar would be a guess
        siblings = codes_under(word.strip()[: len(PREFIX) + 1])
        return f"the family has {', '.join(siblings)}" if siblings else _ALL_LISTED
    hint = did_you_mean(word, codes())
    return hint if hint.startswith("did you mean") else _ALL_LISTED


def pages() -> list[Page]:
    """Return all pages, sorted by code."""
    return [_read_page(code) for code in codes()]


def family(code: str) -> str:
    """Return the title of a code's family.

    >>> family("AS201")
    'scores'
    """
    return FAMILIES[code[: len(PREFIX) + 1]]


def usual_level(code: str) -> Level:
    """Return the level that a code's findings have unless a rule says otherwise.

    >>> usual_level("AS201"), usual_level("AS002")
    ('error', 'warning')
    """
    return next((level for prefix, level in LEVELS.items() if code.startswith(prefix)), "error")


def codes() -> tuple[str, ...]:
    """Return all codes, sorted."""
    return tuple(sorted(_files()))


def codes_under(prefix: str) -> tuple[str, ...]:
    """Return the codes that begin with a prefix, which may be in lower case.

    >>> codes_under("as6")
    ('AS601', 'AS602', 'AS603', 'AS604')
    """
    wanted = prefix.strip().upper()
    return tuple(code for code in codes() if code.startswith(wanted)) if wanted.startswith(PREFIX) else ()


@functools.cache
def _files() -> dict[str, Path]:
    return {file.stem: file for file in _FOLDER.glob(f"*/{PREFIX}*.md")}


@functools.cache
def _read_page(code: str) -> Page:
    text = _files()[code].read_text(encoding="utf-8")
    heading, *parts = text.split("\n## ")
    named = (part.partition("\n") for part in parts)
    sections = {name.strip(): body.strip() for name, _, body in named}
    return Page(code, heading.partition(": ")[2].strip(), sections, text)
