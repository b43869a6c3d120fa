"""Check every signature of a trace with jaxtyping, at sizes that no formula was inferred from."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jaxtyping
import torch
from jaxtyping import AnnotationError, Bool, Complex, Float, Int, Shaped, UInt, jaxtyped
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor

from attnshape.dims.expressions import parse_axes, parse_expression
from attnshape.errors import AttnshapeError, Option, did_you_mean
from attnshape.inference.assemble import Formulas, Where
from attnshape.inference.plan import held_out_sizes
from attnshape.inference.small_runs import Samples, SmallRuns
from attnshape.model.trace import NO_SIZE, Axis, Expectation, HeldOut, Loop, Reference, Step, TensorRecord, Trace
from attnshape.tracing.raw import RawTensor, RawTrace

Runs = Sequence[tuple[Mapping[str, int], RawTrace]]
"""Runs of one target, each with its sizes."""
_KINDS: dict[str, Any] = {"float": Float, "bfloat": Float, "complex": Complex, "int": Int, "uint": UInt, "bool": Bool}
_MOST_ATTEMPTS = 3
"""How many sets of sizes are tried where the target fails or takes different steps at the first."""


def run_held_out(
    runs: SmallRuns, samples: Samples, conditions: Collection[str | None], used: Iterable[Mapping[str, int]] = ()
) -> tuple[HeldOut, RawTrace | None]:
    """Run the target once at sizes that no formula was inferred from; return the sizes, or why there is no such run.

    The sizes meet the `conditions` under which formulas hold, if they can. `used` are further sizes that are not held
    out, since the target was run at them.
    """
    if not samples.plan.unknowns:
        return HeldOut(reason="no size can vary"), None
    if not samples.common:
        return HeldOut(reason="the target takes a different path at small sizes"), None
    plan = runs.with_measured_powers(samples.plan)
    unused = held_out_sizes(plan, [plan.sizes.numbers, *runs.sizes_run, *used])
    choices = sorted(unused, key=lambda numbers: not all(_is_met(condition, numbers) for condition in conditions))
    runs.purpose = "checking the signatures: "
    reason = "every small size was used to infer them"
    affordable = [numbers for numbers in choices if runs.affords(numbers, last=True)]
    if choices and not affordable:
        reason = "a run at other sizes would take too much work"
    for numbers in affordable[:_MOST_ATTEMPTS]:
        if numbers not in runs.sizes_run:
            run = runs.at(numbers, last=True)
            if samples.are_matched_by(run):
                return HeldOut(sizes=numbers), run
            fails = run.failure is not None and samples.actual.failure is None
            reason = f"at {_listed_sizes(numbers)} the target {'fails' if fails else 'takes a different path'}"
            if runs.exhausted:
                break
    return HeldOut(reason=reason), None


def verify_signatures(
    trace: Trace, formulas: Formulas, samples: Samples, held_out: HeldOut, twin: RawTrace | None
) -> Trace:
    """Check each inferred signature and stride at the sizes held out, and each annotation of the source in all runs.

    A formula that fails there is replaced by this run's number. Where a signature can't be checked at the sizes held
    out, as there is no run (`twin`) at them, it is checked at those of this run.
    """
    trace = _HeldOutCheck(trace, formulas, samples, held_out, twin).checked()
    runs = samples.to_verify + ([(held_out.sizes, twin)] if samples.complete and twin is not None else [])
    steps, wrong = [], []
    for raw, step in zip(samples.actual.steps, trace.steps, strict=True):
        place, outputs = raw.location, raw.outputs
        bound_names = {outputs[0].name, outputs[0].local_name} if len(outputs) == 1 else set()
        annotated = place is not None and place.declared and not bound_names.isdisjoint(place.targets)
        if annotated and outputs[0].tensor.symbols:
            wrong.append(f"not checked: the annotation of {outputs[0].name}, which has an axis without a single size")
        elif place is not None and place.declared and annotated:
            dims, kind = place.declared, place.declared_kind
            sound = all(_annotation_holds(dims, kind, step.index - 1, run, sizes) for sizes, run in runs)
            checked, at_held_out = "declared" if sound else None, sound and samples.complete and twin is not None
            (output,) = step.outputs
            tensor = replace(output.tensor, declared=dims, checked=checked, held_out=at_held_out)
            step = replace(step, outputs=(replace(output, tensor=tensor),))
            if not sound:
                has_dtype = all(_annotation_holds("...", kind, step.index - 1, run, sizes) for sizes, run in runs)
                has_shape = all(_annotation_holds(dims, None, step.index - 1, run, sizes) for sizes, run in runs)
                wrong.append(_complaint(step, dims, None if has_dtype else kind, has_shape))
        steps.append(step)
    return replace(trace, steps=tuple(steps), notes=(*trace.notes, *wrong), held_out=held_out)


class _HeldOutCheck:
    """Compares formulas with the numbers of the run at the sizes held out."""

    def __init__(
        self, trace: Trace, formulas: Formulas, samples: Samples, held_out: HeldOut, twin: RawTrace | None
    ) -> None:
        self._trace = trace
        self._formulas = formulas
        self._common = samples.common
        self._numbers = samples.plan.sizes.numbers
        self._sizes = held_out.sizes
        self._run = twin
        self._values: dict[str, int | None] = {}
        self._dropped: list[str] = []

    def checked(self) -> Trace:
        """Return the trace without the formulas that fail, and a note on these."""
        twins = dict(self._run.inputs) if self._run is not None else {}
        places = [(named, twins.get(named.name or ""), named.name or "", 0) for named in self._trace.inputs]
        for step in self._trace.steps:
            raw = self._run.steps[step.index - 1] if self._run is not None and step.index <= self._common else None
            for place, output in enumerate(step.outputs):
                twin = raw.outputs[place].tensor if raw is not None else None
                places.append((output, twin, f"step {step.index}", place))
        with bound(self._sizes):
            records = [self._check(named.tensor, twin, where, place) for named, twin, where, place in places]
        # those that were not checked at the sizes held out are checked at those of this run
        with bound(self._numbers):
            tensors = [
                record
                if record.held_out or not holds(record.signature, record.shape, record.dtype)
                else replace(record, checked="inferred")
                for record in records
            ]
        named = iter([replace(place[0], tensor=tensor) for place, tensor in zip(places, tensors, strict=True)])
        inputs = tuple(itertools.islice(named, len(self._trace.inputs)))
        steps = tuple(
            replace(step, outputs=tuple(itertools.islice(named, len(step.outputs)))) for step in self._trace.steps
        )
        loops = tuple(self._loops())
        notes = list(self._trace.notes)
        if self._dropped:
            sizes = _listed_sizes(self._sizes)
            dropped = first_three(self._dropped)
            notes.append(f"wrong at the sizes held out ({sizes}), so shown as this run's number: {dropped}")
        return replace(self._trace, inputs=inputs, steps=steps, loops=loops, notes=tuple(notes))

    def _loops(self) -> Iterator[Loop]:
        twins = self._run.loops if self._run is not None else []
        if len(twins) != len(self._trace.loops):
            yield from self._trace.loops
            return
        for number, (loop, twin) in enumerate(zip(self._trace.loops, twins, strict=True), 1):
            place = (f"loop {number}", 0)
            if self._is_settled(place) and self._value(loop.expression) != twin.count:
                self._drop(place, loop.expression)
                loop = replace(loop, expression=str(loop.count), known="literal")
            yield loop

    def _check(self, record: TensorRecord, twin: RawTensor | None, where: str, output: int) -> TensorRecord:
        """Return a tensor without the formulas that fail, marked as checked where its whole signature holds."""
        if twin is None or len(twin.shape) != len(record.shape):
            return record
        axes, strides = list(record.axes), list(record.strides)
        settled = [self._is_settled((f"{where}: axis {place}", output)) for place in range(len(axes))]
        words = [axis.expression if known else "_" for axis, known in zip(axes, settled, strict=True)]
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
        if record.layout is UNSET and elements and record.bytes // elements != twin.itemsize:
            self._drop((where, output), "bytes per element")
            sound = False
        return replace(
            record,
            axes=tuple(axes),
            signature=" ".join(axis.expression for axis in axes),
            strides=tuple(strides),
            checked="inferred" if sound and all(settled) else None,
            held_out=sound and all(settled),
        )

    def _is_settled(self, where: Where) -> bool:
        """Return whether the number has a formula, which holds under conditions that the sizes held out meet."""
        formula = self._formulas.get(where)
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


def _is_met(condition: str | None, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition such as `W <= L` or `D >= 128` is met.

    >>> _is_met("W <= L", {"W": 3, "L": 7}), _is_met("L >= 128", {"L": 7})
    (True, False)
    """
    if condition is None:
        return True
    left, comparison, right = condition.split()
    first, second = parse_expression(left).evaluate(sizes), parse_expression(right).evaluate(sizes)
    return first <= second if comparison == "<=" else first >= second


