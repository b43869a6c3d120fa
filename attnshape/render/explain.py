"""One plain sentence a step: what it does to which axis, why, and where the result lies."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.model import Step, TensorRecord, Trace
from attnshape.render import algebra, layouts
from attnshape.render.numbers import memory
from attnshape.render.reasons import reason
from attnshape.render.reference import operands, operation, words
from attnshape.render.text import visible

What = Callable[[Trace, Step, TensorRecord, list[TensorRecord]], str | None]
"""From a step, its result and its operands to what was done; None where the trace doesn't tell."""

OPERATIONS: dict[str, What] = {
    **dict.fromkeys(
        ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "_unsafe_view"), layouts.reshape
    ),
    **dict.fromkeys(
        ("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT"), layouts.permute
    ),
    **dict.fromkeys(("contiguous", "clone"), layouts.copy),
    **dict.fromkeys(("cat", "concat", "concatenate"), layouts.join),
    **dict.fromkeys(("expand", "expand_as"), layouts.expand),
    "linear": algebra.linear,
    **dict.fromkeys(("matmul", "mm", "bmm", "rmatmul"), algebra.product),
    "einsum": algebra.product,
    **dict.fromkeys(("softmax", "softmax_"), algebra.softmax),
    **dict.fromkeys(("div", "truediv", "true_divide"), algebra.divide),
    **dict.fromkeys(("masked_fill", "masked_fill_"), algebra.fill),
    **dict.fromkeys(("add", "sub", "mul", "add_", "mul_", "sub_"), algebra.elementwise),
    **dict.fromkeys(("dropout", "dropout_"), algebra.dropout),
}


def explain(trace: Trace, step: Step) -> str:
    """Return a sentence with this run's numbers in it; it claims only what the trace shows."""
    if len(step.outputs) != 1:
        return _several(trace, step)
    result = step.outputs[0].tensor
    describe = OPERATIONS.get(operation(step.operation))
    what = describe(trace, step, result, operands(trace, step)) if describe else None
    what = what or f"{visible(operation(step.operation))} gives {_signature(result)}"
    return f"{what}{reason(trace, step, result)}; {_place(trace, step, result)}."


def _several(trace: Trace, step: Step) -> str:
    name = visible(operation(step.operation))
    if not step.outputs:
        return f"{name} gives no tensor."
    tensors = [output.tensor for output in step.outputs]
    kinds = list(dict.fromkeys(map(_signature, tensors)))
    of_what = f"{kinds[0]} each" if len(kinds) == 1 else ", ".join(map(_signature, tensors))
    places = list(dict.fromkeys(_place(trace, step, tensor) for tensor in tensors))
    return f"{name} gives {len(tensors)} tensors, {of_what}{f'; {places[0]}' if len(places) == 1 else ''}."


def _signature(tensor: TensorRecord) -> str:
    return visible(tensor.signature) or "a scalar"


def _place(trace: Trace, step: Step, tensor: TensorRecord) -> str:
    source = tensor.storage.of
    of = f"{'step ' if source and source.step else ''}{words(trace, source)}"
    match tensor.storage.kind:
        case "new":
            return f"new storage of {memory(tensor.bytes)}"
        case "view" if OPERATIONS.get(operation(step.operation)) is layouts.permute:
            return f"only the strides change, to {' '.join(map(str, tensor.stride))}: a view of {of}"
        case "view":
            return f"no data moves: a view of {of}"
        case "same":
            return f"nothing is copied: the same tensor as {of}"
        case "inplace":
            return f"written in place, into {of}"
