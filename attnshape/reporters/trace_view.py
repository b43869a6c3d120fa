"""What every table format shows of a trace, as plain data: the chosen rows, and the lines above and below them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import UNSET

from attnshape.dims.symbols import ORDER
from attnshape.errors import AttnshapeError
from attnshape.explanation.sentences import explain
from attnshape.model.formatting import format_bytes, format_ratio, join_words, pluralize
from attnshape.model.references import resolve
from attnshape.model.trace import (
    Avoided,
    Failure,
    Loop,
    Operand,
    Peak,
    Reference,
    Size,
    Step,
    TensorRecord,
    TotalCost,
    Trace,
    loops_by_step,
)
from attnshape.reporters.columns import NUMBER, Column, RowSubject, default_columns, is_constant
from attnshape.reporters.escaping import visible
from attnshape.reporters.labels import (
    NOT_CONTIGUOUS,
    axis_sizes,
    bytes_label,
    one_line,
    operations_label,
    short,
    source_label,
    step_label,
)
from attnshape.reporters.model_view import attention_summary, module_headings, shows_layers_once
from attnshape.tracing.operations import JOINS, RESHAPES, base_name, short_name

CONCAT = "concat"
"""The word in `--match` for what joins heads: a concatenation, or the reshape that merges them."""


_BROKEN = "which doesn't hold"
_PREPARE = frozenset({"projection", "split"})
_ATTEND = frozenset({"scores", "scale", "mask", "softmax", "context"})
_MERGE = frozenset({"merge", "output"})
_BEFORE, _AFTER, _WHOLE, _RETURNED = "before the attention", "after the attention", "attention", "returned"
_MOST_RETURNED = 24
"""How many of the tensors that a run returns have a row."""


@dataclass(frozen=True)
class ViewOptions:
    """What to show of a trace."""

    columns: tuple[Column, ...] | None = None
    """None for those of `default_columns`."""
    match: str | None = None
    """Comma-separated roles, operations or modules; None for all steps."""
    depth: int | None = None
    """How deep inside composites steps are shown; None for all."""
    explain: bool = False
    picture: bool = False
    """Whether a picture of the data flow follows the table."""


@dataclass(frozen=True)
class Header:
    """The lines above a table: the command, the target, details of the run, and the sizes."""

    command: str
    target: str
    details: tuple[str, ...]
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class TraceRow:
    """One line of the table: its cells, the step's number first."""

    cells: tuple[str, ...]
    kind: Literal["input", "step", "output", "failure", "returned"]
    heading: str | None = None
    """The heading above it."""
    explanation: tuple[str, str] | None = None
    """At the last row of a step: its number and the sentence that explains it."""
    subject: RowSubject | None = None
    """What its cells are about."""


@dataclass(frozen=True)
class MarkedTensor:
    """A tensor's name, its signature and shape axis by axis, and which axes to mark."""

    name: str
    signature: tuple[str, ...]
    shape: tuple[str, ...]
    marks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FooterLine:
    """One line below a table."""

    text: str
    tone: Literal["plain", "good", "bad"] = "plain"
    tensors: tuple[MarkedTensor, ...] = ()
    """Tensors to show below it, one a line."""
    flags: str = ""
    """Flags at its end, to be copied."""


@dataclass(frozen=True)
class TraceView:
    """A table, ready to be rendered."""

    header: Header
    columns: tuple[Column, ...]
    """All but the first, which has the numbers of the steps."""
    rows: tuple[TraceRow, ...]
    footer: tuple[FooterLine, ...]
    summary: tuple[str, ...] = ()
    """Lines above the table: the attentions of a whole model."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, that of the numbers first."""
        return (NUMBER, *(column.name for column in self.columns))


def trace_view(trace: Trace, options: ViewOptions) -> TraceView:
    """Return the rows of the chosen steps, and the lines above and below them; errors are those of `matching_steps`."""
    steps = up_to_depth(trace, matching_steps(trace, options.match), options.depth)
    every = options.match is None
    columns = options.columns if options.columns is not None else default_columns(trace, steps)
    shown = {step.index for step in steps}
    loops = loops_by_step(trace.loops)
    headings = _headings(trace) if len(shown) == len(trace.steps) else {}
    rows: list[TraceRow] = []
    for named in trace.inputs if every else ():
        subject = RowSubject(trace, visible(named.name or "an input"), tensor=named.tensor, given=True)
        rows.append(TraceRow(_cells("", columns, subject), "input", subject=subject))
    for step in steps:
        label = step_label(trace, step, shown, loops.get(step.index, ()))
        step_rows = _step_rows(trace, step, columns, label, headings.get(step.index))
        if options.explain:
            step_rows[-1] = replace(step_rows[-1], explanation=(str(step.index), visible(explain(trace, step))))
        rows += step_rows
    if trace.failure and (every or not steps):
        rows.append(_failure_row(trace.failure, columns))
    rows += _returned_rows(trace, columns) if every else []
    summary = tuple(attention_summary(trace)) if every else ()
    return TraceView(trace_header(trace), columns, tuple(rows), trace_footer(trace, len(steps)), summary)


