"""Check every signature of a trace with jaxtyping, at sizes that no formula was inferred from."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jaxtyping
import msgspec
import torch
from jaxtyping import AnnotationError, Bool, Complex, Float, Int, Shaped, UInt, jaxtyped
from torch import Tensor

from attnshape.dims.expressions import parse_expression
from attnshape.errors import AttnshapeError, Option, did_you_mean
from attnshape.inference.assemble import Assembled, Where
from attnshape.inference.plan import held_out_sizes
from attnshape.inference.small_runs import Samples, SmallRuns
from attnshape.model.trace import Axis, Expectation, HeldOut, Loop, NamedTensor, Reference, Step, TensorRecord
from attnshape.tracing.raw import RawStep, RawTensor, RawTrace

Runs = Sequence[tuple[Mapping[str, int], RawTrace]]
"""Runs of one target, each with its sizes."""
_KINDS: dict[str, Any] = {"float": Float, "bfloat": Float, "complex": Complex, "int": Int, "uint": UInt, "bool": Bool}
_MOST_ATTEMPTS = 3
"""How many sets of sizes are tried where the target fails or takes different steps at the first."""


@dataclass(frozen=True)
class HeldOutRun:
    """A run at sizes that nothing was inferred from, or why there is none."""

    sizes: Mapping[str, int]
    run: RawTrace | None = None
    reason: str | None = None

    @property
    def record(self) -> HeldOut:
        """What the trace says about it."""
        return HeldOut(sizes=dict(self.sizes)) if self.run is not None else HeldOut(reason=self.reason)


def run_held_out(
    runs: SmallRuns, samples: Samples, conditions: Collection[str], used: Iterable[Mapping[str, int]] = ()
) -> HeldOutRun:
    """Run the target once at sizes that no formula was inferred from.

    Args:
        runs: The runs of the target at small sizes.
        samples: Those that the formulas were inferred from.
        conditions: Comparisons of sizes under which formulas hold, which the sizes meet if they can.
        used: Further sizes at which the target was run.
    """
    if not samples.plan.unknowns:
        return HeldOutRun({}, reason="no size can vary")
    if not samples.common:
        return HeldOutRun({}, reason="the target takes a different path at small sizes")
    plan = runs.with_measured_powers(samples.plan)
    found = held_out_sizes(plan, [plan.sizes.numbers, *runs.tried, *used])
    choices = sorted(found, key=lambda numbers: not all(_is_met(one, numbers) for one in conditions))
    runs.purpose = "checking the signatures: "
    reason = "every small size was used to infer them"
    for numbers in choices[:_MOST_ATTEMPTS]:
        if numbers not in runs.tried:
            run = runs.at(numbers)
            if samples.are_matched_by(run):
                return HeldOutRun(numbers, run)
            fails = run.failure is not None and samples.actual.failure is None
            reason = f"at {_listed_sizes(numbers)} the target {'fails' if fails else 'takes a different path'}"
            if runs.exhausted:
                break
    return HeldOutRun({}, reason=reason)


def verify_signatures(assembled: Assembled, samples: Samples, held_out: HeldOutRun) -> Assembled:
    """Check each inferred signature and stride at the sizes held out, and each annotation of the source in all runs.

    A formula that fails there is replaced by this run's number. Where a signature can't be checked at the sizes held
    out, it is checked at those of this run.
    """
    check = _HeldOutCheck(assembled, samples, held_out)
    inputs, steps, loops = check.inputs(), check.steps(), check.loops()
    wrong = list(check.notes())
    runs: list[tuple[Mapping[str, int], RawTrace]] = [(samples.plan.sizes.numbers, samples.actual)]
    if samples.complete:
        runs += samples.every
        runs += [(held_out.sizes, held_out.run)] if held_out.run is not None else []
    with_annotations = []
    for raw, step in zip(samples.actual.steps, steps, strict=True):
        dims, kind = _annotation(raw)
        if dims is not None:
            sound = all(_annotation_holds(dims, kind, step.index - 1, run, sizes) for sizes, run in runs)
            at_held_out = sound and samples.complete and held_out.run is not None
            step = _with_annotation(step, dims, sound, at_held_out)
            if not sound:
                wrong.append(_complaint(step, dims, kind))
        with_annotations.append(step)
    return replace(assembled, inputs=inputs, steps=tuple(with_annotations), loops=loops, wrong=tuple(wrong))


class _HeldOutCheck:
    """Compares formulas with the numbers of the run at the sizes held out."""

    def __init__(self, assembled: Assembled, samples: Samples, held_out: HeldOutRun) -> None:
        self._assembled = assembled
        self._common = samples.common
        self._numbers = samples.plan.sizes.numbers
        self._sizes = held_out.sizes
        self._run = held_out.run
        self._values: dict[str, int | None] = {}
        self._dropped: list[str] = []

    def inputs(self) -> tuple[NamedTensor, ...]:
        twins = dict(self._run.inputs) if self._run is not None else {}
        with bound(self._sizes):
            made = [
                self._check(one.tensor, twins.get(one.name or ""), one.name or "", 0) for one in self._assembled.inputs
            ]
        return self._at_own_sizes(self._assembled.inputs, made)

    def steps(self) -> tuple[Step, ...]:
        places = [(step, place) for step in self._assembled.steps for place in range(len(step.outputs))]
        with bound(self._sizes):
            made = [
                self._check(step.outputs[place].tensor, self._twin(step, place), f"step {step.index}", place)
                for step, place in places
            ]
        outputs = iter(self._at_own_sizes([step.outputs[place] for step, place in places], made))
        return tuple(
            msgspec.structs.replace(step, outputs=tuple(next(outputs) for _ in step.outputs))
            for step in self._assembled.steps
        )

    def loops(self) -> tuple[Loop, ...]:
        if self._run is None or len(self._run.loops) != len(self._assembled.loops):
            return self._assembled.loops
        made = []
        for number, (loop, twin) in enumerate(zip(self._assembled.loops, self._run.loops, strict=True), 1):
            place = (f"loop {number}", 0)
            if self._is_settled(place) and self._value(loop.expression) != twin.count:
                self._drop(place, loop.expression)
                loop = msgspec.structs.replace(loop, expression=str(loop.count), known="literal")
            made.append(loop)
        return tuple(made)

    def notes(self) -> Iterator[str]:
        if self._dropped:
            listed = ", ".join(self._dropped[:3])
            listed += f" and {len(self._dropped) - 3} more" if len(self._dropped) > 3 else ""
            yield f"wrong at the sizes held out ({_listed_sizes(self._sizes)}), so shown as this run's number: {listed}"

    def _twin(self, step: Step, output: int) -> RawTensor | None:
        if self._run is None or step.index > self._common:
            return None
        return self._run.steps[step.index - 1].outputs[output].tensor

    def _check(self, record: TensorRecord, twin: RawTensor | None, where: str, output: int) -> TensorRecord:
        """Return a tensor without the formulas that fail, marked as checked where its whole signature holds."""
        if twin is None or len(twin.shape) != len(record.shape):
            return record
        axes, strides = list(record.axes), list(record.strides)
        settled = [self._is_settled((f"{where}: axis {place}", output)) for place in range(len(axes))]
        words = [one.expression if known else "_" for one, known in zip(axes, settled, strict=True)]
        if not (sound := holds(" ".join(words), twin.shape, twin.dtype)):
            for place, size in enumerate(twin.shape):
                if settled[place] and self._value(axes[place].expression) != size:
                    self._drop((f"{where}: axis {place}", output), axes[place].expression)
                    axes[place] = Axis(str(record.shape[place]), "literal", unexplained=True)
        for place, stride in enumerate(twin.stride if len(twin.stride) == len(strides) else ()):
            key = (f"{where}: stride {place}", output)
            if self._is_settled(key) and self._value(strides[place]) != stride:
                self._drop(key, strides[place])
                strides[place] = str(record.stride[place])
        elements = math.prod(record.shape)
        if elements and record.bytes // elements != twin.itemsize:
            self._drop((where, output), "bytes per element")
            sound = False
        return msgspec.structs.replace(
            record,
            axes=tuple(axes),
            signature=" ".join(one.expression for one in axes),
            strides=tuple(strides),
            checked="inferred" if sound and all(settled) else None,
            held_out=sound and all(settled),
        )

    def _is_settled(self, where: Where) -> bool:
        """Return whether the number has a formula, which holds under conditions that the sizes held out meet."""
        formula = self._assembled.formulas.get(where)
        return formula is not None and not formula.unsolved and _is_met(formula.condition, self._sizes)

    def _value(self, text: str) -> int | None:
        """Return an expression's value at the sizes held out, None if it has none."""
        if text not in self._values:
            try:
                self._values[text] = parse_expression(text).evaluate(self._sizes)
            except AttnshapeError:
                self._values[text] = None
        return self._values[text]

    def _drop(self, where: Where, text: str) -> None:
        self._dropped.append(f"{text} for {where[0]}")

    def _at_own_sizes(self, outputs: Sequence[NamedTensor], made: Sequence[TensorRecord]) -> tuple[NamedTensor, ...]:
        """Return the tensors, those that were not checked at the sizes held out checked at those of this run."""
        with bound(self._numbers):
            checked = [
                tensor
                if tensor.held_out or not holds(tensor.signature, tensor.shape, tensor.dtype)
                else msgspec.structs.replace(tensor, checked="inferred")
                for tensor in made
            ]
        return tuple(
            msgspec.structs.replace(output, tensor=tensor) for output, tensor in zip(outputs, checked, strict=True)
        )


