"""Which codes count: `--select` and `--ignore`, by code or by what codes begin with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attnshape.errors import AttnshapeError
from attnshape.rules.pages import PREFIX, codes_under, meant

_ALL = "ALL"


@dataclass(frozen=True)
class Selection:
    """The codes that count; the longer of two prefixes wins, of equals the one that ignores."""

    select: tuple[str, ...] = (PREFIX,)
    ignore: tuple[str, ...] = ()

    @classmethod
    def parse(cls, select: Iterable[str], ignore: Iterable[str]) -> Selection:
        """Return the selection that was typed, all codes where nothing is selected.

        Raises AttnshapeError where a code or family is named that doesn't exist.

        >>> Selection.parse(["AS2,AS301"], ["as203"])
        Selection(select=('AS2', 'AS301'), ignore=('AS203',))
        """
        return cls(_prefixes("--select", select) or (PREFIX,), _prefixes("--ignore", ignore))

    def keeps(self, code: str) -> bool:
        """Say whether a code counts.

        >>> selection = Selection.parse(["AS2", "AS301"], ["AS3", "AS203"])
        >>> [code for code in ("AS201", "AS203", "AS301", "AS302", "AS101") if selection.keeps(code)]
        ['AS201', 'AS301']
        """
        return _longest(self.select, code) > _longest(self.ignore, code)


def _longest(prefixes: tuple[str, ...], code: str) -> int:
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


def _prefixes(flag: str, texts: Iterable[str]) -> tuple[str, ...]:
    words = [word.strip() for text in texts for word in text.split(",")]
    found = []
    for word in words:
        prefix = PREFIX if word.upper() == _ALL else word.upper()
        if not codes_under(prefix):
            raise AttnshapeError(f"{flag} names {word[:40]!r}, which is no code and no family", meant(word))
        found.append(prefix)
    return tuple(dict.fromkeys(found))
