"""Views and reshapes to a wrong number of elements, and views with incompatible strides."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from attnshape.diagnostics.context import FailedOperand, FailureContext, integer_arguments, parse_expression
from attnshape.diagnostics.diagnosis import (
    Diagnosis,
    Fix,
    axes_of,
    axis_is,
    call_instead,
    has_axes,
    product,
    quoted,
    size_of,
    sized,
)
from attnshape.model.formatting import join_words
from attnshape.model.trace import Reference, Step, TensorRecord
from attnshape.tracing.operations import RESHAPES_TO_SIZES
from attnshape.tracing.raw import RawCall

_SHAPE = (1, "shape", "size")
"""The position and the keywords of the new shape in a call's arguments."""


def wrong_element_count(context: FailureContext) -> Diagnosis | None:
    """Explain a new shape whose number of elements differs from the old shape's."""
    operand, named = context.operand(0, "input", "self"), _named_sizes(context, *_SHAPE)
    if operand is None or not named or context.operation not in RESHAPES_TO_SIZES:
        return None
    new = [number for _, number in named]
    old, known = math.prod(operand.shape), _known_product(new)
    if new.count(-1) > 1 or (old == known if -1 not in new else known and old % known == 0):
        return None
    before, after = _equation(zip(operand.symbols, operand.shape, strict=True)), _equation(named)
    changed, new_axes = _changed_axes(operand, new)
    new_count = f"the new shape has {after}" if -1 not in new else f"which isn't a multiple of {after}"
    remainder = _remainder(operand, changed, [named[axis] for axis in new_axes])
    return Diagnosis(
        f"{context.operation} keeps the number of elements: "
        f"{quoted(operand)} has {before} elements, {new_count}{remainder}",
        {operand.position: changed},
        _fixes_with_inferred_size(context, operand, new) if -1 not in new else (),
    )


def _named_sizes(context: FailureContext, start: int, *keywords: str) -> list[tuple[str, int]]:
    """Return the sizes among the arguments with their formulas; -1, 0 and 1 are shown as numbers."""
    sizes = context.integers(start, *keywords) or []
    return [(text if number > 1 else str(number), number) for text, number in sizes]


def _known_product(sizes: Iterable[int]) -> int:
    return math.prod(size for size in sizes if size != -1)


def _equation(sizes: Iterable[tuple[str, int]]) -> str:
    """Return the product of sizes other than -1, and its value."""
    known = [(text, number) for text, number in sizes if number != -1]
    text, number = product([text for text, _ in known]), math.prod(number for _, number in known)
    return f"{number:,}" if text.replace("*", "").isdecimal() else f"{text} = {number:,}"