def _listed_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())


def first_three(places: Sequence[str]) -> str:
    """Return the first three places as a list, and how many more there are.

    >>> first_three(["step 1", "step 2", "step 3", "step 4"])
    'step 1, step 2, step 3 and 1 more'
    """
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _annotation_holds(dims: str, kind: str | None, position: int, run: RawTrace, sizes: Mapping[str, int]) -> bool:
    """Return whether an annotation holds in a run; names in it that are no size symbols may be any size."""
    if position >= len(run.steps):
        return True
    tensor = run.steps[position].outputs[0].tensor
    with bound(sizes):
        return holds(dims, tensor.shape, tensor.dtype, kind)


def _complaint(step: Step, dims: str, kind: str | None, has_shape: bool) -> str:
    """Return what is wrong with an annotation: its `kind` where the dtype isn't of that kind, its shape, or both."""
    where = f"{step.source.file}:{step.source.line}: " if step.source else ""
    output = step.outputs[0]
    parts = [] if kind is None else [f"declared {kind} and has dtype {output.tensor.dtype}"]
    parts += [] if has_shape and parts else [f"declared {dims!r} and is {output.tensor.signature!r}"]
    return f"wrong annotation: {where}{output.name} is {', '.join(parts)}"


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
    if NO_SIZE in shape:
        return False
    try:
        named: Any = getattr(jaxtyping, kind or "", None)
        # not every dtype can be expanded, and without a kind only the families that jaxtyping knows matter
        known = kind is not None or kind_of(dtype) is not Shaped
        tensor = torch.empty((1,) * len(shape), dtype=getattr(torch, dtype) if known else None).expand(shape)
        return isinstance(tensor, (named if hasattr(named, "dtypes") else kind_of(dtype))[Tensor, signature])
    except (AnnotationError, NameError, SyntaxError, ValueError, RuntimeError, ZeroDivisionError):
        return False


