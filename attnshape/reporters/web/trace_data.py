"""What the script of a trace's page reads: plain data, in which each text, tensor and formula stands once.

The texts have no control characters left. Where the sizes are those of the run, the page shows the texts of the table;
at other sizes it evaluates the formulas.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from msgspec import UNSET

from attnshape.explanation.sentences import explain
from attnshape.model.formatting import format_bytes
from attnshape.model.references import operand_records, resolve
from attnshape.model.trace import (
    Axis,
    Cost,
    Loop,
    NamedTensor,
    Quantity,
    Reference,
    Step,
    TensorRecord,
    Trace,
    loops_by_step,
)
from attnshape.reporters.columns import is_constant
from attnshape.reporters.escaping import visible
from attnshape.reporters.flow import whole_flow
from attnshape.reporters.labels import (
    one_line,
    operation_name,
    reference_label,
    shape_label,
    storage_label,
    stride_label,
)
from attnshape.reporters.trace_view import TraceRow, TraceView
from attnshape.reporters.web.flow_data import flow_data
from attnshape.reporters.web.formulas import PageSizes, condition_tree, formula_tree, page_sizes
from attnshape.reporters.web.markup import colors_of
from attnshape.reporters.web.source_lines import lines_around
from attnshape.runtime.files import ReadLines
from attnshape.tracing.operations import EXPANSIONS, RESHAPES, TRANSPOSES, UNIT_AXES, base_name

_COSTS = ("flops", "moved", "temporary", "saved")
_COPIES = RESHAPES | {"contiguous", "clone"}
"""Operations that copy, where they do, in the order in which the tensor is read."""
_DRAWN = TRANSPOSES | RESHAPES | UNIT_AXES | EXPANSIONS | _COPIES
"""Operations whose effect on the memory layout is drawn."""


class _Table:
    """Values, each once, and their positions."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def add(self, key: Hashable, value: Callable[[], Any] | None = None) -> int:
        """Return the position of a value, which is its own key unless a function makes it."""
        place = self._places.get(key)
        if place is None:
            made = value() if value is not None else key
            place = self._places[key] = len(self.values)
            self.values.append(made)
        return place


def trace_data(trace: Trace, view: TraceView, read_lines: ReadLines) -> dict[str, Any]:
    """Return the data of a trace's page.

    Args:
        trace: The trace.
        view: The rows of its table.
        read_lines: Returns the lines of a source file.
    """
    return _TraceData(trace, functools.cache(read_lines)).whole(view)