def _changed_axes(operand: FailedOperand, new: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """Return the axes of the old and of the new shape that remain without the equal axes at both ends."""
    shortest = min(operand.rank, len(new))
    start = next((axis for axis in range(shortest) if operand.shape[axis] != new[axis]), shortest)
    rest = shortest - start
    end = next((back for back in range(rest) if operand.shape[-1 - back] != new[-1 - back]), rest)
    return tuple(range(start, operand.rank - end)), list(range(start, len(new) - end))


def _remainder(operand: FailedOperand, changed: Sequence[int], parts: Sequence[tuple[str, int]]) -> str:
    """Return a clause if one axis is split into parts that don't divide it, else an empty string."""
    if len(changed) != 1 or len(parts) < 2:
        return ""
    whole = operand.shape[changed[0]]
    for text, number in parts:
        others = math.prod(other for part, other in parts if (part, other) != (text, number))
        if number > 1 and whole % number and whole // number == others:
            return f"; {size_of(operand, changed[0])} isn't a multiple of {sized(text, number)}"
    return ""


def _fixes_with_inferred_size(context: FailureContext, operand: FailedOperand, new: Sequence[int]) -> Iterator[Fix]:
    """Yield the calls with -1 in place of one size."""
    tree = parse_expression(context.expression)
    if not isinstance(tree, ast.Call) or context.call is None or len(context.call.args) < 2:
        return
    sizes: Sequence[ast.expr] = tree.args if len(context.call.args) == len(tree.args) + 1 else tree.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    if len(sizes) != len(new) or any(isinstance(size, ast.Starred) for size in sizes):
        return
    for axis, node in enumerate(sizes):
        text = f"{context.expression[: node.col_offset]}-1{context.expression[node.end_col_offset :]}"
        # the usual mistake is in merging heads: only the last axis is wrong
        merges_heads = axis == len(new) - 1 and tuple(new[:axis]) == operand.shape[:axis]
        yield Fix(text, call=partial(_infer_axis, axis), rank=0 if merges_heads else 1)


def _infer_axis(axis: int, call: RawCall) -> RawCall:
    shape = integer_arguments(call, *_SHAPE)
    return replace(call, args=(call.args[0], (*shape[:axis], -1, *shape[axis + 1 :])), keywords={})


def wrong_unflatten_sizes(context: FailureContext) -> Diagnosis | None:
    """Explain an unflatten into sizes whose product isn't the axis's size."""
    operand, axis = context.operand(0, "input", "self"), context.argument(1, "dim")
    if context.operation != "unflatten" or operand is None or type(axis) is not int:
        return None
    if not any(words in context.message for words in ("multiply up", "don't divide", "divis")):
        return None
    parts = _named_sizes(context, 2, "sizes")
    if not parts or not -operand.rank <= axis < operand.rank:
        return None
    axis %= operand.rank
    problem = f"the product of the sizes is {_equation(parts)}: {axis_is(operand, axis)}"
    return Diagnosis(f"{problem}{_remainder(operand, [axis], parts)}", {operand.position: (axis,)})


# views with incompatible strides


def incompatible_strides(context: FailureContext) -> Diagnosis | None:
    """Explain a view whose tensor has incompatible strides."""
    operand = context.operand(0, "input", "self")
    if context.operation != "view" or operand is None or "stride" not in context.message:
        return None
    step = _step_that_made_non_contiguous(context, operand)
    if step is None:
        why = f"{quoted(operand)} is a non-contiguous input"
    else:
        source = f" ({step.source.file}:{step.source.line})" if step.source is not None else ""
        text = " ".join(step.expression.split())
        which = f"step {step.index}{source}" if text == operand.name else f"step {step.index}, {text}{source},"
        why = f"{which} made {quoted(operand)} non-contiguous"
    nonadjacent = tuple(sorted({at for axis in _gaps(context, operand) for at in (axis, axis + 1)}))
    problem = f"regroup {axes_of(operand)}"
    if nonadjacent:
        problem = f"join {join_words([operand.symbols[axis] for axis in nonadjacent])}, which aren't adjacent in memory"
    reshaped = call_instead(_with_method(context.expression, "reshape"), torch.Tensor.reshape)
    copied = call_instead(
        _with_method(context.expression, "contiguous().view"),
        lambda tensor, *shape: tensor.contiguous().view(*shape),
        rank=1,
    )
    return Diagnosis(f"view can't {problem}: {why}", {operand.position: nonadjacent}, reshaped + copied)


def _step_that_made_non_contiguous(context: FailureContext, operand: FailedOperand) -> Step | None:
    """Return the step that made an operand non-contiguous: the last step that read a contiguous tensor."""
    of = context.failure.operands[operand.position].tensor.of
    while of is not None and of.step is not None:
        step = context.steps[of.step - 1]
        source = _non_contiguous_source(context, step, step.outputs[of.output].tensor)
        if source is None:
            return step
        of = source
    return None


def _non_contiguous_source(context: FailureContext, step: Step, tensor: TensorRecord) -> Reference | None:
    """Return the non-contiguous tensor whose strides a step's result keeps; None if the step changed them."""
    is_new = tensor.storage.kind == "new"
    # elementwise operations keep the memory order of their operand
    for reference in step.operands if is_new else [tensor.storage.of]:
        if reference is not None and reference.step is not None:
            earlier = context.steps[reference.step - 1].outputs[reference.output].tensor
            if not earlier.contiguous and (not is_new or earlier.shape == tensor.shape):
                return reference
    return None


def _gaps(context: FailureContext, operand: FailedOperand) -> list[int]:
    """Return each axis that the view merges with the next axis although they aren't adjacent in memory."""
    new = [number for _, number in context.integers(*_SHAPE) or ()]
    inferred = math.prod(operand.shape) // _known_product(new)
    changed, _ = _changed_axes(operand, [inferred if size == -1 else size for size in new])
    stride, shape = operand.record.stride, operand.shape
    return [
        axis
        for axis in changed[:-1]
        if axis + 1 < len(stride)
        and 1 not in shape[axis : axis + 2]
        and stride[axis] != stride[axis + 1] * shape[axis + 1]
    ]


def _with_method(expression: str, method: str) -> str | None:
    """Return `x.reshape(…)` for `x.view(…)`; None for other expressions."""
    tree = parse_expression(expression)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr != "view":
        return None
    end = tree.func.end_col_offset or 0
    return f"{expression[: end - len('view')]}{method}{expression[end:]}"


# einops

_CHUNKS = re.compile(r"can't divide axis of length (\d+) in chunks of (\d+)")
_RANK = re.compile(r"[Ee]xpected (\d+) dims\. Received (\d+)-dim")


def einops_pattern(context: FailureContext) -> Diagnosis | None:
    """Explain an einops pattern with the wrong number of axes, or that splits an axis unevenly."""
    if type(context.failure.error).__name__ != "EinopsError" or len(context.operands) != 1:
        return None
    (operand,) = context.operands
    if match := _RANK.search(context.message):
        return Diagnosis(f"{has_axes(operand)}: the pattern names {match[1]}")
    match = _CHUNKS.search(context.message)
    if not match or operand.shape.count(int(match[1])) != 1:
        return None
    axis = operand.shape.index(int(match[1]))
    problem = f"{size_of(operand, axis)} of {quoted(operand)} isn't a multiple of {match[2]}"
    return Diagnosis(problem, {operand.position: (axis,)})
