"""Views that strides forbid."""

from __future__ import annotations

import ast

import torch

from attnshape.failing.elements import changed_axes, new_shape
from attnshape.failing.finding import Finding, on_call
from attnshape.failing.scene import Party, Scene, numel, parsed
from attnshape.failing.words import axes, joined, quoted
from attnshape.model import Reference, Step, TensorRecord


def strides(scene: Scene) -> Finding | None:
    """Explain a view of a tensor whose elements lie in another order."""
    party = scene.operand(0, "input", "self")
    if scene.operation != "view" or party is None or "stride" not in scene.message:
        return None
    made = _made_apart(scene, party)
    if made is None:
        why = f"{quoted(party)} is not contiguous as it comes in"
    else:
        source = f" ({made.source.file}:{made.source.line})" if made.source is not None else ""
        text = " ".join(made.expression.split())
        which = f"step {made.index}{source}" if text == party.name else f"step {made.index}, {text}{source},"
        why = f"{which} made {quoted(party)} non-contiguous"
    apart = tuple(sorted({at for axis in _gaps(scene, party) for at in (axis, axis + 1)}))
    joining = f"join {joined([party.record.axes[axis].expression for axis in apart])}" if apart else "regroup axes"
    return Finding(
        f"view can't {joining}, which don't lie one behind the other in memory: {why}"
        if apart
        else f"view can't {joining} of {axes(party)}: {why}",
        {party.place: apart},
        (
            *on_call(_with_method(scene.expression, "reshape"), torch.Tensor.reshape),
            *on_call(_with_method(scene.expression, "contiguous().view"), _copied_view, rank=1),
        ),
    )


def _copied_view(tensor: torch.Tensor, *shape: int) -> torch.Tensor:
    return tensor.contiguous().view(*shape)


def _made_apart(scene: Scene, party: Party) -> Step | None:
    """Return the step that made an operand non-contiguous: the last whose source was contiguous."""
    of = scene.failure.operands[party.place].tensor.of
    while of is not None and of.step is not None:
        step = scene.steps[of.step - 1]
        source = _source(scene, step, step.outputs[of.output].tensor)
        if source is None:
            return step
        of = source
    return None


def _source(scene: Scene, step: Step, tensor: TensorRecord) -> Reference | None:
    """Return the non-contiguous tensor that a step's result has its strides from; None where the step made them."""
    # elementwise operations keep the order in which their operand lies
    of = [tensor.storage.of] if tensor.storage.kind != "new" else list(step.operands)
    for reference in of:
        if reference is not None and reference.step is not None:
            earlier = scene.steps[reference.step - 1].outputs[reference.output].tensor
            if not earlier.contiguous and (tensor.storage.kind != "new" or earlier.shape == tensor.shape):
                return reference
    return None


def _gaps(scene: Scene, party: Party) -> list[int]:
    """Return the axes that are to be joined with the one behind them though they lie apart."""
    new = new_shape(scene.call) or []
    known = numel([one for one in new if one != -1])
    changed, _ = changed_axes(party, [numel(party.shape) // known if one == -1 else one for one in new])
    stride, shape = party.record.stride, party.shape
    return [
        axis
        for axis in changed[:-1]
        if axis + 1 < len(stride)
        and 1 not in shape[axis : axis + 2]
        and stride[axis] != stride[axis + 1] * shape[axis + 1]
    ]


def _with_method(expression: str, method: str) -> str | None:
    """Return `x.reshape(…)` of `x.view(…)`, None of anything else."""
    tree = parsed(expression)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr != "view":
        return None
    end = tree.func.end_col_offset or 0
    return f"{expression[: end - len('view')]}{method}{expression[end:]}"
