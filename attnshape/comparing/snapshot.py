"""A snapshot: an outline as a small text that is read in a code review, and that `read_snapshot` reads back.

It names no version, no path, no device and no seed, and nothing of what lies inside of libraries.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from rich.cells import cell_len

from attnshape.comparing.cells import cell, line, quoted, word
from attnshape.comparing.outline import Outline, OutlineStep, Tensor, outline
from attnshape.model import Reference, StorageKind, Trace

FIRST_LINE = "attnshape snapshot 1"
NAMES = ("#", "name", "step", "op", "uses", "dtype", "signature", "shape", "stride", "storage", "formulas")
NOT_CONTIGUOUS = "≁"
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
VERBS: dict[StorageKind, str] = {"view": "view of", "same": "same as", "inplace": "writes"}
_WIDEST = 60
"""To how many cells a column is padded; what is longer stands out."""
BY_USE = "as "
"""Before a name that is a later consumer's variable."""
RETURNS, NOTHING = "returns:", "nothing"
UNSEEN, CONSTANT, PARAMETER = "an unseen tensor", "a constant", "parameter "


def snapshot_of(trace: Trace) -> Outline:
    """Return a trace's outline as a snapshot has it: without what lies inside of libraries, and without folders."""
    whole = outline(trace, within=False)
    where, colon, name = whole.target.partition(":")
    return replace(whole, target=where.replace("\\", "/").rpartition("/")[2] + colon + name)


def write_snapshot(made: Outline) -> str:
    """Return an outline as text; one without steps inside of others is read back as it was."""
    head = [FIRST_LINE, f"target: {cell(made.target)}"]
    head.append("sizes: " + " ".join(f"{word(letter)}={size}" for letter, size in made.sizes.items()))
    rows = [NAMES, *(row for step in (*made.inputs, *made.steps) for row in _rows(step))]
    widths = [max(min(cell_len(row[place]), _WIDEST) for row in rows) for place in range(len(NAMES))]
    lines = [line([_padded(text, width) for text, width in zip(row, widths, strict=True)]) for row in rows]
    tail = [f"{RETURNS} {line([cell(one.name), cell(reference(one.of))])}" for one in made.results]
    if made.failure is not None:
        tail.append(f"fails at: {cell(made.failure)}")
    return "\n".join(text.rstrip() for text in (*head, "", *lines, "", *(tail or [f"{RETURNS} {NOTHING}"]))) + "\n"


def _rows(step: OutlineStep) -> Iterator[tuple[str, ...]]:
    if not step.index:
        yield ("", _name(step.outputs[0]), "", "", "", *_tensor(step.outputs[0]))
        return
    turns = [f"×{word(turn.expression)}={turn.count}" for turn in step.turns]
    doing = cell(" ".join([word(step.operation), *turns]))
    uses = ", ".join(map(reference, step.uses))
    first = (str(step.index), cell(step.expression) if step.expression else "", doing, cell(uses) if uses else "")
    if len(step.outputs) == 1:
        yield (first[0], _name(step.outputs[0]), *first[1:], *_tensor(step.outputs[0]))
        return
    yield (first[0], "", *first[1:], *[""] * 6)
    for output in step.outputs:
        yield ("", _name(output), "", "", "", *_tensor(output))


def _name(tensor: Tensor) -> str:
    if tensor.name is None:
        return ""
    if tensor.by_use:
        return BY_USE + cell(tensor.name)
    return quoted(tensor.name) if tensor.name.startswith(BY_USE) else cell(tensor.name)


def _tensor(tensor: Tensor) -> tuple[str, ...]:
    stride = [*map(str, tensor.stride), *([] if tensor.contiguous else [NOT_CONTIGUOUS])]
    return (
        cell(tensor.dtype),
        cell(tensor.signature) if tensor.signature else "",
        " ".join(map(str, tensor.shape)),
        " ".join(stride),
        _storage(tensor),
        cell(" ".join(map(word, tensor.formulas))) if tensor.formulas else "",
    )


def _storage(tensor: Tensor) -> str:
    if tensor.kind == "new":
        unit, size = next(one for one in UNITS if tensor.bytes % one[1] == 0)
        return f"new {tensor.bytes // size} {unit}" if tensor.bytes else ""
    return cell(f"{VERBS[tensor.kind]} {reference(tensor.of) if tensor.of is not None else UNSEEN}")


def reference(one: Reference) -> str:
    """Return a reference: a step's number, with the place of the output unless it is the first, or a name."""
    if one.step is not None:
        return f"{one.step}[{one.output}]" if one.output else str(one.step)
    if one.input is not None:
        # a name of digits is no step's number
        return quoted(one.input) if one.input[:1].isdecimal() else word(one.input)
    return f"{PARAMETER}{word(one.parameter)}" if one.parameter is not None else CONSTANT


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
