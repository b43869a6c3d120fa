"""Finds a parameter that nothing reads although its sibling of the same shape is used in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from attnshape.checks.attention.layers import layers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ADDITIONS, COPIES, DATA_MOVEMENT, GATHERS, MULTIPLICATIONS, PRODUCTS, SUMS
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator

_TO_SCORES = DATA_MOVEMENT | GATHERS | COPIES | SUMS
"""What may come between a product with a parameter and the addition of two such products."""


def used_in_place_of(
    subject: Subject,
    unread: Sequence[str],
    values: Mapping[str, Tensor],
    readers: Callable[[str], Sequence[ReplayedCall]],
) -> Iterator[Violation]:
    """Yield the first parameter that no call reads and whose sibling is used twice.

    Two lines of one function read the sibling, or call its module; or scores that it makes are added to themselves, at
    other indices.
    """
    for name in unread:
        for twin in values:
            are_siblings = _are_siblings(name, twin) or _are_of_sibling_attentions(subject, name, twin)
            uses = readers(twin) if are_siblings else []
            if values[twin].shape != values[name].shape or not uses:
                continue
            second = _second_use(subject, uses)
            call = _second_call(subject, name, twin, uses) if second is None else None
            if second is not None or call is not None:
                message, hint = f"{twin} is used twice, and {name} never", f"use {name} here, or remove it"
                at = second if second is not None else uses[-1].refs[0]
                yield Violation("AS807", message, at, hint, f"nothing reads {name}", place=call)
                return
            if (only := _added_to_itself(subject, uses)) is not None:
                message = f"what is multiplied by {twin} is added to itself, and {name} is never used"
                hint = f"use {name} for one of the two summands, or remove it"
                yield Violation("AS807", message, only, hint, f"nothing reads {name}")
                return


def is_copied(name: str, others: Iterable[str], values: Mapping[str, Tensor]) -> bool:
    """Return whether layers have copies of a parameter, as those of `nn.TransformerEncoder` of the layer it is given.

    The layer that is copied computes nothing itself, which is no mistake.
    """
    attribute = name.rpartition(".")[2]
    return any(
        other.rpartition(".")[2] == attribute
        and not _are_siblings(name, other)
        and torch.equal(values[other], values[name])
        for other in others
        if other != name
    )


def _differing(name: str, other: str) -> list[int]:
    """Return the places at which the parts of two names differ."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return [place for place, (a, b) in enumerate(pairs) if a != b]


def _are_siblings(name: str, other: str) -> bool:
    """Return whether two parameters, or their modules, are two attributes of one module, not items of a list."""
    parts, others, differing = name.split("."), other.split("."), _differing(name, other)
    if len(differing) != 1 or len(parts) != len(others) or len(parts) - differing[0] > 2:
        return False
    return not any(one[differing[0]].isdigit() for one in (parts, others))


def _are_of_sibling_attentions(subject: Subject, name: str, other: str) -> bool:
    """Return whether two parameters are in modules that are two attributes of one module, one of which attends.

    Of other modules, such as encoders, one may well be left out while the other one is called twice.
    """
    parts, others, differing = name.split("."), other.split("."), _differing(name, other)
    if len(parts) != len(others) or len(differing) != 1 or parts[differing[0]].isdigit():
        return False
    module = ".".join(others[: differing[0] + 1])
    return any(layer == module or layer.startswith(f"{module}.") for layer in layers(subject).values())


def _second_use(subject: Subject, uses: Sequence[ReplayedCall]) -> OutputRef | None:
    """Return the last call that reads a parameter, if two lines of one function read it."""
    lines: dict[str, set[int]] = {}
    for event in uses:
        place = subject.place(event.refs[0])
        if place is not None:
            lines.setdefault(place.function, set()).add(place.line)
    for event in reversed(uses):
        place = subject.place(event.refs[0])
        if place is not None and len(lines[place.function]) > 1:
            return event.refs[0]
    return None


def _second_call(subject: Subject, name: str, twin: str, uses: Sequence[ReplayedCall]) -> SourceLocation | None:
    """Return the last call of the sibling's module, if two lines of a method of the modules' owner call it."""
    path, (place,) = name.split("."), _differing(name, twin)
    owner = subject.experiment.structure.classes.get(".".join(path[:place]))
    # parameters of the owner itself are read by name, and a method that reads one may well be called twice
    if owner is None or place == len(path) - 1:
        return None
    methods = [method for one in inspect.getmro(owner) if one is not nn.Module for method in vars(one).values()]
    own = {method.__code__ for method in methods if inspect.isfunction(method)}
    frames = [frame for event in uses for frame in event.calls if frame.f_code in own]
    for last in reversed(frames):
        if len({frame.f_lineno for frame in frames if frame.f_code is last.f_code}) > 1:
            return SourceLocator().find(last)[0]
    return None


def _added_to_itself(subject: Subject, uses: Sequence[ReplayedCall]) -> OutputRef | None:
    """Return the last call that multiplies by a parameter, if an addition reads its scores in both operands.

    Only sums and moves come in between, as in additive scores `(a @ x)[i] + (a @ x)[j]`.
    """
    reached: set[Producer] = set()
    scores: set[Producer] = set()
    orders = {use.order for use in uses}
    for event in subject.base.events[min(orders) - 1 :]:
        if event.name in ADDITIONS and len(event.sources) == 2:
            if all(scores.intersection(sources) for sources in event.sources):
                return uses[-1].refs[0]
            continue
        begins = event.order in orders and event.name in PRODUCTS | MULTIPLICATIONS
        if begins or (event.name in _TO_SCORES and event.producers & reached):
            reached.update(event.refs)
            if event.producers & scores or _sums_features(subject, event):
                scores.update(event.refs)
    return None


def _sums_features(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether a call leaves fewer numbers of the data than it reads, as scores are fewer than features."""
    read = zip(event.operand_values, event.sources, strict=True)
    data = [value.numel() for value, sources in read if subject.graph.carries_data(sources)]
    return event.name in PRODUCTS | SUMS and event.numel < max(data, default=0)