def _step_rows(trace: Trace, step: Step, columns: Sequence[Column], label: str, heading: str | None) -> list[TraceRow]:
    only = step.outputs[0].tensor if len(step.outputs) == 1 else None
    subject = RowSubject(trace, label, step, only)
    rows = [TraceRow(_cells(str(step.index), columns, subject), "step", heading, subject=subject)]
    if only is None:
        for number, output in enumerate(step.outputs):
            part = RowSubject(trace, visible(output.name or f"[{number}]"), tensor=output.tensor)
            rows.append(TraceRow(_cells("", columns, part), "output", subject=part))
    return rows


def _returned_rows(trace: Trace, columns: Sequence[Column]) -> list[TraceRow]:
    """Return a row for each tensor that the run returns; none where that is just the last step's result."""
    ends_simply = bool(trace.steps) and len(trace.steps[-1].outputs) == 1
    if ends_simply and [output.of for output in trace.outputs] == [Reference(step=len(trace.steps))]:
        return []
    rows: list[TraceRow] = []
    for output in trace.outputs[:_MOST_RETURNED]:
        tensor = resolve(trace, output.of)
        name = tensor.name if tensor is not None and output.of.step is not None else None
        label = visible(f"{output.name} = {name}" if name and name != output.name else output.name)
        subject = RowSubject(trace, label, tensor=tensor.tensor if tensor is not None else None, returned=output.of)
        heading = None if rows else _RETURNED
        rows.append(TraceRow(_cells("", columns, subject), "returned", heading, subject=subject))
    if left := len(trace.outputs) - len(rows):
        rows.append(TraceRow(_cells("", columns, RowSubject(trace, f"… and {left} more")), "returned"))
    return rows


def _failure_row(failure: Failure, columns: Sequence[Column]) -> TraceRow:
    # the step that failed isn't in the trace: its text is shown in the place of a step's
    text = failure.expression or failure.operation or "an unknown operation"
    texts = {"step": short(text), "expression": one_line(text), "source": source_label(failure.source)}
    texts["op"] = short_name(failure.operation) if failure.operation else ""
    return TraceRow(("✗", *(visible(texts.get(column.name, "")) for column in columns)), "failure")


def _cells(number: str, columns: Sequence[Column], subject: RowSubject) -> tuple[str, ...]:
    return (number, *(column.text(subject) for column in columns))


def matching_steps(trace: Trace, match: str | None) -> tuple[Step, ...]:
    """Return the steps whose role, operation or module one of the comma-separated words names; all for None.

    A word is a role, the short name of an operation, `concat`, or the path of a module, its beginning, or a glob of
    these. Raises AttnshapeError if a word matches no step of this trace.
    """
    if match is None:
        return trace.steps
    words = [word.strip() for word in match.split(",") if word.strip()]
    if not words:
        raise AttnshapeError("--match names nothing", _match_hint(trace))
    for word in words:
        # a trace that ends in a failure shows that, whether or not it came to such a step
        if trace.failure is None and not any(_matches(step, word) for step in trace.steps):
            raise AttnshapeError(f"no step matches {visible(word)!r}", _match_hint(trace))
    return tuple(step for step in trace.steps if any(_matches(step, word) for word in words))


def up_to_depth(trace: Trace, steps: Sequence[Step], depth: int | None) -> tuple[Step, ...]:
    """Return the steps that are nested at most that deep inside composites; 0 leaves none inside, None keeps all."""
    depths: dict[int, int] = {}
    for step in trace.steps:
        depths[step.index] = depths[step.parent] + 1 if step.parent is not None else 0
    return tuple(step for step in steps if depth is None or depths[step.index] <= depth)


def _matches(step: Step, word: str) -> bool:
    if word == CONCAT:
        return _concatenates(step)
    operation, module = short_name(step.operation).rstrip("_"), step.module or ""
    in_module = bool(module) and (module.startswith(f"{word}.") or fnmatchcase(module, word))
    return step.role == word or fnmatchcase(operation, word.rstrip("_")) or in_module


