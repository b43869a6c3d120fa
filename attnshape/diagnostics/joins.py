"""Joins and splits whose parts don't match, unpacking, and assertions about sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from attnshape.diagnostics.context import FailedOperand, FailureContext, flat_integers
from attnshape.diagnostics.diagnosis import (
    Diagnosis,
    Fix,
    axis_is,
    axis_name,
    has_axes,
    quoted,
    size_of,
    swap_axes,
    unsqueeze,
)
from attnshape.model.formatting import join_words, pluralize
from attnshape.tracing.operations import JOINS, SPLITS, base_name
from attnshape.tracing.raw import RawCall

_UNPACKED = re.compile(r"(?:too many|not enough) values to unpack \(expected (\d+)")


def joining(context: FailureContext) -> Diagnosis | None:
    """Explain tensors that can't be concatenated or stacked."""
    tensors, dim = context.argument(0, "tensors"), context.argument(1, "dim", "axis")
    if context.operation not in JOINS or not isinstance(tensors, (tuple, list)) or len(tensors) < 2:
        return None
    first, *others = [context.operands[tensor.operand] for tensor in tensors]
    dim = dim if type(dim) is int else 0
    along = None if context.operation == "stack" or not -first.rank <= dim < first.rank else dim % first.rank
    for other in others:
        if other.rank != first.rank:
            small, large = sorted((first, other), key=lambda operand: operand.rank)
            axes = range(large.rank) if small.rank + 1 == large.rank else ()
            return Diagnosis(
                f"{context.operation} needs equal numbers of axes: {has_axes(first)}; {has_axes(other)}",
                fixes=[fix for axis in axes for fix in unsqueeze(small, axis)],
            )
        wrong = tuple(axis for axis in range(first.rank) if axis != along and first.shape[axis] != other.shape[axis])
        if wrong:
            parts = [
                f"{axis_name(axis, first.rank)} is {size_of(first, axis)} in {quoted(first)} and "
                f"{size_of(other, axis)} in {quoted(other)}"
                for axis in wrong
            ]
            but = f" except {axis_name(along, first.rank)}" if along is not None else ""
            return Diagnosis(
                f"{context.operation} needs equal sizes in all axes{but}: {'; '.join(parts)}",
                {first.position: wrong, other.position: wrong},
                _fixes_to_join(context, first, other, along),
            )
    return None


def _fixes_to_join(
    context: FailureContext, first: FailedOperand, other: FailedOperand, along: int | None
) -> Iterator[Fix]:
    """Yield fixes that concatenate along another axis, or swap two axes of a tensor."""
    if along is not None:
        dim = context.argument(1, "dim", "axis")
        for axis in range(first.rank):
            number = axis - first.rank if type(dim) is int and dim < 0 else axis
            text = re.sub(r"((?:dim|axis)\s*=\s*|[)\]]\s*,\s*)-?\d+\)$", rf"\g<1>{number})", context.expression)
            if axis != along and text != context.expression:
                yield Fix(text, call=partial(_along, axis))
    for operand in (other, first):
        for axes in ((1, 2), (0, 1), (-2, -1)):
            if operand.rank > max(*axes, 1):
                yield from swap_axes(operand, *axes, rank=1)


def _along(axis: int, call: RawCall) -> RawCall:
    keywords = {word: value for word, value in call.keywords.items() if word not in ("dim", "axis")}
    return replace(call, args=call.args[:1], keywords={**keywords, "dim": axis})


def split_sizes(context: FailureContext) -> Diagnosis | None:
    """Explain a split into sizes whose sum isn't the axis's size."""
    operand, dim = context.operand(0, "tensor", "input"), context.argument(2, "dim")
    splits = context.operation in ("split", "split_with_sizes") and "sum exactly" in context.message
    if not splits or operand is None:
        return None
    try:
        sizes = flat_integers(context.argument(1, "split_size_or_sections", "split_sizes", "split_size"))
    except TypeError:
        return None
    axis = (dim if type(dim) is int else 0) % operand.rank
    total = f"the sizes of the split, {join_words(list(map(str, sizes)))}, add up to {sum(sizes):,}"
    return Diagnosis(f"{total}: {axis_is(operand, axis)}", {operand.position: (axis,)})


def unpacking(context: FailureContext) -> Diagnosis | None:
    """Explain a shape, a tensor or a split that is unpacked into another number of names."""
    expected = _UNPACKED.search(context.message)
    if context.failure.operation is not None or not isinstance(context.failure.error, ValueError) or not expected:
        return None
    names = pluralize(int(expected[1]), "name")
    if parts := _unpacked_parts(context, names):
        return parts
    if not context.operands:
        return None
    operand = context.operands[0]
    if re.search(r"\.(shape|size\(\))\s*(#.*)?$", context.expression):
        return Diagnosis(f"{has_axes(operand)}: its sizes are unpacked into {names}")
    if operand.rank and context.expression.endswith(f"= {operand.name}"):
        return Diagnosis(f"{quoted(operand)} is unpacked into {names}: {axis_is(operand, 0)}", {operand.position: (0,)})
    return None


def _unpacked_parts(context: FailureContext, names: str) -> Diagnosis | None:
    """Explain the unpacking of a split in the failing line itself."""
    place = context.failure.location
    last = context.steps[-1] if context.steps else None
    if place is None or last is None or last.source is None:
        return None
    if (last.source.line, last.source.function) != (place.line, place.function):
        return None
    operation = base_name(last.operation)
    if operation not in SPLITS or f"{operation}(" not in context.expression:
        return None
    signatures = join_words(list(dict.fromkeys(output.tensor.signature or "a scalar" for output in last.outputs)))
    returned = pluralize(len(last.outputs), "tensor")
    return Diagnosis(f"{operation} returns {returned}, {signatures}, which are unpacked into {names}")


def uneven_parts(context: FailureContext) -> str | None:
    """Return a clause where an operand comes from a split whose last part is smaller than the others."""
    for operand in context.failure.operands:
        of = operand.tensor.of
        while of is not None and of.step is not None:
            step = context.steps[of.step - 1]
            shapes = [output.tensor.shape for output in step.outputs]
            if base_name(step.operation) in SPLITS and len(set(shapes[:-1])) == 1 and shapes[-1] < shapes[0]:
                (axis,) = (axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)
                sizes = join_words([str(shape[axis]) for shape in shapes])
                return f"step {step.index}, {' '.join(step.expression.split())}, returns parts of {sizes}"
            of = step.outputs[of.output].tensor.storage.of
    return None


def assertion(context: FailureContext) -> Diagnosis | None:
    """Explain an assertion about sizes by the numbers in it."""
    values = context.failure.values
    if not isinstance(context.failure.error, AssertionError) or context.failure.operation is not None or not values:
        return None
    numbers = join_words([f"{name} is {number:,}" for name, number in values.items()])
    remainder = ""
    for whole, part in re.findall(r"([\w.\[\]-]+) % ([\w.\[\]-]+)", context.expression):
        if whole in values and values.get(part) and values[whole] % values[part]:
            remainder = f"; {whole} leaves {values[whole] % values[part]} when divided by {part}"
    return Diagnosis(f"the assertion doesn't hold: {numbers}{remainder}")
