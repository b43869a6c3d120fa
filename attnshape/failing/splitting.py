"""Splits whose sizes don't add up, unpackings of another number, and assertions about sizes."""

from __future__ import annotations

import re

from attnshape.failing.finding import Finding
from attnshape.failing.scene import Scene, integers
from attnshape.failing.words import axes, counted, joined, place, quoted, size
from attnshape.inference.kinds import operation_name

_SPLITS = ("split", "chunk", "tensor_split")
_TOO_MANY = re.compile(r"too many values to unpack \(expected (\d+)")
_TOO_FEW = re.compile(r"not enough values to unpack \(expected (\d+), got (\d+)\)")


def split_sizes(scene: Scene) -> Finding | None:
    """Explain a split into sizes that don't add up to the axis."""
    party, axis = scene.operand(0, "tensor", "input"), scene.argument(2, "dim")
    if scene.operation not in ("split", "split_with_sizes") or party is None or "sum exactly" not in scene.message:
        return None
    try:
        sizes = list(integers(scene.argument(1, "split_size_or_sections", "split_sizes", "split_size")))
    except TypeError:
        return None
    at = (axis if type(axis) is int else 0) % party.rank
    return Finding(
        f"the sizes of the split, {joined(list(map(str, sizes)))}, add up to {sum(sizes):,}: "
        f"{place(at, party.rank)} of {quoted(party)} is {size(party, at)}",
        {party.place: (at,)},
    )


def unpacking(scene: Scene) -> Finding | None:
    """Explain a shape, a tensor or a split of another number of parts than there are names."""
    found = _TOO_MANY.search(scene.message) or _TOO_FEW.search(scene.message)
    if scene.failure.operation is not None or not isinstance(scene.failure.error, ValueError) or not found:
        return None
    names = counted(int(found[1]), "name stands", "names stand")
    if parts := _parts(scene, names):
        return parts
    party = scene.parties[0] if scene.parties else None
    if party is not None and _reads_shape(scene):
        return Finding(f"{quoted(party)} has {axes(party)}: {names} for its sizes")
    if party is not None and party.rank and scene.expression.endswith(f"= {party.name}"):
        return Finding(
            f"{names} for the parts of {quoted(party)}: {place(0, party.rank)} is {size(party, 0)}",
            {party.place: (0,)},
        )
    return None


def _reads_shape(scene: Scene) -> bool:
    return re.search(r"\.(shape|size\(\))\s*(#.*)?$", scene.expression) is not None


def _parts(scene: Scene, names: str) -> Finding | None:
    """The last step stands in that very line, and made the parts."""
    place_ = scene.failure.place
    if not scene.steps or place_ is None:
        return None
    last = scene.steps[-1]
    if last.source is None or last.source.line != place_.line or last.source.function != place_.function:
        return None
    made = [output.tensor for output in last.outputs]
    operation = operation_name(last)
    if operation not in (*_SPLITS, "unbind", "split_with_sizes") or f"{operation}(" not in scene.expression:
        return None
    kinds = joined(list(dict.fromkeys(tensor.signature or "a scalar" for tensor in made)))
    return Finding(f"{names} for what {operation} gives: {counted(len(made), 'tensor', 'tensors')}, {kinds}")


def uneven_parts(scene: Scene) -> str | None:
    """Say where an operand comes from a split whose last part is smaller than the others."""
    for operand in scene.failure.operands:
        of = operand.tensor.of
        while of is not None and of.step is not None:
            step = scene.steps[of.step - 1]
            shapes = [output.tensor.shape for output in step.outputs]
            if operation_name(step) in _SPLITS and _last_is_smaller(shapes):
                (axis,) = (axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)
                sizes = joined([str(shape[axis]) for shape in shapes])
                return f"step {step.index}, {' '.join(step.expression.split())}, gives parts of {sizes}"
            of = step.outputs[of.output].tensor.storage.of
    return None


def _last_is_smaller(shapes: list[tuple[int, ...]]) -> bool:
    return len(set(shapes[:-1])) == 1 and shapes[-1] < shapes[0]


def assertion(scene: Scene) -> Finding | None:
    """Explain an assertion about sizes by the numbers in it."""
    if not isinstance(scene.failure.error, AssertionError) or scene.failure.operation is not None:
        return None
    values = scene.failure.values
    if not values:
        return None
    numbers = joined([f"{name} is {number:,}" for name, number in values.items()])
    remainder = ""
    for whole, part in re.findall(r"([\w.\[\]-]+) % ([\w.\[\]-]+)", scene.expression):
        if whole in values and values.get(part) and values[whole] % values[part]:
            remainder = f"; {whole} leaves {values[whole] % values[part]} when divided by {part}"
    return Finding(f"the assertion doesn't hold: {numbers}{remainder}", {})
