"""Which attentions of a target a claimed mask is meant for: not all of them, where another one applies it."""

from __future__ import annotations

import re
from collections.abc import Collection

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.layers import format_layers, layers
from attnshape.checks.attention.mistake_lines import masks_read
from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef

Attention = Core | FusedCore
_INDEX = re.compile(r"\d+")


def is_meant_for_others(subject: Subject, name: str, core: Attention) -> bool:
    """Return whether an attention that a mask doesn't reach is none of those that it is meant for.

    So it is where other attentions read the mask: a decoder's mask hides its own tokens, and not those of the encoder.
    Layers that one line calls in turn are alike, and one of them can't do without the mask of the others.
    """
    readers = {context for context, names in masks_read(subject).items() if name in names}
    if core.context in readers or not readers:
        return False
    return not any(_are_alike(subject, core, other) for other in subject.attentions if other.context in readers)


def _are_alike(subject: Subject, core: Attention, other: Attention) -> bool:
    """Return whether two attentions are made by one line, which one line calls for each, with keys of one origin."""
    own, others = (subject.base.event(one.context) for one in (core, other))
    steps = [subject.experiment.steps.get(event.order) for event in (own, others)]
    if any(step is None or step.library for step in steps):
        return False
    lines = [[(frame.f_code, frame.f_lineno) for frame in event.calls] for event in (own, others)]
    modules = [_INDEX.sub("", step.module or "") for step in steps if step is not None]
    keys = [_origins_of_keys(subject, one.context) for one in (core, other)]
    return all(one == two for one, two in (lines, modules, keys))


def _origins_of_keys(subject: Subject, context: OutputRef) -> set[str]:
    keys = [operand for operand in operands(subject) if operand.role == "key" and operand.core.context == context]
    return {name for key in keys for name in subject.graph.origins(key.sources) if name in subject.inputs}


def describe_attentions(subject: Subject, some: Collection[OutputRef], every: Collection[OutputRef]) -> str:
    """Return in words which attentions these are of several: their layers, their lines, or at least their number.

    All are given by their contexts, or by their weights where these aren't read by a product with values.
    """
    rest = set(every) - set(some)
    for names in (layers(subject), {context: _line(subject, context) for context in every}):
        named, others = ([names.get(one, "") for one in sorted(group)] for group in (some, rest))
        if all(named) and not set(named) & set(others):
            return f"in {format_layers(named)}"
    return f"in {len(some)} of {len(every)} attentions"


def _line(subject: Subject, context: OutputRef) -> str:
    source = subject.source(context)
    return f"{source.file}:{source.line}" if source is not None else ""