def _concatenates(step: Step) -> bool:
    name = base_name(step.operation)
    return name in JOINS or (step.role == "merge" and name in RESHAPES)


def _match_hint(trace: Trace) -> str:
    operations = [short_name(step.operation) for step in trace.steps]
    present: dict[str, list[str]] = {
        "roles": [step.role for step in trace.steps if step.role],
        "operations": operations + [CONCAT] * any(map(_concatenates, trace.steps)),
        "modules": [step.module for step in trace.steps if step.module],
    }
    listed = [f"{kind}: {', '.join(map(visible, dict.fromkeys(names)))}" for kind, names in present.items() if names]
    return "this trace has " + "; ".join(listed) if listed else "this trace has no steps"


def _headings(trace: Trace) -> dict[int, str]:
    if shows_layers_once(trace):
        return module_headings(trace)
    return section_headings(trace) or module_headings(trace)


def section_headings(trace: Trace) -> dict[int, str]:
    """Return the headings of an attention's sections, each with the index of the section's first step.

    They follow from the roles of the steps. The result is empty if these are in a different order. A heading is never
    inside a composite: where a section begins in one, the attention as a whole has a heading.
    """
    steps = trace.steps
    begin = _attend_begins(trace)
    contexts = [step.index for step in steps if step.role == "context"]
    if begin is None or not contexts:
        return {}
    end = contexts[-1]
    for step in steps:
        allowed = _PREPARE if step.index < begin else _ATTEND if step.index <= end else _MERGE
        if step.role in (_PREPARE | _ATTEND | _MERGE) - allowed:
            return {}
    before = [step.index for step in steps if step.index < begin and step.role]
    after = [step.index for step in steps if step.index > end and step.role]
    headings = {begin: "attend"}
    if before:
        headings[_above_composites(trace, before[0])] = "project and split"
    if after:
        headings[_above_composites(trace, after[0])] = "merge"
    if any(trace.step(index).parent is not None for index in headings):
        headings = {_outermost(trace, min(headings)): _WHOLE}
    first, last = min(headings), _last_of_composites(trace, after[-1] if after else end)
    headings |= {1: _BEFORE} if first > 1 and (before or headings[first] == _WHOLE) else {}
    headings |= {last + 1: _AFTER} if last < len(steps) else {}
    return headings if len(headings) > 1 else {}


def _above_composites(trace: Trace, index: int) -> int:
    """Return the outermost composite that begins with a step and has no role before it; the step itself if none."""
    parent = trace.step(index).parent
    while parent is not None and parent < index and not any(step.role for step in trace.steps[parent : index - 1]):
        index, parent = parent, trace.step(parent).parent
    return index


def _outermost(trace: Trace, index: int) -> int:
    """Return the composite around a step that is in no other; the step itself if it is in none."""
    parent = trace.step(index).parent
    while parent is not None and parent < index:
        index, parent = parent, trace.step(parent).parent
    return index


def _last_of_composites(trace: Trace, index: int) -> int:
    """Return the last step inside all composites around a step; the step itself if it is in none."""
    while index < len(trace.steps) and trace.step(index + 1).parent is not None:
        index += 1
    return index


def _attend_begins(trace: Trace) -> int | None:
    begin = next((step.index for step in trace.steps if step.role in _ATTEND), None)
    if begin is None:
        return None
    # the expression of the scores may start earlier, with the transposed key
    used = {operand.step for operand in trace.step(begin).operands}
    while begin > 1 and begin - 1 in used and not any(output.name for output in trace.step(begin - 1).outputs):
        if trace.step(begin - 1).role in _PREPARE:
            break
        begin -= 1
        used |= {operand.step for operand in trace.step(begin).operands}
    return _above_composites(trace, begin)


def trace_header(trace: Trace) -> Header:
    """Return the lines above the table of a trace."""
    symbols = sorted(_symbols_shown(trace), key=lambda symbol: ORDER.get(symbol, len(ORDER)))
    sizes = tuple(_size(symbol, trace.sizes[symbol]) for symbol in symbols)
    dtype = visible(trace.dtype) + (" · with gradients" if trace.grad is True else "")
    return Header(visible(trace.command), visible(trace.target), (visible(trace.device), dtype), sizes)


