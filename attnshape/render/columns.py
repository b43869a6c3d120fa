"""The columns that a table can have: one line of the registry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnshape.errors import AttnshapeError
from attnshape.model import Axis, Step, TensorRecord, Trace
from attnshape.render import reference
from attnshape.render.expression import one_line
from attnshape.render.text import visible

NUMBER = "#"
"""The name of the first column, which has the steps' numbers."""

NOT_CONTIGUOUS = "≁"


@dataclass(frozen=True)
class Place:
    """What a row is about: a step, a tensor, or a step and its only tensor."""

    trace: Trace
    label: str
    step: Step | None = None
    tensor: TensorRecord | None = None
    given: bool = False
    """Whether the tensor is an input, whose memory is its caller's unless another input has it too."""


@dataclass(frozen=True)
class Column:
    """A column: its cells' text, whether that is code, and the cells' least width where they may be folded."""

    name: str
    text: Callable[[Place], str]
    code: bool = False
    least: int | None = None


def _of_step(read: Callable[[Step], str | None]) -> Callable[[Place], str]:
    return lambda place: visible(read(place.step) or "") if place.step else ""


def _of_tensor(read: Callable[[TensorRecord], str]) -> Callable[[Place], str]:
    return lambda place: visible(read(place.tensor)) if place.tensor else ""


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values)) or "()"


def _stride(tensor: TensorRecord) -> str:
    return _numbers(tensor.stride) + ("" if tensor.contiguous else f" {NOT_CONTIGUOUS}")


def _source(step: Step) -> str | None:
    return f"{step.source.file}:{step.source.line}" if step.source else None


def _storage(place: Place) -> str:
    own = place.given and place.tensor is not None and place.tensor.storage.kind == "new"
    return "" if place.tensor is None or own else reference.storage(place.trace, place.tensor)


def constant(axis: Axis) -> bool:
    """Return whether an axis is a number of the code's own, which no run can prove to be a size."""
    return axis.expression.isdecimal() and not axis.unexplained


def _known(tensor: TensorRecord) -> str:
    free = [axis for axis in tensor.axes if not constant(axis)]
    kinds = {_way(axis) for axis in free}
    if len(kinds) < 2:
        return kinds.pop() if kinds else "constant" if tensor.axes else ""
    return ", ".join(f"{axis.expression} {_way(axis)}" for axis in free if _way(axis) != "proved")


def _way(axis: Axis) -> str:
    return f"{axis.known} where {axis.where}" if axis.where else axis.known


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("step", lambda place: place.label, code=True, least=16),
        Column("expression", _of_step(lambda step: one_line(step.expression)), code=True, least=24),
        Column("op", _of_step(lambda step: reference.operation(step.operation)), code=True, least=12),
        Column("role", _of_step(lambda step: step.role)),
        Column("signature", _of_tensor(lambda tensor: tensor.signature or "scalar"), code=True, least=16),
        Column("shape", _of_tensor(lambda tensor: _numbers(tensor.shape))),
        Column("stride", _of_tensor(_stride)),
        Column("strides", _of_tensor(lambda tensor: " ".join(tensor.strides)), code=True, least=16),
        Column("storage", _storage, least=12),
        Column("contiguous", _of_tensor(lambda tensor: "yes" if tensor.contiguous else "no")),
        Column("dtype", _of_tensor(lambda tensor: tensor.dtype)),
        Column("device", _of_tensor(lambda tensor: tensor.device)),
        Column("bytes", _of_tensor(lambda tensor: f"{tensor.bytes:,}")),
        Column("module", _of_step(lambda step: step.module), code=True, least=12),
        Column("source", _of_step(_source), code=True, least=16),
        Column("known", _of_tensor(_known), least=12),
    )
}

DEFAULT: tuple[Column, ...] = tuple(COLUMNS[name] for name in ("step", "signature", "shape", "stride", "storage"))


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return the columns of a comma-separated list, in its order.

    Raises AttnshapeError for a name that isn't a column, for one named twice, and for an empty list.

    >>> [column.name for column in parse_columns("step, shape")]
    ['step', 'shape']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for place, name in enumerate(names):
        if name not in COLUMNS:
            raise AttnshapeError(f"there is no column {visible(name)!r}", _way_out(name))
        if name in names[:place]:
            raise AttnshapeError(f"the column {name!r} is named twice", "name each column once")
    if not names:
        raise AttnshapeError("no column is named", _way_out(""))
    return tuple(COLUMNS[name] for name in names)


def _way_out(name: str) -> str:
    # Only a mistake pays for the import.
    import difflib

    near = difflib.get_close_matches(name.lower(), COLUMNS, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + "the columns are " + ", ".join(COLUMNS)
