"""What operations do that compute: products, the softmax, and what works on each number."""

from __future__ import annotations

import ast
import re
from math import isqrt, prod, sqrt

from attnshape.model import Step, TensorRecord, Trace
from attnshape.render.axes import AxisSize, named, pairs, place
from attnshape.render.expression import one_line
from attnshape.render.reference import operands, operation, role
from attnshape.render.text import visible

_VERBS = {"add": "Adds", "sub": "Subtracts", "mul": "Multiplies"}
_ROOT = re.compile(r"/\s*(?:math\.|np\.|torch\.)?sqrt\(\s*(?:self\.)?(\w+)\s*\)$")


def linear(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return from how many numbers to how many each vector is mapped."""
    if not given or not given[0].shape or not result.shape:
        return None
    vectors = prod(result.shape[:-1])
    learned = any(operand.parameter for operand in step.operands)
    by = "a learned matrix" if learned else "a matrix"
    before, after = pairs(given[0])[-1], pairs(result)[-1]
    return f"Maps each of {vectors:,} vectors from {named(before)} to {named(after)} numbers by {by}"


def product(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which axis is contracted, and what comes of it."""
    contracted = _contracted(step, result, given)
    if contracted is None:
        return None
    what = f"Contracts {named(contracted)}: "
    matrices = len(given) > 1 and all(len(one.shape) > 1 for one in given[:2])
    if step.role == "scores" and matrices and not any(operand.parameter for operand in step.operands):
        each = " × ".join(map(named, pairs(result)))
        return f"{what}{prod(result.shape):,} scores ({each}), each the dot product of a query and a key"
    if step.role == "context" and result.shape:
        vectors, last = prod(result.shape[:-1]), pairs(result)[-1]
        if operation(step.operation) != "einsum" and _weights_come_first(trace, step):
            each = f"each of {vectors:,} vectors of {named(last)} numbers"
            return f"{what}{each} is a weighted sum of {contracted[1]:,} values"
    before = " and ".join(visible(one.signature) for one in given[:2])
    return f"{what}{before} become {visible(result.signature) or 'a scalar'}"


def _weights_come_first(trace: Trace, step: Step) -> bool:
    """Return whether the first operand is the softmax's result, or that result after dropout."""
    return bool(step.operands) and role(trace, step.operands[0]) in ("softmax", "dropout")


def softmax(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return along which axis numbers become weights, where the expression says it in so many words."""
    noun = "scores" if step.role == "softmax" else "numbers"
    axis, rank = _softmax_axis(step.expression), len(result.shape)
    if axis is None or not -rank <= axis < rank:
        return f"Turns {noun} into weights that sum to 1"
    chosen = pairs(result)[axis]
    rows = prod(result.shape) // chosen[1] if chosen[1] else 0
    where = place(axis % rank, rank)
    return f"Turns {rows:,} sets of {named(chosen)} {noun} each, along {where}, into weights that sum to 1"


def divide(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return what each number is divided by, where the expression says it in so many words."""
    found = _ROOT.search(one_line(step.expression))
    numbers = f"Divides each of {prod(result.shape):,} {'scores' if step.role == 'scale' else 'numbers'}"
    if found is None:
        return f"{numbers} by a number" if step.role == "scale" and len(given) == 1 else None
    width = scores_width(trace, step)
    if width is None:
        return f"{numbers} by sqrt({visible(found[1])})"
    root, exact = isqrt(width[1]), isqrt(width[1]) ** 2 == width[1]
    return f"{numbers} by sqrt({visible(found[1])}){f'={root}' if exact else f'≈{sqrt(width[1]):.4g}'}"


def scores_width(trace: Trace, step: Step) -> AxisSize | None:
    """Return the axis that the scores contracted, where a step divides them by the root of what has its name.

    A variable's name alone doesn't tell: code calls any width D. That it is the very axis contracted does.
    """
    found = _ROOT.search(one_line(step.expression))
    first = step.operands[0].step if step.operands else None
    if found is None or first is None or not 0 < first < step.index:
        return None
    product = trace.step(first)
    if product.role != "scores" or len(product.outputs) != 1:
        return None
    width = _contracted(product, product.outputs[0].tensor, operands(trace, product))
    return width if width and width[0] == found[1] else None


def fill(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which numbers are replaced."""
    if len(given) < 2:
        return "Replaces numbers where a mask says so"
    return f"Replaces numbers of {visible(result.signature)} where the mask ({visible(given[1].signature)}) says so"


def elementwise(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return which signatures meet, each number with its like."""
    verb = _VERBS[operation(step.operation).rstrip("_")]
    if len(given) != 2:
        return None
    first, second = (visible(one.signature) or "a scalar" for one in given)
    if first == second:
        return f"{verb} {first} and {second}, number by number"
    return f"{verb} {first} and {second}, the smaller repeated along the axes that it lacks"


def dropout(trace: Trace, step: Step, result: TensorRecord, given: list[TensorRecord]) -> str | None:
    """Return whether dropout did anything."""
    if result.storage.kind == "same":
        return "Returns its input as it is: dropout is off in this run"
    return f"Sets some of {prod(result.shape):,} numbers to 0 at random, and scales the others up"


def _softmax_axis(expression: str) -> int | None:
    try:
        call = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", getattr(call.func, "id", "")) != "softmax":
        return None
    named_axis = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
    numbers = [_integer(node) for node in named_axis or call.args]
    found = [number for number in numbers if number is not None]
    return found[0] if len(found) == 1 else None


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def _contracted(step: Step, result: TensorRecord, given: list[TensorRecord]) -> AxisSize | None:
    if len(given) != 2 or not given[0].shape or not given[1].shape:
        return None
    if operation(step.operation) in ("matmul", "mm", "bmm"):
        return pairs(given[0])[-1]
    kept = set(pairs(result))
    shared = [axis for axis in dict.fromkeys(pairs(given[0])) if axis in pairs(given[1]) and axis not in kept]
    return shared[0] if len(shared) == 1 else None