def trace_footer(trace: Trace, shown: int) -> tuple[FooterLine, ...]:
    """Return the lines below a table that shows that many steps of a trace."""
    lines = [FooterLine("found:", flags=visible(trace.found))] if trace.found is not UNSET else []
    lines += [FooterLine(text) for text in _plain_lines(trace, shown) if text]
    if not trace.complete and not trace.failure:
        lines.append(FooterLine("incomplete: not every step of the run is in this trace", "bad"))
    if trace.failure:
        lines += _failure(trace.failure)
    for expected in trace.expectations:
        name, why = f"{visible(expected.name)}: {visible(expected.signature)}", visible(expected.why or "")
        if expected.holds:
            lines.append(FooterLine(f"✓ {name}{f' ({why})' if why else ''}", "good"))
        else:
            lines.append(FooterLine(f"✗ expected {name}, {f'but {why}' if why else _BROKEN}", "bad"))
    return tuple(lines)


def _plain_lines(trace: Trace, shown: int) -> Iterator[str]:
    if trace.steps:
        yield from (_counts(trace, shown), _axes(trace), _memory(trace))
    if trace.cost is not UNSET:
        yield from _costs(trace.cost)
    if trace.peak is not UNSET:
        yield _peak(trace.peak)
    yield from _merged({step.index: _avoided(step.avoided) for step in trace.steps if step.avoided is not UNSET})
    yield from _merged({s.index: f"opaque: {visible(s.opaque)}" for s in trace.steps if s.opaque is not UNSET})
    yield from map(_loop, trace.loops)
    if trace.preconditions:
        yield f"takes these steps only if: {', '.join(map(visible, trace.preconditions))}"
    yield from (f"note: {visible(note)}" for note in dict.fromkeys(trace.notes))


def _merged(texts: Mapping[int, str]) -> Iterator[str]:
    """Yield each text once, with the steps that it is about."""
    steps: dict[str, list[int]] = {}
    for index, text in texts.items():
        steps.setdefault(text, []).append(index)
    for text, indices in steps.items():
        first, last = indices[0], indices[-1]
        if len(indices) < 3:
            which = f"step {first} is" if first == last else f"steps {first} and {last} are"
        else:
            which = f"steps {first}, … and {last} ({len(indices)} steps) are"
        yield f"{which} {text.replace('its scores', 'their scores') if first != last else text}"


def _symbols_shown(trace: Trace) -> list[str]:
    """Return the size symbols of a trace without those that follow from others and that stand nowhere in it."""
    tensors = [*(one.tensor for one in trace.inputs), *_results(trace)]
    texts = [*(tensor.signature for tensor in tensors), *(loop.expression for loop in trace.loops)]
    texts += [step.avoided.signature for step in trace.steps if step.avoided is not UNSET]
    texts += [*trace.preconditions, trace.command, *([trace.found] if trace.found is not UNSET else [])]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    words |= {
        word
        for symbol in words & trace.sizes.keys()
        for word in re.findall(r"\w+", trace.sizes[symbol].expression or "")
    }
    return [
        symbol
        for symbol, size in trace.sizes.items()
        if size.origin != "derived" or symbol in words or not re.fullmatch(r"\w+", symbol)
    ]


def _size(symbol: str, size: Size) -> str:
    where = {"given": "", "default": " (default)", "derived": f" ({visible(size.expression or 'derived')})"}
    return f"{visible(symbol)}={size.size}{where[size.origin]}"


def _results(trace: Trace) -> list[TensorRecord]:
    return [output.tensor for step in trace.steps for output in step.outputs]


def _counts(trace: Trace, shown: int) -> str:
    total = len(trace.steps)
    parts = [pluralize(total, "step") if shown == total else f"{shown} of {pluralize(total, 'step')} shown"]
    parts += [_checked(trace)] * bool(_results(trace))
    return " · ".join(parts)


def _checked(trace: Trace) -> str:
    checked = [tensor for tensor in _results(trace) if tensor.checked]
    total = len(_results(trace))
    if not checked:
        return f"{pluralize(total, 'signature')}, none checked"
    kinds = Counter(tensor.checked for tensor in checked)
    known = ", ".join(f"{kinds[kind]} {kind}" for kind in ("declared", "inferred") if kinds[kind])
    held_out = sum(tensor.held_out for tensor in checked)
    where = "at sizes held out" if held_out else "at this run's sizes"
    if 0 < held_out < len(checked):
        where = f"{held_out} at sizes held out, {len(checked) - held_out} at this run's sizes"
    return f"{len(checked)}/{total} signatures checked by jaxtyping {where} ({known})"


