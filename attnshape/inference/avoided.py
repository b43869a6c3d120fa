"""The scores that fused attention never makes: what they would be, and the memory that this saves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from attnshape.inference.assemble import reference_tensor
from attnshape.model import Avoided, NamedTensor, Step

_FUSED = ("scaled_dot_product_attention", ".flex_attention")


def with_avoided(steps: Sequence[Step], inputs: Sequence[NamedTensor]) -> tuple[Step, ...]:
    """Return the steps, the fused ones with the scores that they avoid: the query's axes, but the last is the keys'."""
    return tuple(_with(step, steps, inputs) if step.operation.endswith(_FUSED) else step for step in steps)


def _with(step: Step, steps: Sequence[Step], inputs: Sequence[NamedTensor]) -> Step:
    query, key = (reference_tensor(operand, inputs, steps) for operand in step.operands[:2])
    if query is None or key is None or len(query.axes) < 2 or len(key.axes) < 2:
        return step
    signature = " ".join([*(axis.expression for axis in query.axes[:-1]), key.axes[-2].expression])
    width = query.bytes // max(math.prod(query.shape), 1)
    count = math.prod(query.shape[:-1]) * key.shape[-2]
    return msgspec.structs.replace(step, avoided=Avoided(signature, count * width))
