"""How many bytes a cache of keys and values takes for each token, from the tensors that are really cached."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence

from attnshape.cost.estimate import sum_text
from attnshape.dims.sizes import is_length
from attnshape.model.trace import NO_SIZE, Quantity, TensorRecord, Trace

_CACHED = "Lp"
"""The symbol of the cached positions."""
_NAME = re.compile(r"[^\W\d]\w*")


def cache_per_token(trace: Trace) -> Quantity | None:
    """Return the bytes that all cached tensors grow by with each token; None if no tensor is seen to be cached.

    Cached is what the target returns with an axis that contains the cached positions, `Lp`, and no other length; if it
    returns none, the inputs with such an axis; and buffers and inputs that it writes to in place, with one length.
    """
    tensors = list(_returned(trace)) or list(_given(trace)) or list(_written(trace))
    return _growth(tensors) if tensors else None


def kept_per_token(trace: Trace, names: Collection[str]) -> Quantity | None:
    """Return the bytes that the tensors of these names grow by with each token; None if one has no only length.

    A decoder would keep them, although this code doesn't.
    """
    found = [output.tensor for step in trace.steps for output in step.outputs if output.name in names]
    grown = [(tensor, axis) for tensor in found if (axis := _growing_axis(tensor, None)) is not None]
    return _growth(grown) if found and len(grown) == len(found) else None


def _growth(tensors: Sequence[tuple[TensorRecord, int]]) -> Quantity:
    value, texts = 0, []
    for tensor, axis in tensors:
        others = [place for place in range(len(tensor.axes)) if place != axis]
        size = tensor.bytes // max(math.prod(tensor.shape), 1)
        value += size * math.prod(tensor.shape[place] for place in others)
        texts.append("*".join([str(size), *(_factor(tensor.axes[place].expression) for place in others)]))
    counts = {text: texts.count(text) for text in texts}
    return Quantity(value, sum_text(counts))


def _factor(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def _returned(trace: Trace) -> Iterator[tuple[TensorRecord, int]]:
    seen = set()
    for output in trace.outputs:
        reference = output.of
        if reference.step is None or (reference.step, reference.output) in seen:
            continue
        seen.add((reference.step, reference.output))
        tensor = trace.steps[reference.step - 1].outputs[reference.output].tensor
        if (axis := _growing_axis(tensor, _CACHED)) is not None:
            yield tensor, axis


def _given(trace: Trace) -> Iterator[tuple[TensorRecord, int]]:
    for named in trace.inputs:
        if (axis := _growing_axis(named.tensor, _CACHED)) is not None:
            yield named.tensor, axis


def _written(trace: Trace) -> Iterator[tuple[TensorRecord, int]]:
    """Yield each buffer or input that a step writes to in place, as that step returns it."""
    seen = set()
    for step in trace.steps:
        for output in step.outputs:
            storage = output.tensor.storage
            owner = storage.root.parameter or storage.root.input if storage.root is not None else None
            if storage.kind != "inplace" or owner is None or owner in seen:
                continue
            if (axis := _growing_axis(output.tensor, None)) is not None:
                seen.add(owner)
                yield output.tensor, axis


def _growing_axis(tensor: TensorRecord, symbol: str | None) -> int | None:
    """Return the only axis that is a length, if it contains the symbol, and the tensor may hold keys or values."""
    if len(tensor.shape) < 3 or NO_SIZE in tensor.shape or not tensor.dtype.startswith(("float", "bfloat")):
        return None
    lengths = [
        place for place, axis in enumerate(tensor.axes) if any(map(_is_position, _NAME.findall(axis.expression)))
    ]
    if len(lengths) != 1:
        return None
    return lengths[0] if symbol is None or symbol in _NAME.findall(tensor.axes[lengths[0]].expression) else None


def _is_position(name: str) -> bool:
    return name not in ("min", "max") and is_length(name)
