"""The columns of a trace's table: one line of the registry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from attnshape.errors import AttnshapeError, most_similar
from attnshape.model.formatting import format_ratio
from attnshape.model.trace import Axis, Cost, Quantity, Reference, Step, TensorRecord, Trace
from attnshape.reporters.escaping import visible
from attnshape.reporters.labels import (
    bytes_label,
    one_line,
    operations_label,
    reference_label,
    shape_label,
    source_label,
    storage_label,
    stride_label,
)
from attnshape.tracing.operations import short_name

NUMBER = "#"
"""The name of the first column, which has the numbers of the steps."""


@dataclass(frozen=True)
class RowSubject:
    """What a row is about: a step, a tensor, or a step and its only tensor."""

    trace: Trace
    label: str
    step: Step | None = None
    tensor: TensorRecord | None = None
    given: bool = False
    """Whether the tensor is an input; its memory is the caller's, unless another input shares it."""
    returned: Reference | None = None
    """What the run returns in this place; the tensor is that one."""


@dataclass(frozen=True)
class Column:
    """A column: its name, the text of its cells, whether that is code, and the least width to fold cells to."""

    name: str
    text: Callable[[RowSubject], str]
    code: bool = False
    least: int | None = None


def _of_step(read: Callable[[Step], str | None]) -> Callable[[RowSubject], str]:
    return lambda row: visible(read(row.step) or "") if row.step else ""


def _of_tensor(read: Callable[[TensorRecord], str]) -> Callable[[RowSubject], str]:
    return lambda row: visible(read(row.tensor)) if row.tensor else ""


def _storage(row: RowSubject) -> str:
    if row.returned is not None:
        return f"same as {reference_label(row.returned, row.trace.steps)}"
    if row.tensor is None or (row.given and row.tensor.storage.kind == "new"):
        return ""
    return storage_label(row.tensor.storage.kind, row.tensor.storage.of, row.tensor.bytes, row.trace.steps)


def is_constant(axis: Axis) -> bool:
    """Return whether an axis is a number in the code itself, which no run can show to be a size."""
    return axis.expression.isdecimal() and not axis.unexplained


def _known(tensor: TensorRecord) -> str:
    free = [axis for axis in tensor.axes if not is_constant(axis)]
    kinds = {_how_known(axis) for axis in free}
    if len(kinds) < 2:
        return kinds.pop() if kinds else "constant" if tensor.axes else ""
    return ", ".join(f"{axis.expression} {_how_known(axis)}" for axis in free if _how_known(axis) != "verified")


def _how_known(axis: Axis) -> str:
    return f"{axis.known} where {axis.where}" if axis.where else axis.known


def _of_cost(
    label: Callable[[Quantity | None], str], read: Callable[[Cost], Quantity | None]
) -> Callable[[RowSubject], str]:
    def text(row: RowSubject) -> str:
        if row.step is None or row.trace.cost is UNSET:
            return ""
        return visible(label(read(row.step.cost) if row.step.cost is not UNSET else None))

    return text


def _intensity(row: RowSubject) -> str:
    intensity = row.step.cost.intensity if row.step is not None and row.step.cost is not UNSET else None
    return format_ratio(intensity) if intensity else ""


