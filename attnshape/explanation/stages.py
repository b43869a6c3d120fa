"""Finds the attentions of a trace, and assigns their steps to the stages of an article."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from msgspec import UNSET

from attnshape.inference.dataflow import innermost
from attnshape.model.references import resolve
from attnshape.model.trace import Loop, NamedTensor, Step, Trace, loops_by_step
from attnshape.tracing import operations as ops

Stage = Literal[
    "projections", "heads", "operands", "scores", "scale", "added", "softmax", "dropout", "context", "merge", "output"
]
"""A part of an attention; `operands` are what else is done to queries, keys and values, `added` is what is added to the
scores or hides them, and how it is made."""
_BY_ROLE: Mapping[str, Stage] = {
    "projection": "projections",
    "split": "heads",
    "transpose": "heads",
    "scores": "scores",
    "scale": "scale",
    "mask": "added",
    "softmax": "softmax",
    "dropout": "dropout",
    "context": "context",
}
_AFTER_CONTEXT: Mapping[str, Stage] = {
    "transpose": "merge",
    "merge": "merge",
    "projection": "output",
    "output": "output",
}
_MOVES = ops.SAME_VALUES - ops.SELECTIONS | ops.DROPOUTS
"""What may lie between the context and the output projection."""
_OF_OTHERS = ("context", "merge", "output")
"""The roles at which the search for what an attention reads ends: they belong to an attention before it."""


@dataclass(frozen=True)
class TracedAttention:
    """One attention of a trace: its steps by stage, in the order in which they ran."""

    context: Step
    stages: Mapping[Stage, tuple[Step, ...]]
    modules: tuple[str, ...]
    """The modules whose attention these lines compute."""

    def of(self, *stages: Stage) -> tuple[Step, ...]:
        """Return the steps of some stages, in order."""
        return tuple(sorted((step for stage in stages for step in self.stages.get(stage, ())), key=_index))

    def last(self, role: Literal["scores", "softmax"]) -> Step | None:
        """Return the last step of the stage that has this role."""
        return next((step for step in reversed(self.of(role)) if step.role == role), None)

    @property
    def is_fused(self) -> bool:
        """Whether one call of torch computes it, which never shows its scores."""
        return ops.base_name(self.context.operation) in ops.FUSED_ATTENTION


class StepLinks:
    """Which steps of a trace read which, composites left out."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.steps = {step.index: step for step in trace.steps if step.index not in trace.composites}

    def inputs(self, step: Step) -> Iterator[Step]:
        """Yield the steps that made a step's operands, in the order of the operands."""
        for operand in step.operands:
            made = innermost(self._trace.steps, operand).step
            if made in self.steps and made is not None and made < step.index:
                yield self.steps[made]

    def operand(self, step: Step) -> NamedTensor | None:
        """Return the first operand of a step; None for a parameter or a constant, or if there is none."""
        operands = [resolve(self._trace, innermost(self._trace.steps, operand)) for operand in step.operands[:1]]
        return operands[0] if operands else None

    @cached_property
    def readers(self) -> Mapping[int, Sequence[Step]]:
        """The steps that read each step."""
        readers: dict[int, list[Step]] = {}
        for step in self.steps.values():
            for index in dict.fromkeys(made.index for made in self.inputs(step)):
                readers.setdefault(index, []).append(step)
        return readers

    def upstream(self, step: Step, ends: frozenset[int] = frozenset()) -> dict[int, Step]:
        """Return a step and the steps from which it follows; what the steps in `ends` read is left out."""
        found: dict[int, Step] = {}
        waiting = [step]
        while waiting:
            one = waiting.pop()
            if one.index not in found:
                found[one.index] = one
                waiting += self.inputs(one) if one.index not in ends else ()
        return found


def attentions(trace: Trace) -> list[TracedAttention]:
    """Return the attentions of a trace, those that the same lines compute only once."""
    links = StepLinks(trace)
    loops = loops_by_step(trace.loops)
    distinct: dict[object, list[Step]] = {}
    for step in links.steps.values():
        if step.role == "context" and step.outputs:
            distinct.setdefault(_key(step, links), []).append(step)
    return [
        TracedAttention(first, _stages(first, links), tuple(_modules([first, *others], loops)))
        for first, *others in distinct.values()
    ]


