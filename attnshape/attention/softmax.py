"""The softmaxes of a run, as one call or spelled out with exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.attention.flow import Flow
from attnshape.inference.kinds import CAST, PRODUCT
from attnshape.replaying.replay import Address, Event, Source

_ONE = {"softmax", "_safe_softmax", "log_softmax"}
_QUOTIENT = {"div", "div_", "true_divide", "divide"}
_INVERSES = {"reciprocal", "__rtruediv__", "__rdiv__"}
_EXPONENTIAL = {"exp", "exp_", "exp2"}
_BOUNDS = {"clamp", "clamp_min", "clamp_", "add", "add_", "maximum"}
_MASKED = {"masked_fill", "masked_fill_", "mul", "where"}
_DIFFERENCE = {"sub", "sub_", "subtract"}
_ALIKE = CAST | {"unsqueeze", "expand_as", "__getitem__"}
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
    masked: bool = False
    """Whether a mask is put to the exponentials, before they are summed."""
    late: bool = False
    """Whether its results are divided by their sum only behind the product with the values."""
    base: float = 1.0
    """What the scores are multiplied by in the exponent: for powers of two, the logarithm of two."""

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
        if not event.values[0].is_floating_point():
            continue
        inner = _input_of(event, flow)
        if inner is not None:
            masked = event.name in _QUOTIENT and getattr(_maker(event, 0, flow), "name", "") in _MASKED
            found.append(Softmax(event, *inner, _axes(event), masked, base=_base(event, flow)))
        elif event.name in _EXPONENTIAL and event.given and _is_normalised_later(event, flow):
            found.append(Softmax(event, *_less_maximum(event, flow), frozenset(), late=True, base=_base(event, flow)))
    return found


def _input_of(event: Event, flow: Flow) -> tuple[Event, int] | None:
    """Return whose operand goes into a softmax, and which it is."""
    if event.name in _ONE and event.given:
        read_by = {reader.name for reader, _ in flow.consumers.get(event.addresses[0], [])}
        if event.name == "log_softmax" and read_by & _EXPONENTIAL:
            return None
        return _less_maximum(event, flow)
    if event.name in _EXPONENTIAL and event.given:
        before = _maker(event, 0, flow)
        if before is not None and before.name == "log_softmax":
            return before, 0
        if before is not None and before.name in _DIFFERENCE and len(before.given) == 2:
            subtracted = _maker(before, 1, flow)
            if subtracted is not None and subtracted.name == "logsumexp":
                return before, 0
        return None
    if event.name in _QUOTIENT | {"mul"} and len(event.given) == 2:
        over, under = _maker(event, 0, flow), _maker(event, 1, flow)
        if event.name == "mul":
            inverse = under is not None and under.name in _INVERSES and bool(under.given)
            under = _maker(under, 0, flow) if inverse and under is not None else None
        while under is not None and under.name in _BOUNDS | {"__getitem__", "unsqueeze"} and under.given:
            under = _maker(under, 0, flow)
        if under is None or under.name != "sum" or under.sources[0] != event.sources[0]:
            return None
        while over is not None and over.name in _MASKED and over.given:
            over = _maker(over, 0, flow)
        if over is None or over.name not in _EXPONENTIAL:
            return None
        return _less_maximum(over, flow)
    return None


def _less_maximum(exponential: Event, flow: Flow) -> tuple[Event, int]:
    """Return whose operand goes into an exponential or a softmax, before the maximum is subtracted."""
    before = _maker(exponential, 0, flow)
    if before is not None and before.name in _DIFFERENCE and len(before.given) == 2:
        subtracted = _maker(before, 1, flow)
        while subtracted is not None and subtracted.name in _ALIKE and subtracted.given:
            subtracted = _maker(subtracted, 0, flow)
        if subtracted is not None and subtracted.name in _REDUCES:
            return before, 0
    return exponential, 0


def _is_normalised_later(event: Event, flow: Flow) -> bool:
    """Say whether an exponential is summed for a division that comes behind the product with the values."""
    readers = [reader for reader, _ in flow.consumers.get(event.addresses[0], [])]
    sums = [reader for reader in readers if reader.name == "sum"]
    if not sums or not any(reader.name in PRODUCT for reader in readers):
        return False
    return any(
        reader.name in _QUOTIENT and len(reader.given) == 2 and reader.sources[1][-1] == sums[0].addresses[0]
        for reader, _ in flow.consumers.get(sums[0].addresses[0], [])
    )


def _base(event: Event, flow: Flow) -> float:
    """Return what the scores are multiplied by in the exponent, for e as its base."""
    if event.name in _QUOTIENT:
        over = _maker(event, 0, flow)
        while over is not None and over.name in _MASKED:
            over = _maker(over, 0, flow)
        event = over or event
    return math.log(2) if event.name == "exp2" else 1.0


def _maker(event: Event, place: int, flow: Flow) -> Event | None:
    made = [source for source in event.sources[place] if isinstance(source, Address)]
    return flow.run.event(made[-1]) if made else None


def _axes(event: Event) -> frozenset[int]:
    """Return the axes along which the rows sum to one, but for rows that are empty."""
    weights = event.values[0].exp() if event.name == "log_softmax" else event.values[0]
    found = []
    for axis, size in enumerate(weights.shape):
        sums = weights.sum(axis)
        sums = sums[torch.isfinite(sums) & (sums != 0)]
        if size > 1 and sums.numel() and bool(torch.isclose(sums, torch.ones_like(sums), atol=1e-4).all()):
            found.append(axis)
    return frozenset(found)
