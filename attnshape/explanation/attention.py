"""One attention as the topics of an article see it: its steps, and what runs of it showed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec import UNSET
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.operands import AttentionOperand, OperandRole, by_attention, projection
from attnshape.explanation.observed import Compared, ObservedScores, RunValues
from attnshape.explanation.sentences import AxisSize, axis_label, explain, tensor_axes
from attnshape.explanation.stages import Stage, StepLinks, TracedAttention
from attnshape.explanation.writing import quoted
from attnshape.inference.dataflow import innermost
from attnshape.model.formatting import join_words, strip_self, unfold
from attnshape.model.references import resolve
from attnshape.model.trace import NamedTensor, Step, TensorRecord, Trace, loops_by_step
from attnshape.tracing import operations as ops

_NOUNS = {"B": "sequences", "H": "heads", "Hkv": "key and value heads", "G": "query heads of a group"}
"""What the axes are over whose elements a product is repeated, where one symbol counts them."""


@dataclass(frozen=True)
class Attention:
    """One attention of a trace, and what runs of it showed; what they didn't show is None."""

    trace: Trace
    links: StepLinks
    traced: TracedAttention
    values: RunValues | None
    """A run in the user's mode, at the user's sizes or at smaller ones."""
    training: RunValues | None
    """A run in training mode at the same sizes."""
    scores: ObservedScores | None

    def of(self, *stages: Stage) -> tuple[Step, ...]:
        """Return the steps of some stages, in order."""
        return self.traced.of(*stages)

    def first(self, stage: Stage, role: str | None = None) -> Step | None:
        """Return the first step of a stage, or the first that has a role."""
        return next((step for step in self.of(stage) if role is None or step.role == role), None)

    @property
    def context(self) -> Step:
        """The step that makes the weighted values."""
        return self.traced.context

    @property
    def product(self) -> Step | None:
        """The step that multiplies queries and keys; the fused attention itself if there is one."""
        return self.context if self.traced.is_fused else self.first("scores", "scores")

    @cached_property
    def on_the_way(self) -> tuple[Step, ...]:
        """The steps that scores pass on their way from the product to the softmax, in order, the product first."""
        product = self.product
        found = {product.index: product} if product is not None else {}
        for step in self.of("scale", "added", "scores"):
            if any(made.index in found for made in self.links.inputs(step)):
                found[step.index] = step
        return tuple(found.values())

    @property
    def added(self) -> tuple[Step, ...]:
        """The steps that add to scores or hide some of them."""
        return tuple(step for step in self.on_the_way if step in self.of("added"))

    def makers(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps that make what the given steps add to the scores, or hide them by."""
        found: dict[int, Step] = {}
        for step in steps:
            place = self.place_of_scores(step)
            for at, operand in enumerate(step.operands):
                made = innermost(self.trace.steps, operand).step
                if at != place and made is not None and made in self.links.steps:
                    found |= self.links.upstream(self.links.steps[made])
        return [step for step in self.of("added") if step.index in found and step not in self.on_the_way]

    def place_of_scores(self, step: Step) -> int | None:
        """Return which operand of a step the scores are; None if it reads none."""
        passed = {one.index for one in self.on_the_way}
        made = [innermost(self.trace.steps, operand).step for operand in step.operands]
        return next((place for place, index in enumerate(made) if index in passed), None)

    @cached_property
    def core(self) -> Core | FusedCore | None:
        """The attention in the run; None if it wasn't found there."""
        call = self.values.call(self.context) if self.values is not None else None
        if self.values is None or call is None:
            return None
        return next((core for core in self.values.subject.attentions if core.context.order == call.order), None)

    @cached_property
    def operands(self) -> dict[OperandRole, AttentionOperand]:
        """The queries, keys and values in the run; none if the attention wasn't found there."""
        if self.values is None or self.core is None:
            return {}
        for own in by_attention(self.values.subject):
            if own[0].core is self.core:
                return {operand.role: operand for operand in own}
        return {}

    def projected_by(self, role: OperandRole) -> Step | None:
        """Return the step that projects the queries, keys or values; None if none does."""
        operand = self.operands.get(role)
        if operand is None or self.values is None:
            return None
        ref = projection(self.values.subject, operand.sources)
        step = self.values.step(ref.order) if ref is not None else None
        return step if step in self.of("projections") else None

    @property
    def score_axes(self) -> list[AxisSize] | None:
        """The axes of the scores; of a fused attention those that they would have. None if they are unknown."""
        if self.traced.is_fused:
            query, key = self.query_record, self.key_record
            known = query is not None and key is not None and min(len(query.shape), len(key.shape)) > 1
            records = [[*tensor_axes(query)[:-1], tensor_axes(key)[-2]]] if known and query and key else []
        else:
            softmax = self.first("softmax", "softmax")
            # a product may have another axis of size 1, and a softmax read more than the scores of the keys
            records = [tensor_axes(step.outputs[0].tensor) for step in (self.product, softmax) if step is not None]
        shape = tuple(self.scores.products.shape) if self.scores is not None else ()
        ranks = [axes for axes in records if len(axes) == len(shape)]
        return next(iter(ranks), None)

    @property
    def query_record(self) -> TensorRecord | None:
        """The record of the queries as their product reads them."""
        return self._operand_record("query")

    @property
    def key_record(self) -> TensorRecord | None:
        """The record of the keys as their product reads them."""
        return self._operand_record("key")

    def _operand_record(self, role: OperandRole) -> TensorRecord | None:
        operand, step = self.operands.get(role), self.product
        if operand is None or step is None or operand.place >= len(step.operands):
            return None
        named = resolve(self.trace, innermost(self.trace.steps, step.operands[operand.place]))
        return named.tensor if named is not None else None

    @property
    def width(self) -> AxisSize | None:
        """The features of queries and keys over which their products sum: those of all products that are summed."""
        widths = [self._width(compared) for compared in self.scores.compared] if self.scores is not None else []
        known = [width for width in widths if width is not None]
        if not known or len(known) < len(widths):
            return None
        return "+".join(axis for axis, _ in known), sum(size for _, size in known)

    def _width(self, compared: Compared) -> AxisSize | None:
        """Return the axis of queries and keys over which one product sums."""
        if compared.product is None or self.values is None:
            record = self.query_record
        else:
            step = self.values.step(compared.product.first.order)
            named = given_records(self.trace, step) if step is not None else []
            given = named[compared.place] if compared.place < len(named) else None
            record = given.tensor if given is not None else None
        if record is None or len(record.shape) != compared.query.ndim:
            return None
        return tensor_axes(record)[compared.contracted[0]]

    @property
    def products(self) -> list[Step]:
        """The steps whose results are summed to the scores; the first of them if they aren't known."""
        compared = self.scores.compared if self.scores is not None else ()
        steps = [
            self.values.step(one.product.last.order) for one in compared if one.product is not None and self.values
        ]
        found = [step for step in steps if step is not None]
        return found or [step for step in (self.product,) if step is not None]

    @property
    def pairs(self) -> tuple[AxisSize, AxisSize] | None:
        """The axes of the scores that stand for queries and keys."""
        axes, scores = self.score_axes, self.scores
        if axes is None or scores is None or scores.queries is None:
            return None
        return axes[scores.queries], axes[scores.keys]

    @property
    def repeated(self) -> list[AxisSize]:
        """The axes of the scores other than queries and keys: one product is made for each of their elements."""
        axes, scores = self.score_axes, self.scores
        if axes is None or scores is None or self.pairs is None:
            return []
        return [axis for place, axis in enumerate(axes) if place not in (scores.queries, scores.keys)]

    @property
    def iterations(self) -> AxisSize | None:
        """How often the trace repeats the attention in a loop, as an expression and a number; None if it doesn't."""
        around = loops_by_step(self.trace.loops).get(self.context.index, [])
        if not around:
            return None
        return "*".join(loop.expression for loop in around), math.prod(loop.count for loop in around)

    @property
    def joins_modules(self) -> bool:
        """Whether each iteration of a loop around the attention is a head, whose results are joined after the loop."""
        merge = self.first("merge")
        return merge is not None and self.iterations is not None and ops.base_name(merge.operation) in ops.JOINS

    def loop_modules(self) -> tuple[str, str] | None:
        """Return the modules of the first and the last iteration of the innermost loop around the attention."""
        around = loops_by_step(self.trace.loops).get(self.context.index, [])
        modules = around[-1].modules if around else UNSET
        return modules if modules is not UNSET else None

    def numbers(self, step: Step | None) -> Tensor | None:
        """Return the numbers of a step's result in the run; None if they are unknown."""
        return self.values.result(step) if self.values is not None and step is not None else None


def each_of(axes: Sequence[AxisSize]) -> str:
    """Return over what a product is repeated, as loops in words.

    >>> each_of([("B", 2), ("H", 8)]), each_of([("B*H", 16)])
    ('for each of B=2 sequences and H=8 heads', 'for each of B*H=16')
    """
    counted = [f"{axis_label(axis)} {_NOUNS[axis[0]]}" if axis[0] in _NOUNS else axis_label(axis) for axis in axes]
    return f"for each of {join_words(counted)}" if axes else ""


def code_of(step: Step) -> str:
    """Return the expression of a step as code in a sentence."""
    return quoted(strip_self(unfold(step.expression)))


def what_it_does(trace: Trace, step: Step) -> str:
    """Return a sentence that begins with the code of a step."""
    sentence = explain(trace, step)
    verb, _, rest = sentence.partition(" ")
    # a sentence about an operation without a verb of its own begins with its name, which isn't repeated
    action = rest if verb == ops.short_name(step.operation) else f"{verb[0].lower()}{verb[1:]} {rest}"
    return f"{code_of(step)} {action}"


def codes_of(steps: Iterable[Step]) -> str:
    """Return the expressions of steps as code in a sentence, each once."""
    return join_words(list(dict.fromkeys(map(code_of, steps))))


def given_records(trace: Trace, step: Step) -> list[NamedTensor | None]:
    """Return what each operand of a step is; None for a parameter or a constant."""
    return [resolve(trace, innermost(trace.steps, operand)) for operand in step.operands]


def data_place(trace: Trace, step: Step) -> int:
    """Return which operand of a projection its vectors are: the first that is no parameter and no constant."""
    return next((place for place, given in enumerate(given_records(trace, step)) if given is not None), 0)


def is_matmul(step: Step) -> bool:
    """Return whether a step multiplies the last two axes, and repeats that for all axes before them."""
    return ops.base_name(step.operation) in ops.MATMULS
