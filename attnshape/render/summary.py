"""The lines above a table and below it: what was run, and what came out as a whole."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET

from attnshape.dims import ORDER
from attnshape.model import Avoided, Failure, Loop, Operand, Peak, Size, TensorRecord, Trace
from attnshape.render.columns import NOT_CONTIGUOUS, constant
from attnshape.render.numbers import count, memory
from attnshape.render.text import visible


@dataclass(frozen=True)
class Header:
    """What was run, by which command, at which sizes."""

    command: str
    target: str
    device: str
    dtype: str
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """A tensor's name, its signature and its shape axis by axis, and the axes that are marked."""

    name: str
    signature: tuple[str, ...]
    shape: tuple[str, ...]
    marks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Remark:
    """One line below the table."""

    text: str
    tone: Literal["plain", "good", "bad"] = "plain"
    tensors: tuple[Marked, ...] = ()
    """Tensors that stand beneath it, one a line."""


def header(trace: Trace) -> Header:
    """Return what stands above a trace's table."""
    letters = sorted(trace.sizes, key=lambda letter: ORDER.get(letter, len(ORDER)))
    sizes = tuple(_size(letter, trace.sizes[letter]) for letter in letters)
    dtype = visible(trace.dtype) + (" · with gradients" if trace.grad is True else "")
    return Header(visible(trace.command), visible(trace.target), visible(trace.device), dtype, sizes)


def footer(trace: Trace, shown: int) -> tuple[Remark, ...]:
    """Return what stands below a table that shows so many of a trace's steps."""
    lines = (_counts(trace, shown), _axes(trace), _memory(trace)) if trace.steps else ()
    remarks = [Remark(line) for line in lines if line]
    remarks += [Remark(_peak(trace.peak))] if trace.peak is not UNSET else []
    remarks += [Remark(_avoided(step.index, step.avoided)) for step in trace.steps if step.avoided is not UNSET]
    remarks += [
        Remark(f"step {step.index} is opaque: {visible(step.opaque)}")
        for step in trace.steps
        if step.opaque is not UNSET
    ]
    remarks += [Remark(_turns(loop)) for loop in trace.loops]
    if trace.preconditions:
        remarks.append(Remark("takes these steps only where " + ", ".join(map(visible, trace.preconditions))))
    remarks += [Remark(f"note: {visible(note)}") for note in trace.notes]
    if not trace.complete and not trace.failure:
        remarks.append(Remark("incomplete: not every step of the run is in this trace", "bad"))
    if trace.failure:
        remarks += _failure(trace.failure)
    for one in trace.expectations:
        name = f"{visible(one.name)}: {visible(one.signature)}"
        why = f", but {visible(one.why)}" if one.why else ", which doesn't hold"
        limits = f" ({visible(one.why)})" if one.why else ""
        remarks.append(Remark(f"✓ {name}{limits}", "good") if one.holds else Remark(f"✗ expected {name}{why}", "bad"))
    return tuple(remarks)


def _size(letter: str, size: Size) -> str:
    where = {"given": "", "default": " (default)", "derived": f" ({visible(size.expression or 'derived')})"}
    return f"{visible(letter)}={size.size}{where[size.origin]}"


def _results(trace: Trace) -> list[TensorRecord]:
    return [output.tensor for step in trace.steps for output in step.outputs]


def _counts(trace: Trace, shown: int) -> str:
    total = len(trace.steps)
    parts = [count(total, "step") if shown == total else f"{shown} of {count(total, 'step')} shown"]
    parts += [_checked(trace)] * bool(_results(trace))
    return " · ".join(parts)


def _checked(trace: Trace) -> str:
    kinds = Counter(tensor.checked for tensor in _results(trace))
    declared, inferred = kinds["declared"], kinds["inferred"]
    total = declared + inferred + kinds[None]
    if not declared + inferred:
        return f"{count(total, 'signature')}, none checked"
    ways = [f"{declared} declared"] * bool(declared) + [f"{inferred} inferred"] * bool(inferred)
    return f"{declared + inferred}/{total} signatures checked by jaxtyping ({', '.join(ways)})"


def _axes(trace: Trace) -> str:
    axes = [axis for tensor in _results(trace) for axis in tensor.axes]
    free = [axis for axis in axes if not constant(axis)]
    kinds = Counter(axis.known for axis in free)
    parts = []
    if kinds["proved"]:
        runs = f" by {count(trace.proved_by_runs, 'run')}" if trace.proved_by_runs else ""
        parts.append(f"{kinds['proved']}/{len(free)} axes proved{runs}")
    parts += [f"{kinds['matched']} only matched by size"] * bool(kinds["matched"])
    parts += [f"{kinds['literal']} literal"] * bool(kinds["literal"])
    parts += [f"{len(axes) - len(free)} constant"] * (len(axes) > len(free))
    text = ", ".join(parts) if kinds["proved"] or not parts else "axes: " + ", ".join(parts)
    strided = any(not one.contiguous for one in (*_results(trace), *(named.tensor for named in trace.inputs)))
    return " · ".join([text] * bool(text) + [f"{NOT_CONTIGUOUS} not contiguous"] * strided)


def _memory(trace: Trace) -> str:
    # what a composite returns was counted where it was made, inside
    results = [
        (output.tensor, math.prod(loop.count for loop in trace.loops if loop.first <= step.index <= loop.last))
        for step in trace.steps
        for output in step.outputs
        if output.inner is None
    ]
    kinds: Counter[str] = Counter()
    for tensor, turns in results:
        kinds[tensor.storage.kind] += turns
    total = sum(tensor.bytes * turns for tensor, turns in results if tensor.storage.kind == "new")
    parts = [f"new storage {memory(total)}"]
    parts += [count(kinds["view"], "view")] * bool(kinds["view"])
    parts += [f"{kinds['same']} unchanged"] * bool(kinds["same"])
    parts += [f"{count(kinds['inplace'], 'write')} in place"] * bool(kinds["inplace"])
    return ", ".join(parts)


def _turns(loop: Loop) -> str:
    steps = f"steps {loop.first} to {loop.last} are" if loop.last > loop.first else f"step {loop.first} is"
    return f"×{visible(loop.expression)}: {steps} shown once of {count(loop.count, 'time')}"


def _peak(peak: Peak) -> str:
    where = f"at step {peak.step}" if peak.step is not None else "while it is being built"
    known = "proved" if peak.known == "proved" else "an estimate"
    return f"peak of live memory {memory(peak.bytes)} {where} ({known})"


def _avoided(index: int, scores: Avoided) -> str:
    return f"step {index} is fused: its scores {visible(scores.signature)}, {memory(scores.bytes)}, are never made"


def _failure(failure: Failure) -> list[Remark]:
    place = f" at {visible(failure.source.file)}:{failure.source.line}" if failure.source else ""
    operands = tuple(map(_marked, failure.operands))
    lines = [Remark(f"✗ failed{place}: {visible(failure.explanation or failure.error)}", "bad", operands)]
    if failure.explanation:
        lines.append(Remark(f"the library says: {visible(failure.error)}"))
    if failure.hint:
        lines.append(Remark(f"hint: {visible(failure.hint)}", "good"))
    return lines


def _marked(operand: Operand) -> Marked:
    tensor = operand.tensor
    expressions = tuple(visible(axis.expression) for axis in tensor.axes)
    # a saved trace may say anything: a signature that isn't its axes' is shown as it is, without marks
    marks = frozenset(operand.disagree) if len(expressions) == len(tensor.shape) else frozenset[int]()
    return Marked(visible(operand.name), expressions, tuple(map(str, tensor.shape)), marks)
