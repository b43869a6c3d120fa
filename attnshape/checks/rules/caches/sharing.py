"""Does the attention of each layer read the keys and values of its own layer only?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.checks.attention.layers import layer_of, layers
from attnshape.checks.attention.operands import AttentionOperand, by_attention, projections
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.model.report import Level
from attnshape.tracing.operations import JOINS
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator


def shared_caches(subject: Subject) -> Iterator[Violation]:
    """Yield the attentions that read values of another layer beside their own ones, which the same code computes.

    Layers that read each other's values, the later one's too, have one cache. One that reads those of an earlier layer
    may do so on purpose.
    """
    paths = set(layers(subject).values())
    read: dict[str, dict[str, AttentionOperand]] = {}
    for _, _, value in by_attention(subject):
        own = layer_of(subject, value.core.context)
        for other in _foreign(subject, value, own, paths) if own else ():
            read.setdefault(own, {}).setdefault(other, value)
    pairs = [(own, other, value) for own, others in read.items() for other, value in others.items()]
    mutual = [(own, other, value) for own, other, value in pairs if own in read.get(other, ())]
    for own, other, value in (mutual or pairs)[:1]:
        message = f"the attention of {own} reads keys and values of {other}, too"
        if mutual:
            message = f"the attentions of {own} and {other} read each other's keys and values: they have one cache"
        ref, place = line_of_values(subject, value)
        hint = "give each layer a cache of its own: [Cache() for _ in layers] makes several, [Cache()] * n makes one"
        evidence = f"found the numbers that {other} computes among the values of {own}"
        level: Level = "error" if mutual else "notice"
        yield Violation("AS907", message, ref, hint, evidence, "measured", place=place, level=level)


def _foreign(subject: Subject, value: AttentionOperand, own: str, paths: set[str]) -> Iterator[str]:
    """Yield the layers whose projections' numbers are among an attention's values beside those of its own one."""
    products: dict[str, list[OutputRef]] = {}
    for ref in projections(subject, value.sources):
        made = layer_of(subject, ref)
        owners = [path for path in paths if made == path or made.startswith(f"{path}.")]
        if owners and bool(torch.isin(value.value, subject.base.value(ref)).any()):
            products.setdefault(max(owners, key=len), []).append(ref)
    lines = {subject.source(ref) for ref in products.pop(own, ())}
    for other, refs in products.items():
        is_inside = other.startswith(f"{own}.") or own.startswith(f"{other}.")
        if not is_inside and any(subject.source(ref) in lines for ref in refs):
            yield other


def line_of_values(subject: Subject, value: AttentionOperand) -> tuple[OutputRef, SourceLocation | None]:
    """Return the call that joins the values, and the line by which the function that attends gets them."""
    joins = [event for event in subject.graph.upstream(value.sources) if event.name in JOINS]
    event = joins[0] if joins else value.event
    functions = {frame.f_code for frame in subject.base.event(value.core.context).calls}
    frame = next((frame for frame in event.calls if frame.f_code in functions), None)
    return event.refs[0], SourceLocator().find(frame)[0] if frame is not None else None