def _axes(trace: Trace) -> str:
    axes = [axis for tensor in _results(trace) for axis in tensor.axes]
    free = [axis for axis in axes if not is_constant(axis)]
    kinds = Counter(axis.known for axis in free)
    parts = []
    if kinds["verified"]:
        sets = f" at {pluralize(trace.verified_at, 'set')} of sizes" if trace.verified_at else ""
        parts.append(f"{kinds['verified']}/{len(free)} axes verified{sets}")
    parts += [f"{kinds['matched']} only matched by size"] * bool(kinds["matched"])
    parts += [f"{kinds['literal']} literal"] * bool(kinds["literal"])
    parts += [f"{len(axes) - len(free)} constant"] * (len(axes) > len(free))
    text = ", ".join(parts) if kinds["verified"] or not parts else "axes: " + ", ".join(parts)
    strided = any(
        one.stride and not one.contiguous for one in (*_results(trace), *(named.tensor for named in trace.inputs))
    )
    return " · ".join([text] * bool(text) + [f"{NOT_CONTIGUOUS} not contiguous"] * strided)


def _memory(trace: Trace) -> str:
    # the results of a composite were counted inside, where they were made
    loops = loops_by_step(trace.loops)
    results = [
        (output.tensor, math.prod(loop.count for loop in loops.get(step.index, ())))
        for step in trace.steps
        for output in step.outputs
        if output.inner is None
    ]
    kinds: Counter[str] = Counter()
    for tensor, times in results:
        kinds[tensor.storage.kind] += times
    total = sum(tensor.bytes * times for tensor, times in results if tensor.storage.kind == "new")
    parts = [f"new storage {format_bytes(total)}"]
    parts += [pluralize(kinds["view"], "view")] * bool(kinds["view"])
    parts += [f"{kinds['same']} unchanged"] * bool(kinds["same"])
    parts += [f"{pluralize(kinds['inplace'], 'write')} in place"] * bool(kinds["inplace"])
    return ", ".join(parts)


def _loop(loop: Loop) -> str:
    steps = f"steps {loop.first} to {loop.last} are" if loop.last > loop.first else f"step {loop.first} is"
    where = f", in {visible(loop.modules[0])} … {visible(loop.modules[1])}," if loop.modules is not UNSET else ""
    return f"×{visible(loop.expression)}: {steps} repeated {pluralize(loop.count, 'time')}{where} and shown once"


def _peak(peak: Peak) -> str:
    where = f"at step {peak.step}" if peak.step is not None else "while it is being built"
    known = "verified" if peak.known == "verified" else "an estimate"
    return f"peak of live memory {format_bytes(peak.bytes)} {where} ({known})"


def _costs(cost: TotalCost) -> Iterator[str]:
    intensity = f" · {format_ratio(cost.intensity)} FLOPs a byte" if cost.intensity is not None else ""
    why = f", because of {join_words(cost.unknown)}" if cost.flops is None and cost.unknown else ""
    yield f"FLOPs {visible(operations_label(cost.flops) + why)}{intensity}"
    if cost.attention is not UNSET:
        needless = f", of which a mask makes {cost.needless:.0%} needless" if cost.needless is not UNSET else ""
        yield f"FLOPs of scores and context {visible(operations_label(cost.attention))}{needless}"
    yield f"parameters {visible(operations_label(cost.parameters))}"
    yield f"moved {visible(bytes_label(cost.moved))} · temporary {visible(bytes_label(cost.temporary))}"
    yield f"saved for the backward pass {visible(bytes_label(cost.saved))}"
    if cost.cache is not UNSET:
        yield f"cached for each token {visible(bytes_label(cost.cache))}"


def _avoided(scores: Avoided) -> str:
    return f"fused: its scores {visible(scores.signature)}, {format_bytes(scores.bytes)}, are never materialized"


def _failure(failure: Failure) -> list[FooterLine]:
    place = f" at {visible(source_label(failure.source))}" if failure.source else ""
    operands = tuple(map(_marked, failure.operands))
    lines = [FooterLine(f"✗ failed{place}: {visible(failure.explanation or failure.error)}", "bad", operands)]
    if failure.explanation:
        lines.append(FooterLine(f"the library says: {visible(failure.error)}"))
    if failure.hint:
        lines.append(FooterLine(f"hint: {visible(failure.hint)}", "good"))
    return lines


def _marked(operand: Operand) -> MarkedTensor:
    expressions = tuple(visible(axis.expression) for axis in operand.tensor.axes)
    # a saved trace may be inconsistent: a signature that doesn't fit the shape is shown without marks
    marks = frozenset(operand.disagree if len(expressions) == len(operand.tensor.shape) else ())
    return MarkedTensor(visible(operand.name), expressions, tuple(axis_sizes(operand.tensor)), marks)
