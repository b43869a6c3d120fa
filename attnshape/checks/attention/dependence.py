"""Finds out which positions of the results depend on which tokens of the inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from attnshape.checks.attention.perturbation import changed_indices, others_at, others_at_each
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Replace
from attnshape.checks.interventions.small_sizes import length_text
from attnshape.model.report import Pattern

_PATTERN_SECONDS = 2.0
"""The time limit for all patterns of a subject, in seconds."""


@dataclass(frozen=True)
class Reach:
    """The positions of a result that depend on one token."""

    token: int
    output: str
    """The result's path."""
    positions: frozenset[int]
    size: int
    """How many positions the result has."""


def reaches(subject: Subject, names: Sequence[str], symbol: str, together: bool) -> Iterator[list[Reach]]:
    """Yield what each token of a symbol's axis reaches in the results, one token or several tokens at a time.

    `together` changes several tokens in one run, each in a different batch element, if the inputs have an axis of
    the batch. So the target must not mix batch elements, or what is found must be confirmed with single tokens.
    The iteration ends early where the code takes a different path.
    """
    count, batch = subject.numbers[symbol], subject.batch_size
    values = {name: value for name in names if count in (value := subject.inputs[name]).shape}
    together = together and batch > 1 and batch != count and all(batch in value.shape for value in values.values())
    step = batch if together else 1
    for start in range(0, count if values else 0, step):
        changes = {name: _change(value, count, start, batch if together else 0) for name, value in values.items()}
        diff = subject.perturb(Intervention(inputs=changes))
        if not diff.comparable:
            return
        found: list[Reach] = []
        for path, mask in diff.returned():
            axis = _token_axis(subject, mask.shape)
            if axis is None or (together and batch not in mask.shape):
                continue
            elements = mask.unbind(list(mask.shape).index(batch)) if together else [mask]
            within = axis - (together and axis > list(mask.shape).index(batch))
            for token, element in zip(range(start, count), elements, strict=False):
                found.append(Reach(token, path, frozenset(changed_indices(element, within)), mask.shape[axis]))
        yield found


def _change(value: Tensor, count: int, start: int, batch: int) -> Replace:
    """Return the change of one token, or of another one in each batch element."""
    tokens = list(value.shape).index(count)
    if not batch:
        return others_at(tokens, start)
    indices = [(start + element) % count for element in range(batch)]
    return others_at_each(list(value.shape).index(batch), tokens, indices)


def _token_axis(subject: Subject, shape: tuple[int, ...]) -> int | None:
    """Return the token axis of a result, or None."""
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    return next((axis for axis, size in enumerate(shape) if size in lengths and size > 1), None)


def patterns(subject: Subject) -> Iterator[Pattern]:
    """Yield a pattern for each input that has a token axis and a batch axis, until the time limit.

    Each run changes several tokens, each in a different batch element. So the target must not mix batch elements.
    """
    deadline = time.monotonic() + _PATTERN_SECONDS
    batch = subject.batch_size
    for name, value in subject.inputs.items():
        symbol = next((length for length in subject.lengths if subject.numbers[length] in value.shape), None)
        if symbol is None or batch < 2 or batch not in value.shape or subject.numbers[symbol] == batch:
            continue
        columns: dict[tuple[str, int], list[frozenset[int]]] = {}
        for found in reaches(subject, [name], symbol, together=True):
            if time.monotonic() > deadline:
                return
            for reach in found:
                columns.setdefault((reach.output, reach.size), []).append(reach.positions)
        for (path, size), changed in columns.items():
            if len(changed) < subject.numbers[symbol]:  # the code took a different path
                return
            yield Pattern(
                output=path,
                input=name,
                queries=length_text(size, subject.numbers),
                keys=symbol,
                rows=tuple("".join("#" if row in column else "." for column in changed) for row in range(size)),
            )