def _is_met(condition: str | None, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition such as `W <= L` or `D >= 128` is met.

    >>> _is_met("W <= L", {"W": 3, "L": 7}), _is_met("L >= 128", {"L": 7})
    (True, False)
    """
    if condition is None:
        return True
    left, comparison, right = condition.split()
    one, other = parse_expression(left).evaluate(sizes), parse_expression(right).evaluate(sizes)
    return one <= other if comparison == "<=" else one >= other


def _listed_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())


def _annotation(step: RawStep) -> tuple[str | None, str | None]:
    """Return dims string and kind that the source declares for the step's one output, where that is assigned."""
    if step.location is None or len(step.outputs) != 1 or step.outputs[0].name not in step.location.targets:
        return None, None
    return step.location.declared, step.location.declared_kind


def _annotation_holds(dims: str, kind: str | None, position: int, run: RawTrace, sizes: Mapping[str, int]) -> bool:
    """Return whether an annotation holds in a run; names in it that are no size symbols may be any size."""
    if position >= len(run.steps):
        return True
    tensor = run.steps[position].outputs[0].tensor
    with bound(sizes):
        return holds(dims, tensor.shape, tensor.dtype, kind)


def _with_annotation(step: Step, dims: str, sound: bool, at_held_out: bool) -> Step:
    (output,) = step.outputs
    checked = "declared" if sound else None
    tensor = msgspec.structs.replace(output.tensor, declared=dims, checked=checked, held_out=at_held_out)
    return msgspec.structs.replace(step, outputs=(msgspec.structs.replace(output, tensor=tensor),))


def _complaint(step: Step, dims: str, kind: str | None) -> str:
    where = f"{step.source.file}:{step.source.line}: " if step.source else ""
    output = step.outputs[0]
    declared, found = repr(dims), repr(output.tensor.signature)
    if output.tensor.signature == dims:
        declared, found = f"{kind} {declared}", f"{output.tensor.dtype} {found}"
    return f"wrong annotation: {where}{output.name} is declared {declared} and is {found}"


@contextmanager
def bound(numbers: Mapping[str, int]) -> Iterator[None]:
    """Bind each size symbol to its number for the signatures that are checked inside."""
    with jaxtyped("context"):
        for symbol, size in numbers.items():
            holds(symbol, (size,), "float32")
        yield


def holds(signature: str, shape: tuple[int, ...], dtype: str, kind: str | None = None) -> bool:
    """Return whether a tensor has the signature, and the kind, `Float` or `Bool`, where given.

    jaxtyping is given a tensor of this shape and dtype with one element and strides of zero: it looks at no more than
    shape and dtype. A signature that jaxtyping can't read doesn't hold.
    """
    try:
        tensor = torch.empty((1,) * len(shape), dtype=getattr(torch, dtype)).expand(shape)
        return isinstance(tensor, _kind_named(kind, dtype)[Tensor, signature])
    except (AnnotationError, NameError, SyntaxError, ValueError, RuntimeError, ZeroDivisionError):
        return False


def checks_work() -> bool:
    """Return whether jaxtyping notices a wrong signature, and wasn't disabled by JAXTYPING_DISABLE."""
    if jaxtyping.config.jaxtyping_disable:
        return False
    with bound({"n": 2}):
        return holds("n 3", (2, 3), "float32") and not holds("n 3", (3, 3), "float32")


def _kind_named(kind: str | None, dtype: str) -> Any:
    """Return the jaxtyping type of that name; the dtype's own if there is no such type."""
    named = getattr(jaxtyping, kind, None) if kind is not None else None
    return named if hasattr(named, "dtypes") else kind_of(dtype)


def kind_of(dtype: str) -> Any:
    """Return jaxtyping's type for a dtype: `Float` for `float32`."""
    family = re.match("[a-z]*", dtype)
    return _KINDS.get(family[0] if family else "", Shaped)


OUTPUT = "output"
_RETURNED = re.compile(r"return\[(\d+)\]")
"""The tensor that the target returned at this position, from 0; no variable can have this name."""


@dataclass(frozen=True)
class Expected:
    """The signature that a tensor of a name must have."""

    name: str
    signature: str
    kind: str | None = None
    """jaxtyping's type, such as `Float`, where that is declared too."""


def declared_result(declared: tuple[str, str] | None, symbols: Collection[str]) -> tuple[Expected, ...]:
    """Return the target's return annotation as an expectation, where all its symbols are sizes of the target."""
    if declared is None:
        return ()
    kind, signature = declared
    words = re.findall(r"[^\W\d]\w*", signature)
    plain = not set(signature) & set("#*.?=")
    return (Expected(OUTPUT, signature, kind),) if plain and all(word in symbols for word in words) else ()


def parse_expectations(signatures: Iterable[tuple[str, str]], symbols: Sequence[str]) -> tuple[Expected, ...]:
    """Return what is expected of each name. Raises AttnshapeError if a signature has an unknown symbol."""
    expected = []
    for name, signature in signatures:
        for word in signature.split():
            for symbol in parse_expression(word).symbols:
                if symbol not in symbols:
                    raise AttnshapeError(
                        (Option("expect", signature, name), f": {symbol} isn't a size of this target"),
                        did_you_mean(symbol, list(symbols), "its sizes are"),
                    )
        expected.append(Expected(name, signature))
    return tuple(expected)


def verify(expected: Sequence[Expected], runs: Runs) -> tuple[Expectation, ...]:
    """Return the verdict on each: it holds where every tensor of that name has the signature, in every run.

    The first run is the user's. In the others all sizes differ, so that a wrong symbol of equal size shows. Raises
    AttnshapeError if no tensor has the name.
    """
    return tuple(_verdict(wanted, runs) for wanted in expected)


def _verdict(wanted: Expected, runs: Runs) -> Expectation:
    actual = runs[0][1]
    if not tensors_named(wanted.name, actual):
        if actual.failure is not None:
            return Expectation(wanted.name, wanted.signature, False, "the code failed before it was made")
        if _RETURNED.fullmatch(wanted.name):
            return Expectation(wanted.name, wanted.signature, False, "nothing is returned there")
        raise AttnshapeError(
            (Option("expect"), f" {wanted.name!r}: no tensor has that name"),
            did_you_mean(wanted.name, names_of(actual), "the tensors with names are"),
        )
    for place, (sizes, run) in enumerate(runs):
        for tensor in tensors_named(wanted.name, run):
            with bound(sizes):
                if not holds(wanted.signature, tensor.shape, tensor.dtype, wanted.kind):
                    why = _difference(wanted.signature, tensor, sizes)
                    return Expectation(wanted.name, wanted.signature, False, why + (_at(sizes) if place else ""))
    return Expectation(wanted.name, wanted.signature, True, None if len(runs) > 1 else "at this run's sizes only")


def _at(sizes: Mapping[str, int]) -> str:
    return " (seen at " + ", ".join(f"{symbol}={size}" for symbol, size in sizes.items()) + ")"


def _difference(signature: str, tensor: RawTensor, sizes: Mapping[str, int]) -> str:
    words = signature.split()
    if len(words) != len(tensor.shape):
        return f"it has {len(tensor.shape)} axes {list(tensor.shape)}, expected {len(words)}"
    for position, (word, size) in enumerate(zip(words, tensor.shape, strict=True)):
        number = parse_expression(word).evaluate(sizes)
        if number != size:
            equal = [symbol for symbol, value in sizes.items() if value == size]
            name = f"{equal[0]}={size}" if len(equal) == 1 else str(size)
            return f"axis {position} is {name}, expected {word}={number}"
    return f"its dtype is {tensor.dtype}"


def tensors_named(name: str, run: RawTrace) -> list[RawTensor]:
    """Return the run's tensors of a name; for `output` what the target returned, the first of several."""
    if returned_at := _RETURNED.fullmatch(name):
        references = [reference for _, reference in run.returned][int(returned_at[1]) :][:1]
        return [tensor for one in references if (tensor := tensor_of(one, run)) is not None]
    found = [output.tensor for step in run.steps for output in step.outputs if output.name == name]
    found += [tensor for given, tensor in run.inputs if given == name]
    returned = dict(run.returned)
    reference = returned.get(name)
    if reference is None and name == OUTPUT and run.returned:
        reference = run.returned[0][1]
    made = tensor_of(reference, run) if reference is not None else None
    if made is not None and all(made is not other for other in found):
        found.append(made)
    return found


def tensor_of(reference: Reference, run: RawTrace) -> RawTensor | None:
    """Return the tensor that a reference means, where it is a step's output or an input."""
    if reference.step is not None:
        return run.steps[reference.step - 1].outputs[reference.output].tensor
    return next((tensor for name, tensor in run.inputs if name == reference.input), None)


def names_of(run: RawTrace) -> list[str]:
    """Return every name that an expectation could mean."""
    names = [output.name for step in run.steps for output in step.outputs if output.name]
    return list(dict.fromkeys([OUTPUT, *(name for name, _ in run.returned), *names]))
