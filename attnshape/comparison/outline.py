"""The outline of a trace: the parts that are compared, without those that depend on the machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, Struct
from msgspec.structs import replace

from attnshape.model.behaviour import Behaviour
from attnshape.model.difference import OutlineLoop, OutlineResult, OutlineStep, OutlineTensor, Totals
from attnshape.model.formatting import replace_parts, strip_self, unfold
from attnshape.model.trace import Loop, NamedTensor, Reference, Step, TensorRecord, Trace, loops_by_step
from attnshape.tracing.operations import short_name

INPUT = "input"
"""The operation of an input, which is compared like a step."""
UNEXPLAINED = "?"
"""The signature's symbol for an axis whose size depends on the data, so that it has no formula."""
_MAX_INT64 = 2**63 - 1
"""The largest number that can be saved."""


class Outline(Struct, frozen=True, kw_only=True):
    """The parts of a trace that are compared."""

    target: str
    sizes: dict[str, int]
    inputs: tuple[OutlineStep, ...] = ()
    steps: tuple[OutlineStep, ...] = ()
    results: tuple[OutlineResult, ...] = ()
    """The tensors that the code returned, in order."""
    failure: str | None = None
    """The expression at which the code failed."""
    holds_arguments: bool = False
    """Whether the steps hold their arguments that are no tensors; earlier versions didn't keep them."""
    behaviour: Behaviour | None = None
    """What small runs showed, if it was measured."""

    @property
    def totals(self) -> Totals:
        """The totals. The outputs of a composite are counted at the inner steps that produced them."""
        composites = {step.parent for step in self.steps}
        counted = [
            (tensor, math.prod(loop.count for loop in step.loops))
            for step in self.steps
            if step.index not in composites
            for tensor in step.outputs
        ]
        new = sum(tensor.bytes * times for tensor, times in counted if tensor.kind == "new")
        views = sum(times for tensor, times in counted if tensor.kind == "view")
        return Totals(len(self.steps), min(new, _MAX_INT64), min(views, _MAX_INT64))

    def text_without_operands(self, step: OutlineStep) -> str:
        """Return a step's expression with `…` in place of the operands that other steps produced.

        >>> import attnshape
        >>> traced = outline(attnshape.trace("scaled-dot-product"))
        >>> traced.steps[1].expression, traced.text_without_operands(traced.steps[1])
        ('query @ key.transpose(-2, -1)', '… @ …')
        """
        texts: set[str] = set()
        for reference in step.uses:
            if reference.step is None:
                texts.add(reference.input or "")
            elif 0 < reference.step < step.index and reference.step <= len(self.steps):
                read = self.steps[reference.step - 1]
                texts |= {read.expression} if read.expression != step.expression else set()
                texts |= {output.name or "" for output in read.outputs[reference.output : reference.output + 1]}
        if not texts - {""}:
            return step.expression
        own = replace_parts(step.expression, texts, "…", not_after=".…")
        return re.sub(r"(?<![\w)\]])\(…\)", "…", own)


def outline(trace: Trace, inner: bool = True) -> Outline:
    """Return a trace's outline, including the steps inside of library functions and modules if `inner`.

    >>> import attnshape
    >>> traced = outline(attnshape.trace("scaled-dot-product"))
    >>> [(step.operation, step.outputs[0].signature) for step in traced.steps[:2]]
    [('transpose', 'B Dk Lk'), ('matmul', 'B Lq Lk')]
    """
    selection = _Selection({step.index: step.index for step in trace.steps}, {}) if inner else _top_level(trace)
    composites, failure = trace.composites, trace.failure
    # the caller allocated the inputs
    inputs = [replace(_tensor(tensor, selection), bytes=0) for tensor in trace.inputs]
    steps = [step for step in trace.steps if step.index in selection.numbers]
    loops = loops_by_step(trace.loops)
    return Outline(
        target=trace.target,
        sizes={symbol: size.size for symbol, size in trace.sizes.items()},
        inputs=tuple(map(input_step, inputs)),
        steps=tuple(_step(step, selection, loops, step.index in composites) for step in steps),
        results=tuple(OutlineResult(_text(result.name), selection.reference(result.of)) for result in trace.outputs),
        failure=_text(failure.expression or failure.operation or "") if failure is not None else None,
        holds_arguments=all(step.arguments is not UNSET for step in steps),
        behaviour=trace.behaviour if trace.behaviour is not UNSET else None,
    )


