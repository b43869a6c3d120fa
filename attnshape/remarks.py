"""What is said beneath the table: preconditions, notes, and how the code failed."""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence

from attnshape.inference.assemble import reference_tensor
from attnshape.inference.plan import Equal, Multiple
from attnshape.inference.vary import Variation
from attnshape.model import Axis, Failure, NamedTensor, Operand, Source, Step, Storage, TensorRecord
from attnshape.paths import display_path
from attnshape.sizes import Sizes
from attnshape.tracing.frames import Frames
from attnshape.tracing.raw import Place, RawFailure, RawTensor, RawTrace


def preconditions(variation: Variation) -> tuple[str, ...]:
    """Return under which conditions on the sizes the target runs."""
    return tuple(str(c) for c in variation.plan.constraints if isinstance(c, (Equal, Multiple)))


def notes(
    actual: RawTrace, variation: Variation, sizes: Sizes, missed: Sequence[str], wrong: Sequence[str]
) -> tuple[str, ...]:
    """Return what the reader should know about this trace."""
    found = []
    if actual.broken is not None:
        found.append(actual.broken)
    fixed = variation.plan.fixed
    if fixed:
        numbers = ", ".join(f"{letter}={sizes.records[letter].size}" for letter in fixed)
        found.append(f"not varied: {numbers}, since at other sizes the code takes other steps or fails")
    elif not variation.complete and actual.failure is None:
        after = f"after step {variation.common}" if variation.common else "from the first step on"
        found.append(f"at small sizes the code takes other steps {after}: axes there are matched only")
    if sizes.labels:
        letters = ", ".join(letter for letter in sizes.records if letter in sizes.labels)
        found.append(f"nothing in the target depends on {letters}: axes of that size are matched only")
    if missed:
        rest = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        found.append(f"no formula for {', '.join(missed[:3])}{rest}: shown as this run's number")
    found += wrong
    return tuple(found)


def failure_of(failure: RawFailure, inputs: Sequence[NamedTensor], steps: Sequence[Step]) -> Failure:
    """Return how the code failed, as the trace saves it; operands that a step or an input made have its signature."""
    place = failure.place or raised_at(failure.error)
    return Failure(
        expression=place.expression if place else None,
        source=Source(display_path(place.file), place.line, place.column, place.function) if place else None,
        operation=failure.operation,
        error=f"{type(failure.error).__name__}: {failure.error}",
        operands=tuple(Operand(name, _operand(tensor, inputs, steps)) for name, tensor in failure.operands),
    )


def raised_at(error: BaseException) -> Place | None:
    """Return the last line outside the libraries that an exception came through."""
    frames = Frames()
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not frames.is_library(code):
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            found = Place(code.co_filename, trace.tb_lineno, 1, code.co_qualname.replace(".<locals>", ""), text)
        trace = trace.tb_next
    return found


def _operand(tensor: RawTensor, inputs: Sequence[NamedTensor], steps: Sequence[Step]) -> TensorRecord:
    known = reference_tensor(tensor.of, inputs, steps) if tensor.of is not None else None
    return known if known is not None and known.shape == tensor.shape else _plain(tensor)


def _plain(tensor: RawTensor) -> TensorRecord:
    """Return a tensor of which no more is known than its numbers."""
    return TensorRecord(
        signature=" ".join(str(size) for size in tensor.shape),
        dtype=tensor.dtype,
        device=tensor.device,
        shape=tensor.shape,
        stride=tensor.stride,
        offset=tensor.offset,
        axes=tuple(Axis(str(size), "literal", unexplained=True) for size in tensor.shape),
        strides=tuple(str(stride) for stride in tensor.stride),
        contiguous=tensor.contiguous,
        bytes=tensor.itemsize * math.prod(tensor.shape),
        storage=Storage(tensor.kind, tensor.of, tensor.root),
    )