class _TraceData:
    def __init__(self, trace: Trace, read_lines: ReadLines) -> None:
        self._trace = trace
        self._read_lines = read_lines
        self._texts, self._quantities, self._tensors, self._lines = _Table(), _Table(), _Table(), _Table()
        self._loops = loops_by_step(trace.loops)

    def whole(self, view: TraceView) -> dict[str, Any]:
        """Return all of it; the tables of texts, formulas and tensors come last, when they are full."""
        sizes = page_sizes(self._trace)
        return {
            **sizes_data(sizes),
            "columns": [[column.name, column.code] for column in view.columns],
            "rows": [self._row(row) for row in view.rows],
            "steps": [self._step(step) for step in self._trace.steps],
            "inputs": [[visible(named.name or "an input"), self._tensor(named.tensor)] for named in self._trace.inputs],
            "loops": [[loop.first, loop.last, self._iterations(loop)] for loop in self._trace.loops],
            "totals": self._totals(),
            "flow": flow_data(whole_flow(self._trace), self._text),
            "lines": self._lines.values,
            "tensors": self._tensors.values,
            "quantities": self._quantities.values,
            "texts": self._texts.values,
        }

    def _text(self, text: str) -> int:
        return self._texts.add(visible(text))

    def _row(self, row: TraceRow) -> list[Any]:
        """Return a row's kind, step, tensor, cells, and its heading and explanation, -1 for what it doesn't have."""
        subject = row.subject
        step = int(row.cells[0]) if row.kind == "step" else -1
        tensor = self._tensor(subject.tensor) if subject is not None and subject.tensor is not None else -1
        heading = self._text(row.heading) if row.heading else -1
        explanation = self._text(row.explanation[1]) if row.explanation else -1
        return [row.kind, step, tensor, [self._text(cell) for cell in row.cells[1:]], heading, explanation]

    def _step(self, step: Step) -> list[Any]:
        """Return what the page shows of a step beside its row, in the order of `STEP` in step_details.js."""
        source = step.source
        place = f"{source.file}:{source.line}" if source is not None else ""
        return [
            self._text(one_line(step.expression)),
            self._text(operation_name(step)),
            self._text(step.role or ""),
            self._text(step.module or ""),
            self._text(f"{place} in {source.function}" if source is not None and source.function else place),
            self._excerpt(step),
            self._text(explain(self._trace, step)),
            [self._operand(reference) for reference in step.operands],
            [self._output(output) for output in step.outputs],
            self._arguments(step),
            self._costs(step.cost if step.cost is not UNSET else None),
            self._remarks(step),
            self._before(step),
            step.parent or -1,
        ]

    def _excerpt(self, step: Step) -> int | list[Any]:
        """Return the lines of a step's source and what is marked in them; -1 if they can't be read."""
        found = lines_around(step.source, step.expression, self._read_lines)
        if found is None:
            return -1
        lines = self._lines.add(
            (found.first, found.lines), lambda: [found.first, [self._text(line) for line in found.lines]]
        )
        return [lines, *(number for mark in found.marks for number in (mark.line, mark.start, mark.length))]

    def _operand(self, reference: Reference) -> list[int]:
        """Return the label of an operand, the step that made it and its tensor, -1 for what it doesn't have."""
        named = resolve(self._trace, reference)
        label = reference_label(reference, self._trace.steps)
        name = named.name if named is not None and reference.step is not None else None
        return [
            self._text(f"{label} ({name})" if name and name not in label else label),
            reference.step if named is not None and reference.step is not None else -1,
            self._tensor(named.tensor) if named is not None else -1,
        ]

    def _output(self, output: NamedTensor) -> list[int]:
        tensor = output.tensor
        storage = storage_label(tensor.storage.kind, tensor.storage.of, tensor.bytes, self._trace.steps)
        # the results of a composite are counted inside, where they are made
        is_allocated = tensor.storage.kind == "new" and output.inner is None
        return [self._text(output.name or ""), self._tensor(tensor), self._text(storage), int(is_allocated)]

    def _arguments(self, step: Step) -> list[int]:
        if step.arguments is UNSET:
            return []
        shown = [one for one in step.arguments if not one.default]
        return [self._text(f"{one.name}={one.value}{f' = {one.formula}' if one.formula else ''}") for one in shown]

    def _costs(self, cost: Cost | None) -> list[int]:
        """Return what a step computes, moves, holds for a while and keeps for gradients; -1 for what isn't known."""
        counts = [getattr(cost, name) if cost is not None else None for name in _COSTS]
        return [self._quantity(count) if count is not None else -1 for count in counts]

    def _remarks(self, step: Step) -> list[int]:
        """Return what else is to be said of a step."""
        texts = []
        if step.avoided is not UNSET:
            size = format_bytes(step.avoided.bytes)
            texts.append(f"fused: its scores {step.avoided.signature}, {size}, are never materialized")
        if step.opaque is not UNSET:
            texts.append(f"opaque: {step.opaque}")
        texts += [_repeated(loop) for loop in self._loops.get(step.index, ())]
        return [self._text(text) for text in texts]

    def _before(self, step: Step) -> int:
        """Return the tensor whose memory layout is drawn before that of a step's result; -1 if none is drawn."""
        if base_name(step.operation) not in _DRAWN or len(step.outputs) != 1:
            return -1
        after = step.outputs[0].tensor
        operands = operand_records(self._trace, step)
        is_copy = after.storage.kind == "new" and base_name(step.operation) in _COPIES
        if not operands or not (is_copy or after.storage.kind in ("view", "same")):
            return -1
        has_strides = all(len(one.stride) == len(one.shape) for one in (operands[0], after))
        return self._tensor(operands[0]) if has_strides else -1

    def _tensor(self, tensor: TensorRecord) -> int:
        """Return the position of a tensor: what formats.js reads of it."""
        signature, shape, stride = visible(tensor.signature), shape_label(tensor), stride_label(tensor)
        axes = tuple(map(self._axis, tensor.axes, tensor.shape))
        strides = tuple(
            self._number(text, number, trusted=not text.isdecimal() or number < 2)
            for text, number in zip(tensor.strides, tensor.stride, strict=True)
        )
        width = _width(tensor)
        is_new = tensor.storage.kind == "new"
        return self._tensors.add(
            (
                *(self._text(text) for text in (signature or "scalar", shape, stride, tensor.dtype)),
                axes,
                strides,
                width,
                int(tensor.contiguous),
                int(is_new),
                self._text(_known(tensor)),
            )
        )

    def _axis(self, axis: Axis, size: int) -> int:
        is_known = axis.known == "verified" or is_constant(axis)
        return self._number(axis.expression, size, trusted=is_known and not axis.unexplained, where=axis.where)

    def _iterations(self, loop: Loop) -> int:
        is_known = loop.known == "verified" or loop.expression.isdecimal()
        return self._number(loop.expression, loop.count, trusted=is_known)

    def _quantity(self, quantity: Quantity) -> int:
        return self._number(quantity.expression or "", quantity.value)

    def _number(self, text: str, value: int, trusted: bool = True, where: str | None = None) -> int:
        """Return the position of a number: its formula's text, its value, tree and condition.

        The tree is None where the formula needn't hold at other sizes.
        """
        condition = condition_tree(where) if where else None
        is_usable = trusted and (where is None or condition is not None)
        return self._quantities.add(
            (text, value, is_usable, where),
            lambda: [
                self._text(text),
                value,
                formula_tree(text) if is_usable else None,
                *([condition, self._text(where)] if where is not None else []),
            ],
        )

    def _totals(self) -> list[list[Any]]:
        """Return what all steps cost together, each with its name and whether it counts bytes."""
        cost = self._trace.cost
        if cost is UNSET:
            return []
        named = [
            ("FLOPs", cost.flops, False),
            ("moved", cost.moved, True),
            ("saved for backward", cost.saved, True),
            ("parameters", cost.parameters, False),
        ]
        return [[name, self._quantity(count), in_bytes] for name, count, in_bytes in named if count is not None]


