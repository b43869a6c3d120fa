"""One plain sentence a step for `--explain`: what it does to which axis, why, and where the result is stored.

A sentence claims only what the trace shows.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable
from math import isqrt, prod, sqrt

from msgspec import UNSET

from attnshape.model.formatting import format_bytes, join_words, unfold
from attnshape.model.references import operand_records, operand_role, reference_name
from attnshape.model.trace import UNKNOWN_FORMULA, Step, TensorRecord, Trace
from attnshape.tracing import operations as ops

HEADS = ("H", "Hkv")
"""The expressions of axes that count heads."""
GROUPED_HEADS = (*HEADS, "G")
"""The same, with that of the query heads which share one key and value head."""

AxisSize = tuple[str, int]
"""The expression of an axis and its size."""

_VERBS = {"add": "Adds", "sub": "Subtracts", "mul": "Multiplies"}
_OTHER_FACTOR = "other"
"""The argument of `mul` and `div` that is a number, where it isn't a tensor."""
_ROOT = re.compile(r"/\s*(?:math\.|np\.|torch\.)?sqrt\(\s*(?:self\.)?(\w+)\s*\)$")
_INFINITE = re.compile(r"\binf\b")
_NEAR = 64
"""How many steps ahead to look for the reason of a step; long traces stay fast."""


def explain(trace: Trace, step: Step) -> str:
    """Return a sentence about a step, with the numbers of this run."""
    if len(step.outputs) != 1:
        return _explain_outputs(trace, step)
    result = step.outputs[0].tensor
    describe = OPERATIONS.get(ops.base_name(step.operation))
    action = describe(trace, step, result, operand_records(trace, step)) if describe else None
    action = action or f"{ops.short_name(step.operation)} gives {_signature(result)}"
    find_reason = REASONS.get(step.role or "")
    reason = find_reason(trace, step, result) if find_reason else ""
    return f"{action}{f', {reason}' if reason else ''}; {_place(trace, step, result)}."


def _explain_outputs(trace: Trace, step: Step) -> str:
    if not step.outputs:
        return f"{ops.short_name(step.operation)} gives no tensor."
    tensors = [output.tensor for output in step.outputs]
    kinds = list(dict.fromkeys(map(_signature, tensors)))
    signatures = f"{kinds[0]} each" if len(kinds) == 1 else ", ".join(map(_signature, tensors))
    places = list(dict.fromkeys(_place(trace, step, tensor) for tensor in tensors))
    place = f"; {places[0]}" if len(places) == 1 else ""
    given = operand_records(trace, step)
    if ops.base_name(step.operation) in ops.SPLITS and given and (cut := _cut_axis(given[0], tensors)) is not None:
        where = axis_position(cut, len(given[0].shape))
        return (
            f"Cuts {where}, {axis_label(tensor_axes(given[0])[cut])}, into {len(tensors)} tensors, {signatures}{place}."
        )
    return f"{ops.short_name(step.operation)} gives {len(tensors)} tensors, {signatures}{place}."


def _cut_axis(before: TensorRecord, parts: list[TensorRecord]) -> int | None:
    """Return the axis along which a tensor is cut into parts; None if it is unclear."""
    shape, own = before.shape, parts[0].shape
    axes = range(len(shape))
    if len(own) == len(shape) - 1:  # as of unbind
        fitting = [axis for axis in axes if shape[axis] == len(parts) and (*shape[:axis], *shape[axis + 1 :]) == own]
    else:
        fitting = [axis for axis in axes if len(own) == len(shape) and own[axis] != shape[axis]]
    return fitting[0] if len(fitting) == 1 else None


def _place(trace: Trace, step: Step, tensor: TensorRecord) -> str:
    source = tensor.storage.of
    of = f"{'step ' if source and source.step else ''}{reference_name(source, trace.steps)}"
    layout = "it wraps other tensors" if tensor.layout == "wrapper" else f"its layout is {tensor.layout or 'unknown'}"
    if tensor.storage.kind == "view" and OPERATIONS.get(ops.base_name(step.operation)) is _permute:
        return f"only the strides change, to {' '.join(map(str, tensor.stride))}: a view of {of}"
    return {
        "new": f"new storage of {format_bytes(tensor.bytes)}",
        "view": f"no data is copied: a view of {of}",
        "same": f"nothing is copied: the same tensor as {of}",
        "unknown": f"the result has no storage of its own: {layout}",
        "inplace": f"written in place into {of}",
    }[tensor.storage.kind]


