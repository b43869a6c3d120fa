"""The factor of scores that get more than a factor on their way to the softmax.

They may be capped (Bello et al. 2017, https://arxiv.org/abs/1611.09940, equation 16), mixed between heads (Shazeer et
al. 2020, https://arxiv.org/abs/2003.02436), or hidden by their own values, as all but the largest ones. What caps
scores leaves small ones as they are, so that these show the factor. Heads are mixed by one product, so that the factor
before it and the one after it can be measured apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, between
from attnshape.checks.attention.elementwise import HIDES, ElementwiseMap, elementwise_map, shuffled
from attnshape.checks.attention.simultaneous import run_simultaneously
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.protocol import Observation, Outcome, Verification
from attnshape.tracing.operations import CONVOLUTIONS, PRODUCTS, SAME_VALUES, SCALINGS

_SMALL = 1e-7
"""Scores up to this are changed by a cap by less than what a factor is compared with."""
_MOST_MIXED = 3
"""The most products by which heads are mixed one after the other."""


@dataclass(frozen=True)
class ScoresFactor:
    """A factor of the scores."""

    number: float
    where: str = ""
    """Which scores have it, or when; nothing if all of them have it at the softmax."""

    def told(self, outcome: Outcome) -> Outcome:
        """Return an outcome about this factor that says which scores have it."""
        if not isinstance(outcome, (Verification, Observation)):
            return outcome
        return replace(outcome, text=outcome.text.replace("scores are scaled", f"scores{self.where} are scaled"))


def factors_to_softmax(subject: Subject, core: Core) -> list[ScoresFactor]:
    """Return what may count as the factor of the scores; nothing if it can't be told."""
    return list(_factors(subject, core, core.scores.ref, core.scores.added, _MOST_MIXED))


def _factors(
    subject: Subject, core: Core, start: OutputRef, added: Tensor | float, most_mixed: int
) -> Iterator[ScoresFactor]:
    """Yield what may count as the factor from a result to the softmax."""
    owner, place = core.softmax.owner, core.softmax.place

    def at_softmax(run: ReplayRun) -> Tensor:
        return run.events[owner.order - 1].operand_values[place]

    numbers = _Numbers(subject, start, added, 1.0)
    factor = _factor(numbers.map_to(at_softmax))
    if factor is not None:
        yield ScoresFactor(factor)
        return
    before, event = _first_change(subject, core, start, numbers)
    if event is None:
        return
    if _mixes(subject, event):
        for after in _factors(subject, core, event.refs[0], 0.0, most_mixed - 1) if most_mixed else ():
            yield replace(after, number=before * after.number)
        return
    small = _factor(_Numbers(subject, start, added, _SMALL).map_to(at_softmax))
    if small is not None:
        yield ScoresFactor(small, " near zero")
        yield ScoresFactor(before, " that a function then changes")


@dataclass(frozen=True)
class LateScale:
    """A factor of the scores that comes after a cap, such as `cap * tanh(scores / cap) * scale`."""

    cap: float
    inside: float
    """The factor of the products of queries and keys where they are compared with the cap."""
    after: float
    """The factor of the capped scores."""
    at: OutputRef
    """The first call after the cap that doesn't only move the scores."""


def scale_after_cap(subject: Subject, core: Core) -> LateScale | None:
    """Return the factor of scores that are capped first; None if they aren't, or if their cap can't be told.

    The cap is the number that scores are divided by just before a function of one operand, and its result is multiplied
    by just after it.
    """
    numbers = _Numbers(subject, core.scores.ref, core.scores.added, 1.0)
    before, event = _first_change(subject, core, core.scores.ref, numbers)
    if event is None or len(event.sources) != 1:
        return None
    division = _computed(subject, event)
    sources = division.sources[0] if division is not None and division.name in SCALINGS else ()
    source = sources[-1] if sources else None
    if not isinstance(source, OutputRef):
        return None
    undivided = 1.0 if source == core.scores.ref else _factor(numbers.map_to(methodcaller("value", source)))
    if not undivided or not before:
        return None
    cap = undivided / before
    capped = _Numbers(subject, event.refs[0], 0.0, 1.0)
    found = [
        (one, _factor(capped.map_to(methodcaller("value", one.refs[0])))) for one in _multiplied(subject, core, event)
    ]
    if len(found) < 2 or found[0][1] is None or not math.isclose(found[0][1], cap, rel_tol=1e-6):
        return None
    total = found[-1][1]
    return LateScale(cap, undivided, total / cap, found[1][0].refs[0]) if total is not None else None


def _computed(subject: Subject, event: ReplayedCall) -> ReplayedCall | None:
    """Return the call that computes the numbers of a call's operand."""
    before = subject.graph.input_node(event, 0)
    while before is not None and before.name in SAME_VALUES:
        before = subject.graph.input_node(before, 0)
    return before


def _multiplied(subject: Subject, core: Core, event: ReplayedCall) -> list[ReplayedCall]:
    """Return the calls by which the result of a call is multiplied on its way to the softmax."""
    return [one for one in between(subject.graph, event.refs[0], core.softmax.sources) if one.name in SCALINGS]


def _first_change(
    subject: Subject, core: Core, start: OutputRef, numbers: _Numbers
) -> tuple[float, ReplayedCall | None]:
    """Return the first call after a result that doesn't multiply all of its numbers by one factor, and that before."""
    factors = {start: 1.0}
    for event in between(subject.graph, start, core.softmax.sources):
        known = [factors[source] for sources in event.sources for source in sources[-1:] if source in factors]
        if not known or not event.values[0].is_floating_point():
            continue
        factor = _factor(numbers.map_to(methodcaller("value", event.refs[0])))
        if factor is None:
            return known[0], event
        factors[event.refs[0]] = factor
    return 1.0, None


def _mixes(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call mixes heads: a product of scores with what doesn't depend on the inputs."""
    if event.name not in PRODUCTS | CONVOLUTIONS:
        return False
    return sum(subject.graph.carries_data(sources) for sources in event.sources) == 1


def _factor(mapping: ElementwiseMap | None) -> float | None:
    return mapping.common_factor if mapping is not None and mapping.elementwise else None


class _Numbers:
    """Runs in which a result is replaced by 0, by a number, by twice the number, and by different ones up to it."""

    def __init__(self, subject: Subject, start: OutputRef, added: Tensor | float, most: float) -> None:
        self._base = subject.base
        self._most = most
        self._count = subject.base.value(start).numel()
        contexts = [core.context for core in subject.attentions]

        def run(make: Callable[[Tensor], Tensor]) -> ReplayRun:
            change = Intervention(results={start: lambda value: make(value) + added})
            return run_simultaneously(subject.experiment, contexts, change).run

        def different(value: Tensor) -> Tensor:
            return (shuffled(value.numel()).reshape(value.shape) / self._count * most).to(value.dtype)

        self._runs = [run(partial(torch.full_like, fill_value=times * most)) for times in (0, 1, 2)]
        self._runs.append(run(different))

    def map_to(self, read: Callable[[ReplayRun], Tensor]) -> ElementwiseMap | None:
        """Return how a later tensor depends on the numbers, where it is hidden in none of the runs."""
        if not all(run.follows(self._base) for run in self._runs):
            return None
        zero, one, two, flat = (read(run).double() for run in self._runs)
        shown = (zero > HIDES) & (one > HIDES) & (two > HIDES) & (flat > HIDES)
        one, two = (zero + (value - zero) / self._most for value in (one, two))
        flat = zero + (flat - zero) * (self._count / self._most)
        return elementwise_map(self._count, zero.masked_fill(~shown, -torch.inf), one, two, flat)
