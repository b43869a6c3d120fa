"""Snapshots: a table for people, and below it the outline of a trace as JSON, one step a line.

`read_snapshot` reads the JSON alone and refuses a file whose table isn't the table of its JSON, so that a reviewer
can rely on the table. A snapshot contains no version, path, device or seed, and no steps inside of libraries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len

from attnshape.comparison.outline import Outline, input_step, outline
from attnshape.errors import AttnshapeError
from attnshape.model.behaviour import Behaviour
from attnshape.model.difference import OutlineResult, OutlineStep, OutlineTensor
from attnshape.model.trace import Reference, Trace, decode_json, json_text

FIRST_LINE = "attnshape snapshot 1"
COLUMNS = ("#", "step", "uses", "dtype", "signature", "shape", "stride", "storage")
NOT_CONTIGUOUS = "≁"
_DATA = "data (attnshape reads these lines; the table is for people):"
_WIDEST = 60
"""The most cells that a column is padded to."""
_VERBS = {"view": "view of", "same": "same as", "inplace": "writes"}
_AGAIN = "write it again: pytest --shapes-update"


class _Header(Struct, frozen=True, omit_defaults=True):
    target: str
    sizes: dict[str, int]
    failure: str | None = None
    holds_arguments: bool = False


class _DataLine(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of the data, in which exactly one field is set."""

    trace: _Header | None = None
    input: OutlineTensor | None = None
    step: OutlineStep | None = None
    returns: OutlineResult | None = None
    behaviour: Behaviour | None = None


class _LineError(Exception):
    """A problem with the line of this number."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


def snapshot_of(trace: Trace) -> Outline:
    """Return the outline that a snapshot of a trace keeps: no folders, and nothing inside of libraries."""
    whole = outline(trace, inner=False)
    where, colon, name = whole.target.partition(":")
    return replace(whole, target=where.replace("\\", "/").rpartition("/")[2] + colon + name)


def write_snapshot(snapshot: Outline) -> str:
    """Return the text of a snapshot, from which `read_snapshot` returns an equal outline."""
    lines = [*_table(snapshot), "", _DATA, *_data(snapshot)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def is_snapshot(text: str) -> bool:
    """Return whether a text begins like a snapshot, of this version or of another."""
    return text.startswith(FIRST_LINE.rpartition(" ")[0])


def read_snapshot(text: str, name: str = "the text") -> Outline:
    """Return the outline in a snapshot, of which `name` is the file.

    Raises AttnshapeError, with the line, if the text isn't a snapshot, is damaged, or its table and data differ.
    """
    try:
        return _read([line.rstrip() for line in text.rstrip().split("\n")])
    except _LineError as error:
        raise AttnshapeError(f"{name}:{error.number}: this isn't a valid snapshot: {error}", _AGAIN) from None


def _table(snapshot: Outline) -> Iterator[str]:
    yield FIRST_LINE
    yield _printable(snapshot.target)
    yield "  ".join(f"{_printable(symbol)}={size}" for symbol, size in snapshot.sizes.items())
    yield ""
    rows = [COLUMNS, *(row for step in (*snapshot.inputs, *snapshot.steps) for row in _rows(step))]
    widths = [max(min(cell_len(row[place]), _WIDEST) for row in rows) for place in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True))
    yield ""
    for result in snapshot.results:
        yield f"returns {_printable(result.name)}: {_reference(result.of)}"
    if not snapshot.results and snapshot.failure is None:
        yield "returns nothing"
    if snapshot.failure is not None:
        yield f"fails at {_printable(snapshot.failure)}"
    if snapshot.behaviour is not None:
        yield ""
        yield from _behaviour(snapshot.behaviour)


def _behaviour(behaviour: Behaviour) -> Iterator[str]:
    sizes = "  ".join(f"{_printable(symbol)}={size}" for symbol, size in behaviour.sizes.items())
    yield (
        f"behaviour at {sizes}" if behaviour.unknown is None else f"behaviour unknown: {_printable(behaviour.unknown)}"
    )
    for found in behaviour.properties:
        for statement in found.statements:
            yield f"{found.topic}: {_printable(statement.text)}{' (verified)' * statement.verified}"
        for reason in found.unknown:
            yield f"{found.topic}: unknown: {_printable(reason)}"


def _rows(step: OutlineStep) -> Iterator[tuple[str, ...]]:
    loops = "".join(f"×{_printable(loop.expression)} " for loop in step.loops)
    number, text = (str(step.index), loops + _printable(step.expression)) if step.index else ("", "")
    uses = ", ".join(map(_reference, step.uses))
    if len(step.outputs) == 1:
        (output,) = step.outputs
        name = _printable(output.name or "")
        if output.name is not None and text:
            text = f"{text} as {name}" if output.by_use else f"{name} = {text}"
        yield (number, text or name, uses, *_tensor_cells(output))
        return
    yield (number, text, uses, *[""] * (len(COLUMNS) - 3))
    for output in step.outputs:
        yield ("", f"  {_printable(output.name or '')}", "", *_tensor_cells(output))


def _tensor_cells(tensor: OutlineTensor) -> tuple[str, ...]:
    stride = [*map(str, tensor.stride), *([] if tensor.contiguous else [NOT_CONTIGUOUS])]
    if tensor.kind in ("new", "unknown"):
        storage = f"{tensor.kind} {tensor.bytes:,} B" if tensor.bytes else ""
    else:
        storage = f"{_VERBS[tensor.kind]} {_reference(tensor.of) if tensor.of is not None else 'an unseen tensor'}"
    texts = (tensor.dtype, tensor.signature, " ".join(map(str, tensor.shape)), " ".join(stride), storage)
    return tuple(map(_printable, texts))


def _reference(reference: Reference) -> str:
    if reference.step is not None:
        return f"{reference.step}[{reference.output}]" if reference.output else str(reference.step)
    if reference.input is not None:
        return _printable(reference.input)
    return f"parameter {_printable(reference.parameter)}" if reference.parameter is not None else "a constant"


def _printable(text: str) -> str:
    r"""Return a text with escapes for line breaks, control characters and the like.

    >>> print(_printable("a\nb"))
    a\nb
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _data(snapshot: Outline) -> Iterator[str]:
    lines = [_DataLine(trace=_Header(snapshot.target, snapshot.sizes, snapshot.failure, snapshot.holds_arguments))]
    lines += [_DataLine(input=output) for step in snapshot.inputs for output in step.outputs]
    lines += [_DataLine(step=step) for step in snapshot.steps]
    lines += [_DataLine(returns=result) for result in snapshot.results]
    lines += [_DataLine(behaviour=snapshot.behaviour)] if snapshot.behaviour is not None else []
    for line in lines:
        yield _printable(json_text(line, indent=0))


