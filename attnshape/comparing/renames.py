"""Which variables and attributes only have another name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attnshape.comparing.align import Match
from attnshape.comparing.difference import Rename
from attnshape.comparing.outline import Outline

_FIXED = frozenset({"True", "False", "None"})
_WORD = re.compile(r"[^\W\d]\w*")
_CALLED = re.compile(r"([^\W\d]\w*)\(")
_TOKEN = re.compile(r"\w+|\S")


class Renames:
    """Names that one side has in place of the other's, each in place of one only."""

    def __init__(self, pairs: Sequence[tuple[str, str]], words: Mapping[str, str]) -> None:
        self._pairs = pairs
        self._words = words

    @staticmethod
    def between(old: Outline, new: Outline, matches: Sequence[Match]) -> Renames:
        """Return the renames that aligned steps show.

        A word is renamed where only the old side has it, and only the new side the one in its place, always the same.
        """
        before, after = set(_words_of(old)), set(_words_of(new))
        seen: dict[str, set[str]] = {}
        back: dict[str, set[str]] = {}
        called = _operations(old) | _operations(new)
        for one, other in _words_in_place(matches):
            # a function in place of another does something else
            if one != other and not {one, other} & called:
                seen.setdefault(one, set()).add(other)
                back.setdefault(other, set()).add(one)
        words = {
            one: next(iter(others))
            for one, others in seen.items()
            if len(others) == 1
            and one not in after
            and next(iter(others)) not in before
            and len(back[next(iter(others))]) == 1
        }
        names = [(one, other) for one, other in _names(matches) if one != other]
        told = {word for pair in names for text in pair for word in _WORD.findall(text)}
        others = [pair for pair in words.items() if not told & set(pair)]
        return Renames(list(dict.fromkeys([*names, *others])), words)

    @property
    def listed(self) -> tuple[Rename, ...]:
        """Each rename once, in order of appearance."""
        return tuple(Rename(one, other) for one, other in self._pairs)

    def same_text(self, old: str, new: str) -> bool:
        """Say whether two texts are the same but for the renames and the spaces between words."""
        return [self._words.get(one, one) for one in _TOKEN.findall(old)] == _TOKEN.findall(new)


def _operations(outline: Outline) -> set[str]:
    """Return the operations that are called in expressions, which are no variables."""
    operations = {step.operation for step in outline.steps}
    return {word for step in outline.steps for word in _CALLED.findall(step.expression) if word in operations}


def _names(matches: Sequence[Match]) -> Iterator[tuple[str, str]]:
    for old, new in matches:
        if old is not None and new is not None and len(old.outputs) == len(new.outputs):
            for one, other in zip(old.outputs, new.outputs, strict=True):
                if one.name is not None and other.name is not None:
                    yield one.name, other.name


def _words_in_place(matches: Sequence[Match]) -> Iterator[tuple[str, str]]:
    for one, other in _names(matches):
        yield from _paired(one, other)
    for old, new in matches:
        if old is not None and new is not None and old.operation == new.operation:
            yield from _paired(old.expression, new.expression)


def _paired(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Return the words that stand in the same places, where the texts are the same but for their words."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        if all(one == other or (_WORD.fullmatch(one) and _WORD.fullmatch(other)) for one, other in pairs):
            yield from (pair for pair in pairs if _WORD.fullmatch(pair[0]) and not _FIXED & set(pair))


def _words_of(outline: Outline) -> Iterator[str]:
    for step in (*outline.inputs, *outline.steps):
        yield from _WORD.findall(step.expression)
        for output in step.outputs:
            yield from _WORD.findall(output.name or "")