def _contiguous(tensor: TensorRecord) -> str:
    return "yes" if tensor.contiguous else "no" if tensor.stride or not tensor.shape else ""


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("step", lambda row: row.label, code=True, least=16),
        Column("expression", _of_step(lambda step: one_line(step.expression)), code=True, least=24),
        Column("op", _of_step(lambda step: short_name(step.operation)), code=True, least=12),
        Column("role", _of_step(lambda step: step.role)),
        Column("signature", _of_tensor(lambda tensor: tensor.signature or "scalar"), code=True, least=16),
        Column("shape", _of_tensor(shape_label)),
        Column("stride", _of_tensor(stride_label)),
        Column("strides", _of_tensor(lambda tensor: " ".join(tensor.strides)), code=True, least=16),
        Column("storage", _storage, least=12),
        Column("contiguous", _of_tensor(_contiguous)),
        Column("dtype", _of_tensor(lambda tensor: tensor.dtype)),
        Column("device", _of_tensor(lambda tensor: tensor.device)),
        Column("bytes", _of_tensor(lambda tensor: f"{tensor.bytes:,}")),
        Column("flops", _of_cost(operations_label, lambda cost: cost.flops), code=True, least=12),
        Column("moved", _of_cost(bytes_label, lambda cost: cost.moved), code=True, least=12),
        Column("temporary", _of_cost(bytes_label, lambda cost: cost.temporary), code=True, least=12),
        Column("saved", _of_cost(bytes_label, lambda cost: cost.saved), code=True, least=12),
        Column("intensity", _intensity),
        Column("module", _of_step(lambda step: step.module), code=True, least=12),
        Column("source", _of_step(lambda step: source_label(step.source)), code=True, least=16),
        Column("known", _of_tensor(_known), least=12),
    )
}

COSTS: tuple[Column, ...] = tuple(
    COLUMNS[name] for name in ("step", "signature", "flops", "moved", "temporary", "saved", "intensity")
)
DEFAULT: tuple[Column, ...] = tuple(COLUMNS[name] for name in ("step", "signature", "shape", "stride", "storage"))


def default_columns(trace: Trace, steps: Sequence[Step] | None = None) -> tuple[Column, ...]:
    """Return the columns of a table for which none are chosen.

    They are those of costs where these were counted. A dtype or a device has a column where it isn't the same for all
    tensors that are shown; cells as in the header are empty. `steps` are those that are shown, None for all.
    """
    return COSTS if trace.cost is not UNSET else _columns_of_tensors(trace, steps)


def wide_columns(trace: Trace) -> tuple[Column, ...]:
    """Return the columns of a table for which none are chosen, and which has room: those of costs too."""
    return (*_columns_of_tensors(trace, None), *(COSTS[2:] if trace.cost is not UNSET else ()))


def _columns_of_tensors(trace: Trace, steps: Sequence[Step] | None) -> tuple[Column, ...]:
    tensors = [output.tensor for step in (trace.steps if steps is None else steps) for output in step.outputs]
    if steps is None or len(steps) == len(trace.steps):
        tensors += [named.tensor for named in trace.inputs]
    more = []
    if len({tensor.dtype for tensor in tensors}) > 1:
        more.append(Column("dtype", _of_tensor(lambda tensor: "" if tensor.dtype == trace.dtype else tensor.dtype)))
    if len({tensor.device for tensor in tensors}) > 1:
        here = (trace.device, f"{trace.device}:0")
        more.append(Column("device", _of_tensor(lambda tensor: "" if tensor.device in here else tensor.device)))
    place = [column.name for column in DEFAULT].index("stride")
    return (*DEFAULT[:place], *more, *DEFAULT[place:])


def name_costs(text: str) -> bool:
    """Return whether a comma-separated list of columns names one of costs, which aren't counted unless asked for.

    >>> name_costs("step, flops"), name_costs("step, shape")
    (True, False)
    """
    only_of_costs = {column.name for column in COSTS[2:]}
    return not only_of_costs.isdisjoint(name.strip() for name in text.split(","))


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of a comma-separated list, in its order.

    Raises:
        AttnshapeError: A name isn't a column, a column is named twice, or the list is empty.

    >>> [column.name for column in parse_columns("step, shape")]
    ['step', 'shape']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    every = f"the columns are {', '.join(COLUMNS)}"
    for place, name in enumerate(names):
        if name not in COLUMNS:
            similar = most_similar(name, COLUMNS)
            hint = f"did you mean {similar!r}? {every}" if similar else every
            raise AttnshapeError(f"there is no column {visible(name)!r}", hint)
        if name in names[:place]:
            raise AttnshapeError(f"the column {name!r} is named twice", "name each column once")
    if not names:
        raise AttnshapeError("no column is named", every)
    return tuple(COLUMNS[name] for name in names)
