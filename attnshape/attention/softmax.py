"""The softmaxes of a run, as one call or spelled out with exponentials."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.attention.flow import Flow
from attnshape.replaying.replay import Address, Event, Source

_ONE = {"softmax", "_safe_softmax"}
_QUOTIENT = {"div", "div_", "true_divide", "divide"}
_EXPONENTIAL = {"exp", "exp_", "exp2"}
_BOUNDS = {"clamp", "clamp_min", "clamp_", "add", "add_", "maximum"}
_DIFFERENCE = {"sub", "sub_", "subtract"}
_REDUCES = {"max", "amax", "logsumexp"}


@dataclass(frozen=True)
class Softmax:
    """One softmax: what goes in, and what comes out."""

    event: Event
    """The call that makes the weights."""
    owner: Event
    """The call that the scores go into, the same where the softmax is one call."""
    place: int
    """As which of its operands."""
    axes: frozenset[int]
    """Along which its results sum to one."""

    @property
    def address(self) -> Address:
        """Where the weights are."""
        return Address(self.event.order)

    @property
    def given(self) -> Tensor:
        """The scores that go in."""
        return self.owner.given[self.place]

    @property
    def sources(self) -> tuple[Source, ...]:
        """What made the scores that go in."""
        return self.owner.sources[self.place]

    @property
    def logits(self) -> Address | None:
        """Where the scores that go in are; None where no call made them."""
        made = [source for source in self.sources if isinstance(source, Address)]
        return made[-1] if made else None


def softmaxes(flow: Flow) -> list[Softmax]:
    """Return every softmax of a run, in order."""
    found = []
    for event in flow.run.events:
        inner = _input_of(event, flow)
        if inner is not None and event.values[0].is_floating_point():
            owner, place = inner
            found.append(Softmax(event, owner, place, _axes(event.values[0])))
    return found


def _input_of(event: Event, flow: Flow) -> tuple[Event, int] | None:
    """Return whose operand goes into a softmax, and which it is."""
    if event.name in _ONE and event.given:
        return event, 0
    if event.name in _EXPONENTIAL and event.given:
        before = _maker(event, 0, flow)
        if before is not None and before.name == "log_softmax":
            return before, 0
        if before is not None and before.name in _DIFFERENCE and len(before.given) == 2:
            subtracted = _maker(before, 1, flow)
            if subtracted is not None and subtracted.name == "logsumexp":
                return before, 0
        return None
    if event.name in _QUOTIENT and len(event.given) == 2:
        over, under = _maker(event, 0, flow), _maker(event, 1, flow)
        while under is not None and under.name in _BOUNDS and under.given:
            under = _maker(under, 0, flow)
        if over is None or under is None or over.name not in _EXPONENTIAL or under.name != "sum":
            return None
        if under.sources[0] != event.sources[0]:
            return None
        before = _maker(over, 0, flow)
        if before is not None and before.name in _DIFFERENCE and len(before.given) == 2:
            subtracted = _maker(before, 1, flow)
            if subtracted is not None and subtracted.name in _REDUCES:
                return before, 0
        return over, 0
    return None


def _maker(event: Event, place: int, flow: Flow) -> Event | None:
    made = [source for source in event.sources[place] if isinstance(source, Address)]
    return flow.run.event(made[-1]) if made else None


def _axes(weights: Tensor) -> frozenset[int]:
    """Return the axes along which the rows sum to one, but for rows that are empty."""
    found = []
    for axis, size in enumerate(weights.shape):
        sums = weights.sum(axis)
        sums = sums[torch.isfinite(sums) & (sums != 0)]
        if size > 1 and sums.numel() and bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all()):
            found.append(axis)
    return frozenset(found)
