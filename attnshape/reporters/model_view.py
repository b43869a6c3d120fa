"""What a table shows of a whole model besides its steps: a line for each distinct attention, headings by module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from attnshape.model.formatting import format_bytes
from attnshape.model.trace import Loop, Reference, Step, Trace, loops_by_step
from attnshape.reporters.escaping import visible
from attnshape.reporters.labels import reference_label, source_label

_IN_LIST = re.compile(r"^(.*?\.)?(\d+)(?=\.|$)")
"""The path of the first module of a list that is part of a module's path."""
_LISTED = re.compile(r"(.*\.|)([0-9]{1,6})", re.DOTALL)
"""The path of a module of a list: that of the list, and the module's number."""
_MOST = 10_000
"""How many layers are counted."""
_LONGEST = 1000
"""How many characters of a line are shown."""
_MANY = 8
"""How many distinct attentions are listed."""


class _Series(NamedTuple):
    """Modules of one list that a loop's iterations are in."""

    list: str
    """The path of the list, with a dot at the end."""
    first: int
    last: int
    each: int
    """How many modules an iteration is in."""


@dataclass
class _Attention:
    """An attention, and where it occurs."""

    text: str
    count: int = 0
    """How often it occurs outside of modules."""
    modules: dict[str, None] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Its line of the summary."""
        if not self.modules:
            return f"attention ×{self.count}: {self.text}"
        first, *others = map(visible, self.modules)
        if not others:
            return f"attention in {first}: {self.text}"
        return f"attention ×{len(self.modules)} in {first} … {others[-1]}: {self.text}"


def attention_summary(trace: Trace) -> Iterator[str]:
    """Yield a line for each distinct attention of a trace with several: how often it occurs, where, its scores.

    Two are the same if they stand at the same place in the source, their scores have the same signature, and they get
    the same mask from outside of their layers.
    """
    loops = loops_by_step(trace.loops)
    found: dict[tuple[str, str], _Attention] = {}
    scores, masks = "", dict[str, None]()
    for step in trace.steps:
        around = loops.get(step.index, ())
        if step.role == "scores":
            masks = {}
        if step.role == "softmax" and step.outputs:
            tensor = step.outputs[0].tensor
            scores = f"scores {visible(tensor.signature)}, {format_bytes(tensor.bytes)} each"
        if step.avoided is not UNSET:
            size = format_bytes(step.avoided.bytes)
            scores, masks = f"scores {visible(step.avoided.signature)}, {size} each, never materialized", {}
        if step.role == "mask" or step.avoided is not UNSET:
            masks |= dict.fromkeys(_from_outside(trace, step, around))
        if step.role != "context":
            continue
        place = source_label(step.source)
        masked = f", mask {', '.join(masks)}" if masks else ""
        text = f"{scores}{masked}{f' ({visible(place)})' if place else ''}"
        attention = found.setdefault((place, text), _Attention(text))
        if step.module is None:
            attention.count += 1
        else:
            attention.modules |= dict.fromkeys(_modules(trace, step.module, around))
    attentions = list(found.values())
    if sum(attention.count + len(attention.modules) for attention in attentions) < 2:
        return
    for attention in attentions[:_MANY]:
        yield attention.line if len(attention.line) <= _LONGEST else f"{attention.line[:_LONGEST]}…"
    if len(attentions) > _MANY:
        yield f"and {len(attentions) - _MANY} more distinct attentions"


def _from_outside(trace: Trace, step: Step, around: Sequence[Loop]) -> Iterator[str]:
    """Yield the steps and inputs outside of its layer that a step reads."""
    layer = _layer(step, around)
    if not layer:
        return
    # fused attention gets its mask after queries, keys and values
    for operand in step.operands[3 if step.avoided is not UNSET else 0 :]:
        made = _original(trace, operand, layer)
        if made.input is not None or (made.step is not None and not _is_in(trace.step(made.step).module, layer)):
            yield _named(trace, made)


def _original(trace: Trace, reference: Reference, layer: str) -> Reference:
    """Return what a tensor is a view of, as far as the views are made in a layer."""
    while reference.step is not None and _is_in(trace.step(reference.step).module, layer):
        storage = trace.step(reference.step).outputs[reference.output].tensor.storage
        # a saved trace may hold anything: what a view is of comes before it
        if storage.kind not in ("view", "same") or storage.of is None or (storage.of.step or 0) >= reference.step:
            break
        reference = storage.of
    return reference


def _named(trace: Trace, reference: Reference) -> str:
    outputs = trace.step(reference.step).outputs if reference.step is not None else ()
    name = outputs[reference.output].name if reference.output < len(outputs) else None
    label = reference_label(reference, trace.steps)
    return f"{label} ({visible(name)})" if name and len(outputs) == 1 else label


def _layer(step: Step, around: Sequence[Loop]) -> str:
    """Return the module of a list that a step is in, empty if it is in none."""
    lists = [series.list for series in map(_series, around) if series is not None]
    pattern = rf"{re.escape(lists[0])}[0-9]+(?=\.|$)" if lists else _IN_LIST
    match = re.match(pattern, step.module or "")
    return match[0] if match else ""


def _is_in(module: str | None, layer: str) -> bool:
    return module is not None and f"{module}.".startswith(f"{layer}.")


def _series(loop: Loop) -> _Series | None:
    """Return which modules of a list a loop's iterations are in; None if they are in none of a list."""
    if loop.modules is UNSET:
        return None
    first, last = map(_LISTED.fullmatch, loop.modules)
    if first is None or last is None or first[1] != last[1]:
        return None
    # a list of which some modules aren't called has no series of equal parts
    each, rest = divmod(int(last[2]) - int(first[2]) + 1, max(loop.count, 1))
    return _Series(first[1], int(first[2]), int(last[2]), each) if each > 0 and not rest else None