def checks_work() -> bool:
    """Return whether jaxtyping notices a wrong signature, and wasn't disabled by JAXTYPING_DISABLE."""
    if jaxtyping.config.jaxtyping_disable:
        return False
    with bound({"n": 2}):
        return holds("n 3", (2, 3), "float32") and not holds("n 3", (3, 3), "float32")


def kind_of(dtype: str) -> Any:
    """Return jaxtyping's type for a dtype: `Float` for `float32`."""
    family = re.match("[a-z]*", dtype)
    kind = _KINDS.get(family[0] if family else "", Shaped)
    return kind if kind is Shaped or dtype in kind.dtypes else Shaped


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
    known = all(word in symbols for word in re.findall(r"[^\W\d]\w*", signature))
    return (Expected(OUTPUT, signature, kind),) if known and not set(signature) & set("#*.?=") else ()


def parse_expectations(signatures: Iterable[tuple[str, str]], symbols: Sequence[str]) -> tuple[Expected, ...]:
    """Return what is expected of each name. Raises AttnshapeError if a signature has an unknown symbol."""
    expected = tuple(Expected(name, signature) for name, signature in signatures)
    for wanted in expected:
        option = Option("expect", wanted.signature, wanted.name)
        for symbol in [symbol for axis in parse_axes(wanted.signature, option) for symbol in axis.symbols]:
            if symbol not in symbols:
                raise AttnshapeError(
                    (option, f": {symbol} isn't a size of this target"),
                    did_you_mean(symbol, symbols, "its sizes are"),
                )
    return expected