@dataclass(frozen=True)
class _Selection:
    """The steps that an outline keeps, and the outputs that replace those of the other steps."""

    numbers: Mapping[int, int]
    """The number in the outline of each step kept, by its number in the trace."""
    replacements: Mapping[tuple[int, int], tuple[int, int]]
    """For each output left out, as (step, position), the output of the enclosing composite."""

    def reference(self, reference: Reference) -> Reference:
        """Translate a reference of the trace to the outline's step numbers."""
        if reference.step is None:
            is_input = reference.input is not None
            parameter = None if is_input else reference.parameter
            return Reference(input=reference.input, parameter=parameter, constant=not is_input and parameter is None)
        step, output = self.replacements.get((reference.step, reference.output), (reference.step, reference.output))
        return Reference(step=self.numbers[step], output=output)


def _top_level(trace: Trace) -> _Selection:
    outermost: dict[int, int] = {}
    replacements: dict[tuple[int, int], tuple[int, int]] = {}
    for step in trace.steps:
        outermost[step.index] = outermost.get(step.parent, step.parent) if step.parent else step.index
        for position, output in enumerate(step.outputs):
            if output.inner is not None and output.inner.step is not None:
                enclosing = replacements.get((step.index, position), (step.index, position))
                replacements[output.inner.step, output.inner.output] = enclosing
    for step in trace.steps:
        if step.parent is not None:
            for position in range(len(step.outputs)):
                replacements.setdefault((step.index, position), (outermost[step.index], 0))
    kept = [step.index for step in trace.steps if step.parent is None]
    return _Selection({index: number for number, index in enumerate(kept, 1)}, replacements)


def _step(step: Step, selection: _Selection, loops: Mapping[int, Sequence[Loop]], is_composite: bool) -> OutlineStep:
    enclosing = loops.get(step.index, [])
    read = [operand for operand in step.operands if operand.step is not None or operand.input is not None]
    # a step after a loop may read an output of each iteration, whose number depends on the sizes
    repeated = {use for use in read if use.step is not None and set(loops.get(use.step, ())) - set(enclosing)}
    distinct = [use for index, use in enumerate(read) if use not in repeated or use not in read[:index]]
    uses = list(map(selection.reference, distinct))
    if is_composite:
        # a library's function may use its operands in any order
        uses = sorted(set(uses), key=lambda use: (use.step or 0, use.output, use.input or ""))
    return OutlineStep(
        index=selection.numbers[step.index],
        parent=step.parent if step.parent in selection.numbers else None,
        expression=_text(step.expression),
        operation=short_name(step.operation),
        uses=tuple(uses),
        arguments=step.arguments if step.arguments is not UNSET else (),
        loops=tuple(OutlineLoop(loop.expression, loop.count) for loop in enclosing),
        outputs=tuple(_tensor(output, selection) for output in step.outputs),
    )


def input_step(tensor: OutlineTensor) -> OutlineStep:
    """Return a step that represents an input."""
    return OutlineStep(index=0, expression=tensor.name or "", operation=INPUT, outputs=(tensor,))


def _tensor(named: NamedTensor, selection: _Selection) -> OutlineTensor:
    record, storage = named.tensor, named.tensor.storage
    new = storage.kind in ("new", "unknown")
    return OutlineTensor(
        name=_text(named.name) if named.name is not None else None,
        by_use=named.by_use,
        dtype=record.dtype,
        signature=_signature(record),
        shape=record.shape,
        stride=record.stride,
        stride_formulas=() if record.contiguous else record.strides,
        contiguous=record.contiguous,
        layout=record.layout,
        kind=storage.kind,
        of=None if new or storage.of is None else selection.reference(storage.of),
        bytes=record.bytes if new else 0,
    )


def _signature(record: TensorRecord) -> str:
    words = record.signature.split()
    unknown = [axis.unexplained and axis.known == "literal" for axis in record.axes]
    if len(words) != len(unknown) or not any(unknown):
        return record.signature
    return " ".join(UNEXPLAINED if is_unknown else word for word, is_unknown in zip(words, unknown, strict=True))


def _text(expression: str) -> str:
    # invalid source may contain a lone surrogate, which can't be saved
    return strip_self(unfold(expression)).encode(errors="backslashreplace").decode()
