"""Letters for axes that are one size in one call and another in the next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os.path import commonprefix

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_SPARE = "NMKPQ"

Texts = tuple[str | None, ...]
"""An axis's expression in each call of a function, None where there was no such axis."""


class Letters:
    """One function's letters: every symbol means one thing in a call, whichever call it is.

    >>> letters = Letters()
    >>> for axis in (["B", "B"], ["Lq", "Lk"], ["H*Lq", "H*Lk"]):
    ...     letters.learn(axis)
    >>> letters.choose(["B", "B"]), letters.choose(["Lq", "Lk"]), letters.choose(["H*Lq", "H*Lk"])
    ('B', 'L', 'H*L')
    """

    def __init__(self) -> None:
        self._same: set[str] = set()
        """Symbols that stand in an expression which all calls share."""
        self._differing: list[Texts] = []
        self._chosen: dict[Texts, str] = {}

    def learn(self, texts: Sequence[str | None]) -> None:
        """Take in what an axis is in each call; all axes are learned before the first letter is chosen."""
        for one in _parts(texts):
            if len({text for text in one if text is not None}) == 1:
                self._same |= {text for text in one if text is not None}
            elif one not in self._differing:
                self._differing.append(one)

    def choose(self, texts: Sequence[str | None]) -> str | None:
        """Return the expression that holds in all calls, None where there is none."""
        there = [text for text in texts if text is not None]
        if len(set(there)) == 1:
            return there[0]
        parts = _parts(texts)
        if not parts:
            return None
        names = iter([self._letter(one) for one in parts])
        return _SYMBOL.sub(lambda _: next(names), there[0])

    def _letter(self, texts: Texts) -> str:
        there = {text for text in texts if text is not None}
        if len(there) == 1:
            return there.pop()
        whole = next((one for one in self._differing if _fits(texts, one)), texts)
        if whole not in self._chosen:
            self._chosen[whole] = self._new(whole)
        return self._chosen[whole]

    def _new(self, texts: Texts) -> str:
        taken = self._same | set(self._chosen.values())
        others = [one for one in self._differing if one != texts and not _fits(one, texts)]
        shared = _prefix(texts)
        if shared and shared not in taken and all(_prefix(one) != shared for one in others):
            return shared
        own = [text for text in texts if text is not None and not any(text in one for one in others)]
        free = [text for text in dict.fromkeys(own) if text not in taken]
        if free:
            return max(free, key=len)
        return next(
            f"{letter}{number}" for number in range(1, 100) for letter in _SPARE if f"{letter}{number}" not in taken
        )


def _parts(texts: Sequence[str | None]) -> list[Texts]:
    """Return what stands at each symbol's place in expressions that are alike but for their symbols; else nothing."""
    there = [text for text in texts if text is not None]
    if len({_SYMBOL.sub("?", text) for text in there}) != 1:
        return []
    symbols = [_SYMBOL.findall(text) if text is not None else None for text in texts]
    count = len(_SYMBOL.findall(there[0]))
    return [tuple(one[place] if one is not None else None for one in symbols) for place in range(count)]


def _fits(texts: Texts, whole: Texts) -> bool:
    """Say whether the calls that both know agree, and `whole` knows all of them."""
    pairs = list(zip(texts, whole, strict=True))
    return all(a is None or a == b for a, b in pairs)


def _prefix(texts: Texts) -> str:
    found = commonprefix([text for text in texts if text is not None])  # noqa: RUF071 - of letters, not of paths
    return found if found.isidentifier() else ""
