"""The outline of a trace: what is compared of it, and nothing that depends on the machine that made it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from attnshape.model import Loop, NamedTensor, Reference, Step, StorageKind, TensorRecord, Trace
from attnshape.step_text import operation, unfolded, without_self

_MOST = 2**63 - 1
"""What a saved number can be at most."""
INPUT = "input"
"""The operation of an input, which is compared as a step is."""
UNEXPLAINED = "?"
"""In a signature, an axis whose size no formula gives, since it depends on the data."""


class Tensor(Struct, frozen=True, kw_only=True):
    """What is compared of an input, or of one output of a step; strides count elements."""

    name: str | None = None
    by_use: bool = False
    """Whether the name is a later consumer's variable, not what the expression itself is assigned to."""
    dtype: str
    signature: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    formulas: tuple[str, ...] = ()
    """The strides' formulas; absent where the tensor is contiguous, since they follow from the shape then."""
    contiguous: bool
    kind: StorageKind
    of: Reference | None = None
    """The tensor that it is a view of, the same as, or a write to."""
    bytes: int = 0
    """New memory; none where it lies in other tensors', or in what an input's caller made."""


class Turns(Struct, frozen=True):
    """A loop around a step: how often it turns, as an expression and in this run."""

    expression: str
    count: int


class OutlineStep(Struct, frozen=True, kw_only=True):
    """What is compared of a step; an input is one too, with the number 0."""

    index: int
    parent: int | None = None
    expression: str
    """On one line, without `self.`."""
    operation: str
    """Its short name, the same for a function and for the method of that name."""
    uses: tuple[Reference, ...] = ()
    """The steps' outputs and the inputs among its operands."""
    turns: tuple[Turns, ...] = ()
    """The loops around it, the outermost first."""
    outputs: tuple[Tensor, ...]


class Result(Struct, frozen=True):
    """One tensor that the code returned: `output`, or a path such as `output[0]`."""

    name: str
    of: Reference


class Totals(Struct, frozen=True):
    """What a trace adds up to: steps, new memory in bytes, and views."""

    steps: int
    new_bytes: int
    views: int


