"""Why a step is there: a clause for each role, and only where the trace bears it out."""

from __future__ import annotations

import re
from collections.abc import Callable

from attnshape.model import Step, TensorRecord, Trace
from attnshape.render.algebra import scores_width
from attnshape.render.axes import HEADS, named, pairs
from attnshape.render.reference import operation, role
from attnshape.render.text import visible

_NEAR = 64
"""How many steps further on a reason is looked for: long traces stay fast."""

_INFINITE = re.compile(r"\binf\b")


def reason(trace: Trace, step: Step, result: TensorRecord) -> str:
    """Return the clause for a step's role, with its comma; nothing where there is none to give."""
    find = ROLES.get(step.role or "")
    clause = find(trace, step, result) if find else ""
    return f", {clause}" if clause else ""


def _projection(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "so that what is compared and mixed is learned" if any(one.parameter for one in step.operands) else ""


def _split(trace: Trace, step: Step, result: TensorRecord) -> str:
    told = any(axis.expression in HEADS for axis in result.axes)
    reshaped = operation(step.operation) in ("view", "reshape", "unflatten")
    return "some of the features for each head" if reshaped and not told else ""


def _transpose(trace: Trace, step: Step, result: TensorRecord) -> str:
    if len(result.shape) < 2:
        return ""
    rows, columns = pairs(result)[-2:]
    if any(_contracts_rows(step, user) for user in trace.steps[step.index : step.index + _NEAR]):
        return f"so that the scores' product can contract {named(rows)}"
    after_split = any(role(trace, operand) == "split" for operand in step.operands)
    if after_split and len(result.axes) > 2 and result.axes[-3].expression in HEADS:
        return f"so that each head has a matrix of its own, {named(rows)} × {named(columns)}"
    return ""


def _contracts_rows(step: Step, user: Step) -> bool:
    """Return whether a step is a matrix product for scores, with this one's result on its right."""
    matrices = operation(user.operation) in ("matmul", "mm", "bmm")
    return user.role == "scores" and matrices and len(user.operands) > 1 and user.operands[1].step == step.index


def _scale(trace: Trace, step: Step, result: TensorRecord) -> str:
    width = scores_width(trace, step)
    return f"so that their spread doesn't grow with {visible(width[0])}" if width else ""


def _mask(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "so that the softmax gives masked keys no weight" if _INFINITE.search(step.expression) else ""


def _merge(trace: Trace, step: Step, result: TensorRecord) -> str:
    short = operation(step.operation)
    if short in ("view", "reshape", "flatten", "cat", "concat"):
        return "the heads' results side by side (concat)"
    if short == "contiguous" and result.storage.kind == "new":
        return "since a view can only join axes that lie next to each other in memory"
    return "to bring each token's heads together" if short in ("transpose", "permute") else ""


def _output(trace: Trace, step: Step, result: TensorRecord) -> str:
    return "which mixes what the heads found" if any(one.parameter for one in step.operands) else ""


ROLES: dict[str, Callable[[Trace, Step, TensorRecord], str]] = {
    "projection": _projection,
    "split": _split,
    "transpose": _transpose,
    "scale": _scale,
    "mask": _mask,
    "merge": _merge,
    "output": _output,
}
