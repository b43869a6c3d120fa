"""Which output positions depend on which positions of an input: each token changed in a batch element of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.attention.following import along
from attnshape.attention.numbers import other_numbers
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.letters import in_words
from attnshape.replaying.replay import Replace
from attnshape.report import Pattern

_SECONDS = 2.0
"""How long all patterns of a subject may take."""


def patterns(subject: Subject) -> Iterator[Pattern]:
    """Yield a pattern for each input that has tokens and a batch, as long as the time allows.

    Batch elements must stay apart: several tokens are changed in one run, each in another batch element.
    """
    deadline = time.monotonic() + _SECONDS
    batch = subject.numbers.get(subject.batch or "", 0)
    for name, value in subject.inputs.items():
        letter = next((one for one in subject.lengths if subject.numbers[one] in value.shape), None)
        if letter is None or batch < 2 or batch not in value.shape:
            continue
        rows, tokens = list(value.shape).index(batch), list(value.shape).index(subject.numbers[letter])
        if rows == tokens:
            continue
        found: dict[str, list[set[int]]] = {}
        sizes: dict[str, int] = {}
        for start in range(0, subject.numbers[letter], batch):
            if time.monotonic() > deadline:
                return
            moved = subject.moved(Change(inputs={name: _diagonal(rows, tokens, start)}))
            if not moved.comparable:
                return
            for path, mask in moved.returned():
                axis = _tokens(subject, mask.shape)
                if axis is not None and batch in mask.shape:
                    elements = mask.movedim(list(mask.shape).index(batch), 0)
                    left = axis + (axis < list(mask.shape).index(batch))
                    found.setdefault(path, []).extend(along(one, left - 1) for one in elements)
                    sizes[path] = mask.shape[axis]
        for path, size in sizes.items():
            columns = found[path][: subject.numbers[letter]]
            yield Pattern(
                output=path,
                input=name,
                queries=in_words(size, subject.numbers),
                keys=letter,
                rows=tuple("".join("#" if row in column else "." for column in columns) for row in range(size)),
            )


def _diagonal(rows: int, tokens: int, start: int) -> Replace:
    """Return what changes another token in each batch element: the first one from `start` on."""

    def change(value: Tensor) -> Tensor:
        other = other_numbers(value)
        places = torch.arange(value.shape[rows]) + start
        at = torch.zeros(value.shape[rows], value.shape[tokens], dtype=torch.bool)
        inside = places < value.shape[tokens]
        at[torch.arange(value.shape[rows])[inside], places[inside]] = True
        at = at if rows < tokens else at.T
        shape = [size if axis in (rows, tokens) else 1 for axis, size in enumerate(value.shape)]
        return torch.where(at.reshape(shape), other, value)

    return change


def _tokens(subject: Subject, shape: tuple[int, ...]) -> int | None:
    """Return the axis of a result that holds tokens, None where there is none."""
    lengths = {subject.numbers[letter] for letter in subject.lengths}
    return next((axis for axis, size in enumerate(shape) if size in lengths and size > 1), None)
