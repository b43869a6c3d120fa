"""Explains why a call failed: finds the first diagnosis that applies, and tries its fixes."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attnshape.diagnostics import broadcasting, dtypes, indexing, joins, products, reshapes
from attnshape.diagnostics.context import FailureContext, failure_context
from attnshape.diagnostics.diagnosis import Diagnosis, Fix
from attnshape.errors import exception_text
from attnshape.inference.assemble import SimilarFailures
from attnshape.inference.solver import matched
from attnshape.model.trace import Failure, NamedTensor, Operand, Source, Step, TensorRecord
from attnshape.runtime.files import display_path
from attnshape.tracing.raw import OpaqueArgument, RawCall, RawFailure, RawTensor, TensorSlot

_MOST_ELEMENTS = 2**20
_LONGEST_AXIS = 2**11
"""Placeholders beyond these are on the meta device, since a result computed from them could be large."""

Shape = tuple[int, ...]


def find_hint(context: FailureContext, fixes: Sequence[Fix]) -> str | None:
    """Return the most usual fix that works, in words; None if none works, or several equally usual ones do.

    A fix works if the call then succeeds at the user's sizes and at those of every small run that failed alike.
    """
    if not fixes or _result_shapes(context, Fix("")) is not None:  # without any fix, the call must fail
        return None
    for _, group in itertools.groupby(sorted(fixes, key=lambda fix: fix.rank), key=lambda fix: fix.rank):
        working = [(fix, shapes) for fix in group if (shapes := _result_shapes(context, fix)) is not None]
        if working:
            (fix, shapes), *others = working
            signature = " ".join(_axis(context, small, actual) for actual, *small in zip(*shapes, strict=True))
            makes = "works" if fix.inner else f"makes it {signature or 'a scalar'}"
            return f"{fix.text} {makes} (tried)" if not others else None
    return None


def _result_shapes(context: FailureContext, fix: Fix) -> list[Shape] | None:
    """Return the result's shape at the user's sizes, then in each small run; None if one of them fails."""
    shapes: list[Shape] = []
    for failure in (context.failure, *context.similar.failures):
        shape = _result_shape(failure, context.device, fix)
        operands = [operand.tensor.shape for operand in failure.operands]
        if shape is None or (shapes and len(shape) != len(shapes[0])) or not fix.accepts(shape, operands):
            return None
        shapes.append(shape)
    return shapes


def _result_shape(failure: RawFailure, device: str, fix: Fix) -> Shape | None:
    """Return the shape of the fixed call's result; None if it fails or can't be tried."""
    call = failure.call
    if call is None:
        return None
    tensors = [operand.tensor for operand in failure.operands]
    kinds = [tensor.device.partition(":")[0] for tensor in tensors]
    home = device if device in kinds else kinds[0]

    def attempt(real: bool) -> Shape | None:
        # a tensor on another device than the run's gets the other kind of placeholder, so that the two still differ
        on_cpu = [real == (kind == home) for kind in kinds]
        return _attempt(call, [_placeholder(*pair) for pair in zip(tensors, on_cpu, strict=True)], fix)

    shape = attempt(real=False)
    # the meta device ignores some dtype errors; a real run needs memory for its result
    small = max(sum(map(_elements, tensors)), math.prod(shape or ())) <= _MOST_ELEMENTS
    short = all(size <= _LONGEST_AXIS for tensor in tensors for size in tensor.shape)
    return attempt(real=True) if small and short else shape


def _attempt(call: RawCall, tensors: list[Tensor], fix: Fix) -> Shape | None:
    def fill(value: object) -> object:
        if isinstance(value, OpaqueArgument):
            raise TypeError("an argument wasn't recorded")
        return operands[value.operand] if isinstance(value, TensorSlot) else value

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fixed, operands = fix.call(call), fix.tensors(tensors)
            result = fixed.function(*tree_map(fill, fixed.args), **tree_map(fill, dict(fixed.keywords)))
    except Exception:  # noqa: BLE001 - whatever it raises, the fix doesn't work
        return None
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    return tuple(first.shape) if isinstance(first, Tensor) else None


def _placeholder(tensor: RawTensor, on_cpu: bool) -> Tensor:
    dtype, device = getattr(torch, tensor.dtype), "cpu" if on_cpu else "meta"
    if len(tensor.stride) != len(tensor.shape):  # a sparse tensor has no strides
        return torch.zeros(tensor.shape, dtype=dtype, device=device)
    return torch.zeros(_elements(tensor), dtype=dtype, device=device).as_strided(tensor.shape, tensor.stride)


def _elements(tensor: RawTensor) -> int:
    """Return the number of elements in the memory that a tensor spans."""
    if not math.prod(tensor.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=False))


def _axis(context: FailureContext, small: Sequence[int], actual: int) -> str:
    if small:
        return context.similar.formula(small, actual).text
    known = {
        axis.expression
        for operand in context.operands
        for axis, size in zip(operand.record.axes, operand.shape, strict=True)
        if size == actual and axis.known == "verified"
    }
    return known.pop() if len(known) == 1 else matched(actual, context.similar.numbers).text


KINDS: tuple[Callable[[FailureContext], Diagnosis | None], ...] = (
    dtypes.devices,
    dtypes.dtypes,
    products.multihead,
    products.einsum,
    products.contraction,
    products.tensordot,
    reshapes.incompatible_strides,
    reshapes.wrong_element_count,
    reshapes.wrong_unflatten_sizes,
    joins.split_sizes,
    broadcasting.expanding,
    broadcasting.writing,
    joins.joining,
    indexing.indices,
    products.normalized,
    products.channels,
    indexing.ranks,
    broadcasting.broadcasting,
    reshapes.einops_pattern,
    joins.unpacking,
    joins.assertion,
)
"""The kinds of diagnosis, in the order in which they are tried. Each returns None for a failure of another kind."""


def failure_of(
    similar: SimilarFailures, inputs: Sequence[NamedTensor], steps: Sequence[Step], device: str, dtype: str
) -> Failure:
    """Return the failure as the trace saves it, from the trace's inputs and the steps before the failure.

    `device` and `dtype` are the run's; the dtype is its default for floating-point numbers.
    """
    raw = similar.actual
    context = failure_context(similar, inputs, steps, device.partition(":")[0], dtype)
    explanation, disagree, hint = _explain(context)
    place = raw.location
    return Failure(
        expression=place.expression or None if place else None,
        source=Source(display_path(place.file), place.line, place.column, place.function) if place else None,
        operation=raw.operation,
        error=f"{type(raw.error).__name__}: {exception_text(raw.error)}".removesuffix(": "),
        operands=_operands(context, disagree),
        explanation=explanation,
        hint=hint,
    )


def diagnose(context: FailureContext) -> Diagnosis | None:
    """Return the diagnosis of the first kind that applies; None if none does."""
    return next((diagnosis for kind in KINDS if (diagnosis := kind(context)) is not None), None)


def _explain(context: FailureContext) -> tuple[str | None, Mapping[int, tuple[int, ...]], str | None]:
    if any(operand.tensor.layout or operand.tensor.symbols for operand in context.failure.operands):
        return None, {}, None  # the explanations and the placeholders are those of tensors with strides
    try:
        diagnosis = diagnose(context)
        if diagnosis is not None:
            uneven = joins.uneven_parts(context) if diagnosis.disagree else None
            explanation = f"{diagnosis.explanation}; {uneven}" if uneven else diagnosis.explanation
            # a fix inside a library's call doesn't show that the rest of the call succeeds
            fixes = [fix for fix in diagnosis.fixes if context.failure.own or fix.inner]
            return explanation, diagnosis.disagree, find_hint(context, fixes)
    except Exception:  # noqa: BLE001 - without an explanation, a failure still has its line and its operands
        pass
    return None, {}, None


def _operands(context: FailureContext, disagree: Mapping[int, tuple[int, ...]]) -> tuple[Operand, ...]:
    """Return each operand once, even if it was passed several times."""
    marks: dict[str, set[int]] = {}
    records: dict[str, TensorRecord] = {}
    for operand in context.operands:
        name = operand.name
        if records.get(name, operand.record) != operand.record:
            name = f"{name} (operand {operand.position + 1})"
        records[name] = operand.record
        marks.setdefault(name, set()).update(disagree.get(operand.position, ()))
    return tuple(Operand(name, record, tuple(sorted(marks[name]))) for name, record in records.items())