def sizes_data(sizes: PageSizes) -> dict[str, Any]:
    """Return the sizes of a page, with the numbers of their colours, and the conditions on them."""
    small = sizes.small()
    colors = colors_of(record.symbol for record in sizes.records)
    return {
        "sizes": [
            [
                visible(one.symbol),
                one.size,
                visible(one.expression or ""),
                formula_tree(one.expression) if one.expression is not None else None,
                int(one.fixed),
                small[one.symbol] if small is not None else -1,
                colors[one.symbol],
            ]
            for one in sizes.records
        ],
        "conditions": [[visible(text), condition_tree(condition)] for text, condition in sizes.conditions],
    }


def _known(tensor: TensorRecord) -> str:
    """Return how the signature of a tensor is known, in a few words."""
    kinds: Iterable[str] = dict.fromkeys(axis.known for axis in tensor.axes if not is_constant(axis))
    checked = f", {tensor.checked} and checked by jaxtyping" if tensor.checked else ""
    axes = " and ".join(kinds)
    return f"axes {axes}{checked}" if axes else checked.removeprefix(", ")


def _repeated(loop: Loop) -> str:
    """Return how often a loop repeats its steps.

    >>> _repeated(Loop(2, 9, 6, "6", "verified")), _repeated(Loop(2, 9, 8, "H", "verified"))
    ('repeated 6 times', 'repeated ×H, 8 times')
    """
    times = f"{loop.count} times"
    return f"repeated {times}" if loop.expression == str(loop.count) else f"repeated ×{loop.expression}, {times}"


def _width(tensor: TensorRecord) -> int:
    """Return how many bytes an element takes; -1 if the tensor isn't dense."""
    elements = math.prod(tensor.shape)
    if tensor.layout is not UNSET or tensor.bytes % max(elements, 1):
        return -1
    if elements > 0:
        return tensor.bytes // elements
    bits = re.search(r"\d+", tensor.dtype)
    return int(bits[0]) // 8 if bits is not None else 1