def _read(lines: Sequence[str]) -> Outline:
    if lines[0] != FIRST_LINE:
        raise _LineError(1, f"expected {FIRST_LINE!r}, found {lines[0][:40]!r}")
    for number, text in enumerate(lines, 1):
        if text.startswith(("<<<<<<<", ">>>>>>>")):
            raise _LineError(number, "it contains an unresolved merge conflict")
    if _DATA not in lines:
        raise _LineError(len(lines), f"expected {_DATA!r} below the table")
    start = lines.index(_DATA) + 1
    data = [(number, _decode(text, number)) for number, text in enumerate(lines[start:], start + 1) if text]
    header = next((line.trace for _, line in data if line.trace is not None), None)
    if header is None:
        raise _LineError(start + 1, "expected a line with the target and the sizes")
    snapshot = Outline(
        target=header.target,
        sizes=header.sizes,
        inputs=tuple(input_step(line.input) for _, line in data if line.input is not None),
        steps=tuple(line.step for _, line in data if line.step is not None),
        results=tuple(line.returns for _, line in data if line.returns is not None),
        failure=header.failure,
        holds_arguments=header.holds_arguments,
        behaviour=next((line.behaviour for _, line in data if line.behaviour is not None), None),
    )
    for number, line in data:
        _check(line, number, snapshot.steps)
    _check_text(lines, start, snapshot)
    return snapshot


def _decode(line: str, number: int) -> _DataLine:
    try:
        return decode_json(line, _DataLine)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _LineError(number, str(error)) from None


def _check(line: _DataLine, number: int, steps: Sequence[OutlineStep]) -> None:
    """Check the numbers, references and strides of a line. Raises _LineError."""
    step, result = line.step, line.returns
    outputs = (*(step.outputs if step is not None else ()), *([line.input] if line.input is not None else []))
    if step is not None and not (0 < step.index <= len(steps) and steps[step.index - 1] is step):
        raise _LineError(number, f"step {step.index} is out of order")
    for tensor in outputs:
        # sparse tensors have no strides, contiguous ones no formulas
        if len(tensor.stride) not in (0, len(tensor.shape)):
            raise _LineError(number, f"a tensor has {len(tensor.shape)} axes and {len(tensor.stride)} strides")
        if len(tensor.stride_formulas) not in (0, len(tensor.stride)):
            counts = f"{len(tensor.stride)} strides and {len(tensor.stride_formulas)} formulas for them"
            raise _LineError(number, f"a tensor has {counts}")
    references = [*(step.uses if step is not None else ()), *(tensor.of for tensor in outputs)]
    for of in (*references, result.of if result is not None else None):
        if of is None or of.step is None:
            continue
        if not (0 < of.step <= len(steps) and 0 <= of.output < len(steps[of.step - 1].outputs)):
            raise _LineError(number, f"it refers to output {of.output} of step {of.step}, which doesn't exist")


def _check_text(lines: Sequence[str], start: int, snapshot: Outline) -> None:
    """Check that the text is that of the snapshot, apart from the width of columns. Raises _LineError."""
    expected = write_snapshot(snapshot).rstrip("\n").split("\n")
    for number, (line, other) in enumerate(zip(lines, expected, strict=False), 1):
        if line.split() != other.split():
            problem = "the table isn't the table of the data below" if number < start else "the data was edited"
            raise _LineError(number, problem)
    if len(lines) != len(expected):
        raise _LineError(min(len(lines), len(expected)) + 1, "the data was edited")