class Outline(Struct, frozen=True, kw_only=True):
    """What is compared of a trace."""

    target: str
    sizes: dict[str, int]
    inputs: tuple[OutlineStep, ...] = ()
    steps: tuple[OutlineStep, ...] = ()
    results: tuple[Result, ...] = ()
    """The tensors that the code returned, in order."""
    failure: str | None = None
    """The expression at which the code failed."""

    @property
    def totals(self) -> Totals:
        """What is added up; a composite's results are counted where they were made, inside."""
        composites = {step.parent for step in self.steps}
        made = [
            (tensor, math.prod(turn.count for turn in step.turns))
            for step in self.steps
            if step.index not in composites
            for tensor in step.outputs
        ]
        new = sum(tensor.bytes * turns for tensor, turns in made if tensor.kind == "new")
        views = sum(turns for tensor, turns in made if tensor.kind == "view")
        return Totals(len(self.steps), min(new, _MOST), min(views, _MOST))

    def own_text(self, step: OutlineStep) -> str:
        """Return a step's expression with `…` in place of what it reads, whose text is that of other steps.

        >>> import attnshape
        >>> made = outline(attnshape.trace("scaled-dot-product"))
        >>> made.steps[1].expression, made.own_text(made.steps[1])
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
        # an outer expression goes before those inside of it
        longest = sorted(texts - {""}, key=lambda text: (-len(text), text))
        if not longest:
            return step.expression
        own = re.sub("|".join(rf"(?<![\w.…]){re.escape(text)}(?!\w)" for text in longest), "…", step.expression)
        return re.sub(r"(?<![\w)\]])\(…\)", "…", own)


def outline(trace: Trace, within: bool = True) -> Outline:
    """Return a trace's outline; `within` says whether it has what lies inside of libraries' functions and modules.

    >>> import attnshape
    >>> made = outline(attnshape.trace("scaled-dot-product"))
    >>> [(step.operation, step.outputs[0].signature) for step in made.steps[:2]]
    [('transpose', 'B Dk Lk'), ('matmul', 'B Lq Lk')]
    """
    kept = _Kept.of(trace, within)
    composites = trace.composites
    steps = tuple(
        _step(step, kept, trace.loops, step.index in composites) for step in trace.steps if step.index in kept.numbers
    )
    inputs = tuple(_input(tensor) for tensor in trace.inputs)
    results = tuple(Result(_text(one.name), kept.reference(one.of)) for one in trace.outputs)
    failure = None
    if trace.failure is not None:
        failure = _text(trace.failure.expression or trace.failure.operation or "")
    sizes = {letter: size.size for letter, size in trace.sizes.items()}
    return Outline(target=trace.target, sizes=sizes, inputs=inputs, steps=steps, results=results, failure=failure)


@dataclass(frozen=True)
class _Kept:
    """The steps that an outline has, and what stands for the others."""

    numbers: Mapping[int, int]
    """The number in the outline of each step that is kept."""
    stands_for: Mapping[tuple[int, int], tuple[int, int]]
    """For an output that is left out, by step and place, the output of the composite around it."""

    @staticmethod
    def of(trace: Trace, within: bool) -> _Kept:
        if within:
            return _Kept({step.index: step.index for step in trace.steps}, {})
        outermost: dict[int, int] = {}
        stands_for: dict[tuple[int, int], tuple[int, int]] = {}
        for step in trace.steps:
            outermost[step.index] = outermost.get(step.parent, step.parent) if step.parent else step.index
            for place, output in enumerate(step.outputs):
                if output.inner is not None and output.inner.step is not None:
                    around = stands_for.get((step.index, place), (step.index, place))
                    stands_for[output.inner.step, output.inner.output] = around
        top = [step.index for step in trace.steps if step.parent is None]
        for step in trace.steps:
            for place in range(len(step.outputs)):
                if step.parent is not None and (step.index, place) not in stands_for:
                    stands_for[step.index, place] = (outermost[step.index], 0)
        return _Kept({index: number for number, index in enumerate(top, 1)}, stands_for)

    def reference(self, reference: Reference) -> Reference:
        """Return a reference as the outline has it: one of a step, an input, a parameter, or a constant."""
        if reference.step is None:
            given = reference.input is not None
            parameter = None if given else reference.parameter
            return Reference(input=reference.input, parameter=parameter, constant=not given and parameter is None)
        step, output = self.stands_for.get((reference.step, reference.output), (reference.step, reference.output))
        return Reference(step=self.numbers[step], output=output)


def _step(step: Step, kept: _Kept, loops: tuple[Loop, ...], composite: bool) -> OutlineStep:
    around = sorted(_around(step.index, loops), key=lambda loop: loop.first - loop.last)
    read = [one for one in step.operands if one.step is not None or one.input is not None]
    # what each turn of a loop made is read as often as it turns, which is a matter of sizes
    turned = {one for one in read if one.step is not None and set(_around(one.step, loops)) - set(around)}
    once = [one for place, one in enumerate(read) if one not in turned or one not in read[:place]]
    uses = list(map(kept.reference, once))
    if composite:
        # a library's function uses its operands in an order that is its own affair
        uses = sorted(set(uses), key=lambda one: (one.step or 0, one.output, one.input or ""))
    return OutlineStep(
        index=kept.numbers[step.index],
        parent=step.parent if step.parent in kept.numbers else None,
        expression=_text(step.expression),
        operation=operation(step.operation),
        uses=tuple(uses),
        turns=tuple(Turns(loop.expression, loop.count) for loop in around),
        outputs=tuple(_tensor(output, kept) for output in step.outputs),
    )


def _around(index: int, loops: tuple[Loop, ...]) -> Iterator[Loop]:
    return (loop for loop in loops if loop.first <= index <= loop.last)


def _input(given: NamedTensor) -> OutlineStep:
    tensor = _tensor(given, _Kept({}, {}))
    # its memory is its caller's
    return OutlineStep(index=0, expression=tensor.name or "", operation=INPUT, outputs=(replace(tensor, bytes=0),))


def _tensor(named: NamedTensor, kept: _Kept) -> Tensor:
    record = named.tensor
    storage = record.storage
    new = storage.kind == "new"
    return Tensor(
        name=_text(named.name) if named.name is not None else None,
        by_use=named.by_use,
        dtype=record.dtype,
        signature=_signature(record),
        shape=record.shape,
        stride=record.stride,
        formulas=() if record.contiguous else record.strides,
        contiguous=record.contiguous,
        kind=storage.kind,
        of=None if new or storage.of is None else kept.reference(storage.of),
        bytes=record.bytes if new else 0,
    )


def _signature(record: TensorRecord) -> str:
    words = record.signature.split()
    if len(words) != len(record.axes) or not any(one.unexplained for one in record.axes):
        return record.signature
    known = (not (one.unexplained and one.known == "literal") for one in record.axes)
    return " ".join(word if is_known else UNEXPLAINED for word, is_known in zip(words, known, strict=True))


def _text(expression: str) -> str:
    # half a character, as broken source may have it, could not be saved
    return without_self(unfolded(expression)).encode(errors="backslashreplace").decode()
