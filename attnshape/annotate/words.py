"""The axes of a tensor as words of a jaxtyping annotation, of which it checks as many as it can."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass

from attnshape.variables.forms import ANY_NUMBER, AxisForm

_SYMBOL = re.compile(r"[^\W\d]\w*")
_PRODUCT = re.compile(r"[^\W\d]\w*(\*[^\W\d]\w*)+")
_FUNCTIONS = ("min", "max", "abs")
UNKNOWN = "_"


@dataclass(frozen=True)
class Words:
    """The words, and the symbols that a check of them binds to numbers."""

    words: tuple[str, ...]
    binds: frozenset[str]

    @property
    def text(self) -> str:
        """The words as a dims string, `B H Lq Dk`."""
        return " ".join(self.words)

    @property
    def say_something(self) -> bool:
        """Whether any axis is known, or that there is none."""
        return not self.words or any(word not in (UNKNOWN, ANY_NUMBER) for word in self.words)


def known(axis: AxisForm, matched: bool) -> str | None:
    """Return an axis's expression without spaces, None where it isn't known; what is only matched counts if `matched`.

    >>> known(AxisForm("H * Dk", "proved"), False), known(AxisForm("L", "matched"), False)
    ('H*Dk', None)
    """
    if axis.text is None or (axis.known == "matched" and not matched):
        return None
    text = axis.text if axis.text == ANY_NUMBER else axis.text.replace(" ", "")
    return None if any(keyword.iskeyword(name) for name in _SYMBOL.findall(text)) else text


def words(axes: Collection[AxisForm], bound: Collection[str], matched: bool) -> Words:
    """Return the words for axes where the symbols in `bound` have numbers already.

    jaxtyping computes an expression only from symbols that were bound before it; elsewhere it stands as a name that
    isn't checked.

    >>> axes = [AxisForm("B", "proved"), AxisForm("3*D", "proved"), AxisForm("H*Dk", "proved"), AxisForm("4")]
    >>> words(axes, {"D"}, False).text
    'B 3*D _HDk 4'
    """
    texts = [known(axis, matched) for axis in axes]
    return Words(
        tuple(_word(text, bound) for text in texts),
        frozenset(text for text in texts if text is not None and text.isidentifier() and not text.startswith("_")),
    )


def _word(text: str | None, bound: Collection[str]) -> str:
    if text is None:
        return UNKNOWN
    if text == ANY_NUMBER or text.isidentifier() or text.isdecimal():
        return text
    if all(name in bound or name in _FUNCTIONS for name in _SYMBOL.findall(text)):
        return text
    return UNKNOWN + text.replace("*", "") if _PRODUCT.fullmatch(text) else UNKNOWN


def symbols(text: str) -> list[str]:
    """Return the symbols in an axis's expression."""
    return [name for name in _SYMBOL.findall(text) if name not in _FUNCTIONS]
