"""Shows which keys each query of an attention sees, head by head where heads differ."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.checks.attention.layers import format_layers, layers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import ExplainedVisibility, explain_visibility
from attnshape.checks.interventions.experiment import OutOfTimeError, UnreadableError
from attnshape.checks.interventions.small_sizes import length_text
from attnshape.model.behaviour import KeyPattern
from attnshape.model.formatting import join_words
from attnshape.runtime.time_limit import TooLong

_MOST_PARTS = 8
"""How many patterns of one attention are shown; more of them are those of single windows."""
_MOST_NAMED = 6
"""How many heads, or ranges of them, are named that have the same pattern."""
_Parts = tuple[tuple[str, tuple[str, ...]], ...]
"""What sees the keys of a pattern, and the pattern's rows."""


def key_patterns(subject: Subject) -> tuple[KeyPattern, ...]:
    """Return the patterns of each attention whose visible keys are known; none where nothing can be observed in time.

    Attentions of one line share them if they are alike.
    """
    try:
        return tuple(_key_patterns(subject))
    except (OutOfTimeError, TooLong, UnreadableError, RuntimeError):
        return ()


def _key_patterns(subject: Subject) -> Iterator[KeyPattern]:
    paths = layers(subject)
    alike: dict[tuple[str, _Parts, bool, tuple[str, str]], list[str]] = {}
    for one in explain_visibility(subject)[0]:
        context, keys = one.visible.core.context, one.visible.keys & ~one.visible.empty.unsqueeze(-1)
        source = subject.source(context)
        line = f"{source.file}:{source.line}" if source is not None else ""
        differ = bool((keys != keys[:1]).any())
        symbols = [length_text(size, subject.numbers) for size in keys.shape[-2:]]
        key = (line, _parts(one, keys[0]), differ, (symbols[0], symbols[1]))
        alike.setdefault(key, []).append(paths.get(context, ""))
    for (line, parts, differ, (queries, columns)), modules in alike.items():
        named = format_layers(filter(None, modules))
        attention = f"{line} ({named})" if line and named else line or named
        for part, rows in parts[:_MOST_PARTS]:
            yield KeyPattern(
                attention=attention, part=part, first_element=differ, queries=queries, keys=columns, rows=rows
            )


def _parts(one: ExplainedVisibility, keys: Tensor) -> _Parts:
    """Return the patterns of one batch element, (H, queries, keys), each with the heads that have it."""
    of_rows: dict[tuple[str, ...], list[int]] = {}
    for head, pattern in enumerate(keys.tolist()):
        rows = tuple("".join("#" if seen else "." for seen in row) for row in pattern)
        of_rows.setdefault(rows, []).append(head)
    if len(of_rows) == 1:
        return tuple(("", rows) for rows in of_rows)
    layout = one.visible.layout
    axis = "part" if layout is not None and layout.folded_sizes else "head"
    return tuple((_numbered(axis, heads), rows) for rows, heads in of_rows.items())


def _numbered(noun: str, numbers: list[int]) -> str:
    """Return indices in words; those that follow each other, as their first and last.

    >>> _numbered("head", [2]), _numbered("head", [0, 1, 4]), _numbered("head", [0, 1, 2, 5])
    ('head 2', 'heads 0, 1 and 4', 'heads 0 to 2 and 5')
    >>> _numbered("part", [*range(0, 40, 2)])
    'parts 0, 2, 4, 6, 8, 10 and 14 others'
    """
    named: list[tuple[str, int]] = []
    start = 0
    for place, number in enumerate(numbers, 1):
        if place < len(numbers) and numbers[place] == number + 1:
            continue
        run = numbers[start:place]
        named += [(f"{run[0]} to {number}", len(run))] if len(run) > 2 else [(str(one), 1) for one in run]
        start = place
    words = [word for word, _ in named]
    if len(named) > _MOST_NAMED + 1:
        others = sum(count for _, count in named[_MOST_NAMED:])
        words = [*words[:_MOST_NAMED], f"{others} others"]
    return f"{noun}{'s' if len(numbers) > 1 else ''} {join_words(words)}"
