"""Do the features of a position have different frequencies?

Sinusoidal positions have a geometric sequence of them (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section
3.5). Whole numbers that are divided too early, such as in `arange(0, dim, 2) // dim`, make all of them the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

FREQUENCIES_HINT = "divide in floating point: theta ** (-torch.arange(0, dim, 2) / dim), with / and not //"
_FEWEST = 3
"""Two features may share a frequency, as a sine and a cosine do."""
_SAME = 1e-6


def equal_frequencies(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for the first call that takes the sines of angles that are the same in all features.

    Sines of the data, and of what parameters make, aren't positions.
    """
    data = subject.graph.depends_on_data
    for event in subject.base.events:
        if event.name not in ops.WAVES or not event.operands or event.refs[0] in data:
            continue
        angles, sources = event.operand_values[0], event.sources[0]
        is_learned = not subject.graph.origins(sources).isdisjoint(subject.parameters)
        if is_learned or not _are_equal(angles) or not _varies_with_position(angles):
            continue
        made = _first_equal(subject, event)
        if made is not None:
            message = "all features of a position have the same frequency, so they are the same sine or cosine"
            evidence = f"compared the angles of {angles.shape[-1]} features"
            yield Violation("AS719", message, made, FREQUENCIES_HINT, evidence, "measured")
            return


def _are_equal(value: Tensor) -> bool:
    """Return whether several numbers along the last axis are computed, and are the same at every other index."""
    if value.ndim < 1 or value.shape[-1] < _FEWEST or value.stride(-1) == 0:
        return False
    value = value if value.is_complex() else value.double()
    return bool(((value - value[..., :1]).abs() <= _SAME * value.abs().clamp(min=1)).all())


def _varies_with_position(value: Tensor) -> bool:
    numbers = value[..., 0].flatten()
    return numbers.numel() >= _FEWEST and bool((numbers != numbers[0]).any())


def _first_equal(subject: Subject, waves: ReplayedCall) -> OutputRef | None:
    """Return the first call before sines whose result is the same in all features, though it reads what isn't.

    None if there is none, as where one frequency is repeated on purpose.
    """
    width = waves.operand_values[0].shape[-1]
    for event in sorted(subject.graph.upstream(waves.sources[0]), key=lambda event: event.order):
        value = event.values[0]
        if value.ndim == 0 or value.shape[-1] < width or not _are_equal(value):
            continue
        reads = [read for read in event.operand_values if read.ndim and read.shape[-1] == value.shape[-1]]
        if not all(map(_are_equal, reads)):
            return event.refs[0]
    return None