def _overlapping_series(trace: Trace, loop: Loop) -> _Series | None:
    """Return which modules of a list a loop's iterations are in where each begins in one and ends in the next."""
    series = _series(replace(loop, count=loop.count + 1))
    if series is None or series.each != 1:
        return None
    following = f"{series.list}{series.first + 1}"
    ends_there = any(_is_in(step.module, following) for step in trace.steps[loop.first - 1 : loop.last])
    return series if ends_there else None


def _modules(trace: Trace, module: str, around: Sequence[Loop]) -> list[str]:
    """Return the modules in all iterations of the loops around a step, for its module in the first one."""
    modules = [module]
    for loop in reversed(around):
        series = _series(loop) or _overlapping_series(trace, loop)
        if series is None or len(modules) * loop.count > _MOST:
            continue
        shifts = [iteration * series.each for iteration in range(loop.count)]
        modules = [_shifted(path, series.list, shift) for shift in shifts for path in modules]
    return list(dict.fromkeys(modules))


def _shifted(path: str, prefix: str, shift: int) -> str:
    """Return the path with a greater number after the prefix; the path itself if it has no number there."""
    number = re.match(r"[0-9]{1,6}(?=\.|$)", path.removeprefix(prefix)) if path.startswith(prefix) else None
    return f"{prefix}{int(number[0]) + shift}{path[len(prefix) + number.end() :]}" if number else path


class _Block(NamedTuple):
    """Layers that are shown once."""

    heading: str
    first: str
    last: str


def module_headings(trace: Trace) -> dict[int, str]:
    """Return a heading for each series of steps in one module of a list, by the index of the series' first step.

    The result is empty where no module of a list has several steps, or all steps are in the same one.
    """
    loops = loops_by_step(trace.loops)
    blocks = [_block(step, loops.get(step.index, ())) for step in trace.steps]
    counts = Counter(blocks)
    # a layer has several steps; the modules of an nn.Sequential often have one each
    blocks = [block if counts[block] > 1 else None for block in blocks]
    named = list(dict.fromkeys(filter(None, blocks)))
    if not named or (len(named) < 2 and all(blocks)):
        return {}
    headings: dict[int, str] = {}
    current: _Block | None = None
    before: _Block | None = None
    for step, block in zip(trace.steps, blocks, strict=True):
        # a heading never falls inside a composite
        if step.parent is None and (block != current or not headings):
            after = f"after {before.last}" if before is not None else f"before {named[0].first}"
            headings[step.index] = block.heading if block is not None else after
            current, before = block, block or before
    return headings


def _block(step: Step, around: Sequence[Loop]) -> _Block | None:
    """Return the layer that a step is in, with the series of layers that it stands for."""
    layer = _layer(step, around)
    if not layer:
        return None
    last = layer
    parts: list[str] = []
    for loop in around:
        series = _series(loop)
        if series is None or not layer.startswith(series.list):
            continue
        end = f"{series.list}{series.last}"
        last = last if parts else end
        parts.append(f"{visible(f'{series.list}{series.first}')} … {visible(end)} ×{visible(loop.expression)}")
        if series.each == 1:
            break
    else:
        parts.append(visible(layer))
    return _Block(": ".join(parts), visible(layer), visible(last))


def shows_layers_once(trace: Trace) -> bool:
    """Return whether some steps of a trace stand for those of several layers."""
    return any(_series(loop) is not None for loop in trace.loops)
