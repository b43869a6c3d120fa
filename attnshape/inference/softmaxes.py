"""Which steps take a softmax: as one operation, or spelled out with exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable

from attnshape.inference.kinds import operation_name
from attnshape.model import Step

Operands = Callable[[Step], list[Step]]
"""The steps that make a step's operands."""
_ONE = {"softmax", "_safe_softmax"}
_SAME = {
    *("to", "float", "half", "bfloat16", "double", "type", "type_as", "detach", "clone", "contiguous"),
    *("unsqueeze", "__getitem__", "view", "reshape"),
}
"""What may only change the dtype, or add an axis of one."""
_BOUNDS = {"clamp", "clamp_min", "clamp_", "add", "add_", "maximum"}
"""What keeps a sum from being zero."""


def is_softmax(step: Step, operands: Operands) -> bool:
    """Say whether a step's result is the softmax of what goes into it.

    Spelled out: `exp(x - logsumexp(x))`, `exp(log_softmax(x))`, and `e / sum(e)` where `e` is an exponential.
    """
    name = operation_name(step)
    if name in _ONE:
        return True
    if name in {"exp", "exp_"}:
        return any(_is_log_softmax(before, operands) for before in _made(step, operands))
    if name in {"div", "div_", "true_divide", "divide"}:
        made = _made(step, operands)
        return len(made) == 2 and operation_name(made[0]) in {"exp", "exp_"} and _is_sum_of(made[1], made[0], operands)
    return False


def _is_log_softmax(step: Step, operands: Operands) -> bool:
    if operation_name(step) == "log_softmax":
        return True
    made = _made(step, operands) if operation_name(step) in {"sub", "sub_", "subtract"} else []
    return len(made) == 2 and operation_name(made[1]) == "logsumexp" and made[0] in _made(made[1], operands)


def _is_sum_of(step: Step, summed: Step, operands: Operands) -> bool:
    while operation_name(step) in _BOUNDS and operands(step):
        step = _behind(operands(step)[0], operands)
    return operation_name(step) == "sum" and summed in _made(step, operands)


def _made(step: Step, operands: Operands) -> list[Step]:
    """Return the steps that make its operands, but for changes of dtype and the like."""
    return [_behind(before, operands) for before in operands(step)]


def _behind(step: Step, operands: Operands) -> Step:
    while operation_name(step) in _SAME and operands(step):
        before = operands(step)[0]
        if _elements(before) != _elements(step):
            break
        step = before
    return step


def _elements(step: Step) -> int:
    return math.prod(step.outputs[0].tensor.shape)
