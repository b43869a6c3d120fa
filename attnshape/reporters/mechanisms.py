"""Mechanisms of the catalog side by side: their sizes, parameters, operations, cached bytes, and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import UNSET

from attnshape.reporters.escaping import code_cell
from attnshape.reporters.labels import bytes_label, operations_label
from attnshape.reporters.markdown_blocks import markdown_table
from attnshape.reporters.terminal import GAP, fold_code, pad

if TYPE_CHECKING:
    from attnshape.model.trace import Quantity, TensorRecord, Trace

_TENSORS = ("query", "key", "value", "scores", "weights", "context", "output")
"""The tensors that are compared, in this order, besides those that are cached."""
_NARROWEST = 16


@dataclass(frozen=True)
class ComparedMechanism:
    """A mechanism, and the trace of its first case with costs."""

    name: str
    trace: Trace
    cached: tuple[str, ...]
    """The names of the tensors that a decoder keeps."""
    kept: Quantity | None
    """The bytes that they grow by with each token; None if that isn't known."""


def mechanisms_text(compared: Sequence[ComparedMechanism], width: int) -> str:
    """Return the comparison as text of at most `width` cells a line, where the mechanisms have room in it."""
    rows = _rows(compared)
    first = max(len(row[0]) for row in rows)
    each = max(_NARROWEST, (width - first) // len(compared) - GAP)
    lines = []
    for row in rows:
        cells = zip_longest(*(fold_code(cell, each) for cell in row[1:]), fillvalue="")
        for place, parts in enumerate(cells):
            label = row[0] if place == 0 else ""
            lines.append((" " * GAP).join([pad(label, first), *(pad(part, each) for part in parts)]).rstrip())
    return "\n".join(lines) + "\n"


def mechanisms_markdown(compared: Sequence[ComparedMechanism]) -> str:
    """Return the comparison as a Markdown table."""
    header, *rows = _rows(compared)
    cells = [(row[0], *(code_cell(cell) if cell else "" for cell in row[1:])) for row in rows]
    return f"{markdown_table([header, *cells])}\n"


def _rows(compared: Sequence[ComparedMechanism]) -> list[tuple[str, ...]]:
    costs = [one.trace.cost for one in compared]
    totals = [cost for cost in costs if cost is not UNSET]
    names = dict.fromkeys([*_TENSORS, *(name for one in compared for name in one.cached)])
    rows = [
        ("", *(one.name for one in compared)),
        ("sizes", *(_sizes(one.trace) for one in compared)),
        ("parameters", *(operations_label(cost.parameters) for cost in totals)),
        ("FLOPs", *(operations_label(cost.flops) if cost.flops else "unknown" for cost in totals)),
        ("cached for each token", *(bytes_label(one.kept) if one.kept else "" for one in compared)),
        *((name, *(_shape(one.trace, name) for one in compared)) for name in names),
    ]
    return [row for row in rows if any(row[1:])]


def _sizes(trace: Trace) -> str:
    return " ".join(f"{symbol}={record.size}" for symbol, record in trace.sizes.items())


def _shape(trace: Trace, name: str) -> str:
    """Return the signature and the shape of the first tensor of this name; nothing if there is none."""
    tensor = next(_named(trace, name), None)
    return f"{tensor.signature} = {' '.join(map(str, tensor.shape))}" if tensor is not None else ""


def _named(trace: Trace, name: str) -> Iterator[TensorRecord]:
    return (output.tensor for step in trace.steps for output in step.outputs if output.name == name)
