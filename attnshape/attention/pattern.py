"""Which output positions depend on which positions of an input: a token changed at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from attnshape.attention.following import along
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.letters import in_words
from attnshape.report import Pattern

_SECONDS = 2.0
"""How long all patterns of a subject may take."""


def patterns(subject: Subject) -> Iterator[Pattern]:
    """Yield a pattern for each input that has tokens, as long as these can be changed one by one in good time."""
    deadline = time.monotonic() + _SECONDS
    for name, value in subject.inputs.items():
        letter = next((one for one in subject.lengths if subject.numbers[one] in value.shape), None)
        if letter is None:
            continue
        columns: list[dict[str, set[int]]] = []
        sizes: dict[str, int] = {}
        for index in range(subject.numbers[letter]):
            if time.monotonic() > deadline:
                return
            moved = subject.moved(Change(inputs=subject.at_index(letter, index, [name])))
            if not moved.comparable:
                return
            columns.append({})
            for path, mask in moved.returned():
                axis = _tokens(subject, mask.shape)
                if axis is not None:
                    columns[-1][path] = along(mask, axis)
                    sizes[path] = mask.shape[axis]
        for path, size in sizes.items():
            yield Pattern(
                output=path,
                input=name,
                queries=in_words(size, subject.numbers),
                keys=letter,
                rows=tuple("".join("#" if row in one.get(path, ()) else "." for one in columns) for row in range(size)),
            )


def _tokens(subject: Subject, shape: tuple[int, ...]) -> int | None:
    """Return the axis of a result that holds tokens, None where there is none."""
    lengths = {subject.numbers[letter] for letter in subject.lengths}
    return next((axis for axis, size in enumerate(shape) if size in lengths and size > 1), None)