def verify(expected: Sequence[Expected], runs: Runs) -> tuple[Expectation, ...]:
    """Return the verdict on each: it holds where every tensor of that name has the signature, in every run.

    The first run is the user's. In the others all sizes differ, so that a wrong symbol of equal size shows. Raises
    AttnshapeError if no tensor has the name.
    """
    return tuple(_verdict(wanted, runs) for wanted in expected)


def _verdict(wanted: Expected, runs: Runs) -> Expectation:
    actual = runs[0][1]
    refuted = partial(Expectation, wanted.name, wanted.signature, False)
    if not tensors_named(wanted.name, actual):
        if actual.failure is not None:
            return refuted("the code failed before it was made")
        if _RETURNED.fullmatch(wanted.name):
            return refuted("nothing is returned there")
        names = [name for name, _ in actual.returned]
        names += [output.name for step in actual.steps for output in step.outputs if output.name]
        raise AttnshapeError(
            (Option("expect"), f" {wanted.name!r}: no tensor has that name"),
            did_you_mean(wanted.name, dict.fromkeys([OUTPUT, *names]), "the tensors with names are"),
        )
    for sizes, run in runs:
        for tensor in tensors_named(wanted.name, run):
            with bound(sizes):
                if not holds(wanted.signature, tensor.shape, tensor.dtype, wanted.kind):
                    where = f" (seen at {_listed_sizes(sizes)})" if run is not actual else ""
                    return refuted(_difference(wanted, tensor, sizes) + where)
    return Expectation(wanted.name, wanted.signature, True, None if len(runs) > 1 else "at this run's sizes only")


def _difference(wanted: Expected, tensor: RawTensor, sizes: Mapping[str, int]) -> str:
    words = wanted.signature.split()
    if len(words) != len(tensor.shape):
        return f"it has {len(tensor.shape)} axes {list(tensor.shape)}, expected {len(words)}"
    for position, (word, size) in enumerate(zip(words, tensor.shape, strict=True)):
        if size == NO_SIZE:
            return f"axis {position} has no single size, expected {word}"
        if (number := parse_expression(word).evaluate(sizes)) != size:
            equal = [symbol for symbol, value in sizes.items() if value == size]
            name = f"{equal[0]}={size}" if len(equal) == 1 else str(size)
            return f"axis {position} is {name}, expected {word}={number}"
    return f"its dtype is {tensor.dtype}, expected {wanted.kind}"


def tensors_named(name: str, run: RawTrace) -> list[RawTensor]:
    """Return the run's tensors of a name; for `output` what the target returned, the first of several."""
    if returned_at := _RETURNED.fullmatch(name):
        references = [reference for _, reference in run.returned][int(returned_at[1]) :][:1]
        return [tensor for reference in references if (tensor := tensor_of(reference, run)) is not None]
    outputs = [output for step in run.steps for output in step.outputs]
    tensors = [output.tensor for output in outputs if name in (output.name, output.local_name)]
    tensors += [tensor for input_name, tensor in run.inputs if input_name == name]
    first = run.returned[0][1] if name == OUTPUT and run.returned else None
    reference = dict(run.returned).get(name, first)
    returned = tensor_of(reference, run) if reference is not None else None
    if returned is not None and all(returned is not tensor for tensor in tensors):
        tensors.append(returned)
    return tensors


def tensor_of(reference: Reference, run: RawTrace) -> RawTensor | None:
    """Return the tensor that a reference means, where it is a step's output or an input."""
    if reference.step is not None:
        return run.steps[reference.step - 1].outputs[reference.output].tensor
    return next((tensor for name, tensor in run.inputs if name == reference.input), None)