def tensor_axes(tensor: TensorRecord) -> list[AxisSize]:
    """Return the axes of a tensor with their sizes."""
    return list(zip((axis.expression for axis in tensor.axes), tensor.shape, strict=False))


def axis_label(axis: AxisSize) -> str:
    """Return an axis with its size.

    >>> axis_label(("Dk", 64)), axis_label(("1", 1))
    ('Dk=64', '1')
    """
    expression, size = axis
    return str(size) if expression.isdecimal() else f"{expression}={size}"


def axis_position(index: int, rank: int) -> str:
    """Return the words for the axis of an index.

    >>> [axis_position(index, 4) for index in (3, 2, 0, 1)]
    ['the last axis', 'the second-to-last axis', 'the first axis', 'axis 1']
    """
    if index == rank - 1:
        return "the last axis"
    if index == 0:
        return "the first axis"
    return "the second-to-last axis" if index == rank - 2 else f"axis {index}"


def _signature(tensor: TensorRecord) -> str:
    return tensor.signature or "a scalar"


def _becomes(before: TensorRecord, after: TensorRecord) -> str:
    return f"{_signature(before)} becomes {_signature(after)}"


def _reshape(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if not given:
        return None
    start, removed, added = _difference(tensor_axes(given[0]), tensor_axes(result))
    if prod(size for _, size in removed) != prod(size for _, size in added):
        return None
    old, new = list(map(axis_label, removed)), list(map(axis_label, added))
    if len(old) == 1 and len(new) > 1:
        heads = len(new) == 2 and added[0][0] in HEADS and start == len(given[0].shape) - 1
        parts = f"{new[0]} heads of {new[1]} features each" if heads else " × ".join(new)
        return f"Splits {axis_position(start, len(given[0].shape))}, {old[0]}, into {parts}"
    if len(new) == 1 and len(old) > 1:
        return f"Joins the axes {join_words(old)} into one of {new[0]}"
    if not removed and not added:
        return None
    if removed and added:
        does = "Views the same elements with" if result.storage.kind == "view" else "Arranges the same elements in"
        return f"{does} other axes: {_becomes(given[0], result)}"
    ones = "an axis of size 1" if len(old + new) == 1 else f"{len(old + new)} axes of size 1"
    return f"{'Adds' if added else 'Drops'} {ones}: {_becomes(given[0], result)}"


def _permute(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if not given or sorted(tensor_axes(given[0])) != sorted(tensor_axes(result)):
        return None
    before = list(zip(tensor_axes(given[0]), given[0].stride, strict=True))
    after = list(zip(tensor_axes(result), result.stride, strict=True))
    if sorted(before) != sorted(after) or len(set(before)) < len(before):
        return f"Reorders the axes: {_becomes(given[0], result)}"
    moved = [index for index, axis in enumerate(before) if axis != after[index]]
    if len(moved) == 2:
        first, second = (axis_label(before[index][0]) for index in moved)
        last = moved == [len(before) - 2, len(before) - 1]
        where = "the last two axes" if last else f"axes {moved[0]} and {moved[1]}"
        return f"Swaps {where}, {first} and {second}"
    return f"Reorders the axes: {_becomes(given[0], result)}" if moved else "Leaves the axes in their order"


def _copy(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if result.storage.kind == "same":
        return "Finds the elements in row-major order already"
    if result.storage.kind != "new" or not given:
        return None
    reorders = result.contiguous and not given[0].contiguous
    return f"Copies {prod(result.shape):,} elements{' into row-major order' if reorders else ''}"


def _join(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if len(given) < 2 or len({len(tensor.shape) for tensor in (*given, result)}) > 1:
        return None
    rank = len(result.shape)
    grown = [index for index in range(rank) if any(one.shape[index] != result.shape[index] for one in given)]
    if len(grown) != 1 or sum(one.shape[grown[0]] for one in given) != result.shape[grown[0]]:
        return None
    parts = [axis_label(tensor_axes(one)[grown[0]]) for one in given]
    each = f"{len(given)} tensors of {parts[0]}" if len(set(parts)) == 1 else f"tensors of {join_words(parts)}"
    return f"Concatenates {each} along {axis_position(grown[0], rank)} into {axis_label(tensor_axes(result)[grown[0]])}"


def _expand(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    return f"Repeats axes of size 1 without a copy: {_becomes(given[0], result)}" if given else None


def _difference(before: list[AxisSize], after: list[AxisSize]) -> tuple[int, list[AxisSize], list[AxisSize]]:
    """Return where two lists of axes begin to differ, and the axes of each list that the other lacks."""
    shortest = min(len(before), len(after))
    start = next((index for index in range(shortest) if before[index] != after[index]), shortest)
    rest = shortest - start
    end = next((index for index in range(rest) if before[-1 - index] != after[-1 - index]), rest)
    return start, before[start : len(before) - end], after[start : len(after) - end]


def _linear(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if not given or not given[0].shape or not result.shape:
        return None
    by = "a learned matrix" if _has_parameter(step) else "a matrix"
    before, after = axis_label(tensor_axes(given[0])[-1]), axis_label(tensor_axes(result)[-1])
    return f"Maps each of {prod(result.shape[:-1]):,} vectors from {before} to {after} features with {by}"


def _has_parameter(step: Step) -> bool:
    return any(operand.parameter for operand in step.operands)


def _product(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    contracted = _contracted(step, result, given)
    if contracted is None and step.role == "context" and len(given) == 2:
        before = join_words([tensor.signature for tensor in given])
        return f"Sums the values by their weights: {before} become {_signature(result)}"
    if contracted is None:
        return None
    what = f"Contracts {axis_label(contracted)}: "
    matrices = len(given) > 1 and all(len(one.shape) > 1 for one in given[:2])
    if step.role == "scores" and matrices and not _has_parameter(step):
        each = " × ".join(map(axis_label, tensor_axes(result)))
        return f"{what}{prod(result.shape):,} scores ({each}), each the dot product of a query and a key"
    weights_first = step.operands and operand_role(trace, step.operands[0]) in ("softmax", "dropout")
    if step.role == "context" and result.shape and weights_first and ops.short_name(step.operation) != "einsum":
        each = f"each of {prod(result.shape[:-1]):,} vectors of {axis_label(tensor_axes(result)[-1])} features"
        return f"{what}{each} is a weighted sum of {contracted[1]:,} values"
    before = " and ".join(tensor.signature for tensor in given[:2])
    return f"{what}{before} become {_signature(result)}"


def _softmax(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    noun = "scores" if step.role == "softmax" else "elements"
    axis, rank = _softmax_axis(step.expression), len(result.shape)
    if axis is None or not -rank <= axis < rank:
        return f"Normalizes {noun} into weights that sum to 1"
    chosen = tensor_axes(result)[axis]
    rows = prod(result.shape) // chosen[1] if chosen[1] else 0
    position = axis_position(axis % rank, rank)
    return f"Normalizes {rows:,} vectors of {axis_label(chosen)} {noun}, along {position}, into weights that sum to 1"


def _divide(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    divides = f"Divides each of {prod(result.shape):,} {_elements(step, given)}"
    if factor := _factor_label(step):
        return f"{divides} by {factor}"
    divided = _ROOT.search(unfold(step.expression))
    if divided is None:
        return f"{divides} by a number" if step.role == "scale" and len(given) == 1 else None
    width = _scores_width(trace, step)
    return f"{divides} by sqrt({divided[1]}){_root_label(width[1]) if width else ''}"


def _elements(step: Step, given: list[TensorRecord]) -> str:
    """Return what the elements of a step that scales are: scores, where they come from the product for these."""
    return "scores" if step.role == "scale" and len(given) == 1 else "elements"


def factor_of(step: Step) -> tuple[str, float] | None:
    """Return the number by which a step multiplies or divides, after its formula, which may be empty; else None."""
    arguments = step.arguments if step.arguments is not UNSET else ()
    factor = next((argument for argument in arguments if argument.name == _OTHER_FACTOR), None)
    if factor is None or factor.formula == UNKNOWN_FORMULA:
        return None
    with contextlib.suppress(ValueError):
        return factor.formula or "", float(factor.value)
    return None


def _factor_label(step: Step) -> str:
    """Return the number by which a step multiplies or divides, with its formula; empty if it isn't known."""
    factor = factor_of(step)
    if factor is None:
        return ""
    formula, number = factor
    text = f"{number:.4g}"
    return f"{formula}{'=' if float(text) == number else '≈'}{text}" if formula else text


def _root_label(size: int) -> str:
    return f"={isqrt(size)}" if isqrt(size) ** 2 == size else f"≈{sqrt(size):.4g}"


def _scores_width(trace: Trace, step: Step) -> AxisSize | None:
    """Return the axis that the scores contracted, if the step divides them by the square root of that axis.

    The name of the variable isn't enough, since code calls any width D: the number must follow from the axis that was
    contracted, or carry its symbol.
    """
    first = step.operands[0].step if step.operands else None
    if first is None or not 0 < first < step.index:
        return None
    product = trace.step(first)
    if product.role != "scores" or len(product.outputs) != 1:
        return None
    width = _contracted(product, product.outputs[0].tensor, operand_records(trace, product))
    if width is None:
        return None
    divides = ops.base_name(step.operation) in ops.DIVISIONS
    factor = factor_of(step)
    formula = factor[0] if factor is not None else ""
    if formula == (f"sqrt({width[0]})" if divides else f"1/sqrt({width[0]})"):
        return width
    found = _ROOT.search(unfold(step.expression)) if divides and not formula else None
    return width if found is not None and width[0] == found[1] else None


def _fill(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if len(given) < 2:
        return "Replaces elements where a mask is true"
    return f"Replaces elements of {result.signature} where the mask ({given[1].signature}) is true"


def _elementwise(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    verb = _VERBS[ops.base_name(step.operation)]
    if len(given) == 1 and verb == "Multiplies" and (factor := _factor_label(step)):
        return f"Multiplies each of {prod(result.shape):,} {_elements(step, given)} by {factor}"
    if len(given) == 1 and verb == "Multiplies" and _has_parameter(step):
        return f"Multiplies {_signature(given[0])} by learned numbers"
    if len(given) == 1 and verb == "Adds" and _is_plain(step) and (factor := _factor_label(step)):
        return f"Adds {factor} to each of {prod(result.shape):,} elements"
    if len(given) != 2:
        return None
    first, second = map(_signature, given)
    how = "element by element" if first == second else "broadcasting the smaller"
    return f"{verb} {first} and {second}, {how}"


def _is_plain(step: Step) -> bool:
    """Return whether what a step adds isn't multiplied first, as with `alpha`."""
    return step.arguments is UNSET or all(argument.name != "alpha" for argument in step.arguments)


def _dropout(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if result.storage.kind == "same":
        return "Returns its input unchanged: dropout is off in this run"
    return f"Sets some of {prod(result.shape):,} elements to 0 at random and scales up the others"


def _select(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if not given or given[0].shape == result.shape:
        return None
    return f"Takes a part: {_becomes(given[0], result)}"


def _function(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    return f"Applies {ops.short_name(step.operation)} to each of {prod(result.shape):,} elements"


def _normalize(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    return f"Normalizes {_signature(result)} ({ops.short_name(step.operation)})"


def _sum(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    if not given:
        return None
    _, gone, new = _difference(tensor_axes(given[0]), tensor_axes(result))
    return (
        f"Sums over {join_words(list(map(axis_label, gone)))}: {_becomes(given[0], result)}"
        if gone and not new
        else None
    )


def _softmax_axis(expression: str) -> int | None:
    try:
        call = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", getattr(call.func, "id", "")) != "softmax":
        return None
    named_axis = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
    numbers = []
    for node in named_axis or call.args:
        with contextlib.suppress(ValueError, TypeError):
            numbers.append(ast.literal_eval(node))
    integers = [number for number in numbers if type(number) is int]
    return integers[0] if len(integers) == 1 else None


def _contracted(step: Step, result: TensorRecord, given: list[TensorRecord]) -> AxisSize | None:
    if len(given) != 2 or not given[0].shape or not given[1].shape:
        return None
    if ops.base_name(step.operation) in ops.MATMULS:
        return tensor_axes(given[0])[-1]
    kept = set(tensor_axes(result))
    shared = {axis for axis in tensor_axes(given[0]) if axis in tensor_axes(given[1]) and axis not in kept}
    return shared.pop() if len(shared) == 1 else None


def _projection_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "so that the model learns what to compare and what to mix" if _has_parameter(step) else ""


def _split_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    heads_shown = any(axis.expression in HEADS for axis in result.axes)
    if ops.base_name(step.operation) not in ops.RESHAPES or heads_shown:
        return ""
    given = {axis.expression for record in operand_records(trace, step) for axis in record.axes}
    parts = {axis.expression for axis in result.axes} - given
    attending = (user for user in trace.steps[step.index : step.index + _NEAR] if user.role in ("scores", "context"))
    read = [record for user in attending for record in operand_records(trace, user)]
    # an axis over which the product is repeated counts heads; the 3 of queries, keys and values doesn't
    repeated = {axis.expression for record in read for axis in record.axes[:-2]}
    return "giving each head some of the features" if parts & repeated else ""


def _transpose_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    if len(result.shape) < 2:
        return ""
    rows, columns = tensor_axes(result)[-2:]
    if any(
        user.role == "scores"
        and ops.base_name(user.operation) in ops.MATMULS
        and len(user.operands) > 1
        and user.operands[1].step == step.index
        for user in trace.steps[step.index : step.index + _NEAR]
    ):
        return f"so that the product for the scores can contract {axis_label(rows)}"
    after_split = any(operand_role(trace, operand) == "split" for operand in step.operands)
    if after_split and len(result.axes) > 2 and result.axes[-3].expression in HEADS:
        return f"so that each head has its own matrix, {axis_label(rows)} × {axis_label(columns)}"
    return ""


def _scale_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    width = _scores_width(trace, step)
    return f"so that their variance doesn't grow with {width[0]}" if width else ""


def _mask_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "so that the softmax gives masked keys no weight" if _INFINITE.search(step.expression) else ""


def _merge_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    base = ops.base_name(step.operation)
    if base in ops.RESHAPES | ops.CONCATENATIONS:
        return "placing the results of the heads side by side (concat)"
    if base == "contiguous" and result.storage.kind == "new":
        return "since a view can only join axes that lie next to each other in memory"
    return "to bring each token's heads together" if base in ops.TRANSPOSES else ""


def _output_reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "which mixes the results of the heads" if _has_parameter(step) else ""


_Describe = Callable[[Trace, Step, TensorRecord, list[TensorRecord]], str | None]
"""From a step, its result and its operands to what it does; None if the trace doesn't show that."""

OPERATIONS: dict[str, _Describe] = {
    **dict.fromkeys(ops.RESHAPES | ops.UNIT_AXES, _reshape),
    **dict.fromkeys(ops.TRANSPOSES, _permute),
    **dict.fromkeys(("contiguous", "clone"), _copy),
    **dict.fromkeys(ops.CONCATENATIONS, _join),
    **dict.fromkeys(ops.EXPANSIONS, _expand),
    "linear": _linear,
    **dict.fromkeys(ops.MATMULS | {"rmatmul", "einsum"}, _product),
    **dict.fromkeys(ops.SOFTMAXES, _softmax),
    **dict.fromkeys(ops.DIVISIONS, _divide),
    "masked_fill": _fill,
    **dict.fromkeys(ops.SELECTIONS, _select),
    **dict.fromkeys(ops.NONLINEARITIES, _function),
    **dict.fromkeys(ops.TOKEN_NORMS, _normalize),
    **dict.fromkeys(ops.SUMS, _sum),
    **dict.fromkeys(("add", "sub", "mul"), _elementwise),
    **dict.fromkeys(ops.DROPOUTS, _dropout),
}

REASONS: dict[str, Callable[[Trace, Step, TensorRecord], str]] = {
    "projection": _projection_reason,
    "split": _split_reason,
    "transpose": _transpose_reason,
    "scale": _scale_reason,
    "mask": _mask_reason,
    "merge": _merge_reason,
    "output": _output_reason,
}
"""For each role, why such a step is there; empty if the trace doesn't bear it out."""
