"""Do transforms back from frequencies return as many numbers as were transformed?

A real signal of n numbers has n // 2 + 1 frequencies, as many for an odd n as for the even number before it. The
transform back can't tell them apart, and returns the even number unless it is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.dead_ends import live_results
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.checks.interventions.small_sizes import symbol_or_number
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops


def check_frequencies(subject: Subject) -> Iterator[Violation]:
    """Compare the lengths before each real transform and after the transform back."""
    seen: set[object] = set()
    live = live_results(subject)
    for event in subject.base.events:
        if event.name not in ops.REAL_INVERSE_FOURIER or live.isdisjoint(event.refs):
            continue
        lengths = set(_lengths(subject, event))
        returned = event.values[0].shape[_axis(event, event.values[0].ndim)]
        place = subject.source(event.refs[0])
        if len(lengths) != 1 or place in seen or _told(event) is not None:
            continue
        (length,) = lengths
        if length == returned + 1:
            seen.add(place)
            number = symbol_or_number(length, subject.numbers)
            message = (
                f"{event.short_name} returns {returned} of {number} numbers: without a length it returns an even one"
            )
            hint = "pass the length: torch.fft.irfft(spectrum, n=x.shape[dim], dim=dim)"
            evidence = "compared the lengths before the transform and after the transform back"
            yield Violation("AS119", message, event.refs[0], hint, evidence, shown="measured")


def _lengths(subject: Subject, event: ReplayedCall) -> Iterator[int]:
    """Yield how many numbers those frequencies were computed from that a transform back reads."""
    axis = _axis(event, event.operand_values[0].ndim)
    bins = event.operand_values[0].shape[axis]
    wanted: set[Producer] = set(event.sources[0])
    for call in subject.graph.upstream(event.sources[0]):
        if wanted.isdisjoint(call.refs):
            continue
        if call.name in ops.REAL_FOURIER:
            own = _axis(call, call.values[0].ndim)
            if call.values[0].shape[own] == bins:
                told = _told(call)
                yield told if told is not None else call.operand_values[0].shape[own]
        elif any(value.is_complex() for value in call.values):
            wanted |= call.producers


def _axis(event: ReplayedCall, axes: int) -> int:
    """Return the axis of which a real transform keeps half: the last one that it transforms."""
    dims = event.keywords.get("dim", event.args[2] if len(event.args) > 2 else None)
    last = dims[-1] if isinstance(dims, (tuple, list)) and dims else dims
    return last % axes if isinstance(last, int) else axes - 1


def _told(event: ReplayedCall) -> int | None:
    """Return the length that a call is told for that axis."""
    given = event.keywords.get("n", event.keywords.get("s", event.args[1] if len(event.args) > 1 else None))
    last = given[-1] if isinstance(given, (tuple, list)) and given else given
    return last if isinstance(last, int) and last > 0 else None