def _key(context: Step, links: StepLinks) -> object:
    """Return what two attentions share that one explanation serves for: lines, stages and signature."""
    roles = tuple(step.role for step in _attended(context, links).values() if step.role is not None)
    return context.source or context.index, context.outputs[0].tensor.signature, tuple(sorted(roles))


def _attended(context: Step, links: StepLinks) -> dict[int, Step]:
    """Return the steps from the projections to the context."""
    ends = {
        step.index
        for step in links.steps.values()
        if step.role == "projection" or (step.role in _OF_OTHERS and step is not context)
    }
    found = links.upstream(context, frozenset(ends))
    return {index: step for index, step in found.items() if step is context or step.role not in _OF_OTHERS}


def _stages(context: Step, links: StepLinks) -> Mapping[Stage, tuple[Step, ...]]:
    found = _attended(context, links)
    products = [step for step in found.values() if step.role == "scores"]
    softmax = max((step for step in found.values() if step.role == "softmax"), key=_index, default=None)
    compared: dict[int, Step] = {}
    for product in products:
        compared |= links.upstream(product, _projections(found))
    before_softmax = links.upstream(softmax, _projections(found)) if softmax is not None else {}
    by_stage: dict[Stage, list[Step]] = {}
    for step in sorted(found.values(), key=_index):
        stage: Stage | None = _BY_ROLE.get(step.role or "")
        if stage == "heads" and any(_turns_for_scores(step, product, links) for product in products):
            stage = "scores"
        if stage is None and _sums(step, products, links):
            stage = "scores"
        if stage is None and step.index in before_softmax and step.index not in compared:
            stage = "added"
        elif stage is None and softmax is not None and softmax.index in links.upstream(step, frozenset(compared)):
            stage = "softmax"
        by_stage.setdefault(stage or "operands", []).append(step)
    for later, step in _after(context, links):
        by_stage.setdefault(later, []).append(step)
    return {stage: tuple(steps) for stage, steps in by_stage.items()}


def _sums(step: Step, products: Sequence[Step], links: StepLinks) -> bool:
    """Return whether a step adds products to each other."""
    inputs = list(links.inputs(step))
    return ops.base_name(step.operation) in ops.ADDITIONS and len(inputs) > 1 and all(one in products for one in inputs)


def _projections(steps: Mapping[int, Step]) -> frozenset[int]:
    return frozenset(index for index, step in steps.items() if step.role == "projection")


def _turns_for_scores(step: Step, scores: Step, links: StepLinks) -> bool:
    """Return whether a step swaps the last two axes of its operand for the product, as that of the keys."""
    if step.role != "transpose" or scores not in links.readers.get(step.index, ()):
        return False
    named = links.operand(step)
    before = tuple(axis.expression for axis in named.tensor.axes[-2:]) if named is not None else ()
    return before == tuple(axis.expression for axis in step.outputs[0].tensor.axes[-2:][::-1])


def _after(context: Step, links: StepLinks) -> Iterator[tuple[Stage, Step]]:
    """Yield the steps that bring the heads together, and the output projection, each with its stage.

    What only moves numbers between them belongs to the first.
    """
    step, between = context, list[Step]()
    while True:
        readers = links.readers.get(step.index, ())
        after = next((one for one in readers if one.role in _AFTER_CONTEXT), None)
        moving = next((one for one in readers if one.role is None and ops.base_name(one.operation) in _MOVES), None)
        if after is not None:
            yield from (("merge", one) for one in between)
            yield _AFTER_CONTEXT[after.role or ""], after
            between = []
        elif moving is not None:
            between.append(moving)
        if (after is None and moving is None) or (after is not None and after.role == "output"):
            return
        step = after or moving or step


def _modules(contexts: Sequence[Step], loops: Mapping[int, Sequence[Loop]]) -> Iterator[str]:
    for context in contexts:
        around = [loop.modules for loop in loops.get(context.index, ()) if loop.modules is not UNSET]
        if around:
            yield " … ".join(around[-1])
        elif context.module:
            yield context.module


def _index(step: Step) -> int:
    return step.index
