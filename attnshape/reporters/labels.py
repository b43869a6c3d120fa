"""The text of a step in a table: its expression, the name it is assigned to, its operands, its result's storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from msgspec import UNSET

from attnshape.model.formatting import find_part, format_bytes, format_count, strip_self, unfold
from attnshape.model.references import reference_name
from attnshape.model.trace import (
    NO_SIZE,
    Loop,
    Quantity,
    Reference,
    Source,
    Step,
    StorageKind,
    TensorRecord,
    Trace,
)
from attnshape.reporters.escaping import visible
from attnshape.tracing.operations import short_name

if TYPE_CHECKING:
    from attnshape.model.difference import OutlineStep, OutlineTensor

LONG = 40
"""The length from which an argument is shortened too; the receiver of a method always is."""
NOT_CONTIGUOUS = "≁"
INNER = "↳ "
"""What stands before a step inside a composite, once for each composite around it."""
STORAGE_VERBS = {"view": "view of", "same": "same as", "inplace": "writes"}

_LONGEST = 120
"""The length from which the last arguments of a call are left out."""
_LONGEST_KEYWORD = 40
"""The length up to which a keyword argument stays in a call of which others are left out."""
_CONTEXT = 28
"""How much of what two long expressions have in common is shown on either side of what differs."""
_KEYWORD = re.compile(r", (\w+=(?:[^,()\[\]]|\([^()]*\)|\[[^\[\]]*\])+)(?=[,)])")
_TOKEN = re.compile(r"\w+|\s+|\S")


def one_line(expression: str) -> str:
    r"""Return the text of an expression on one line, without comments and line breaks between its parts.

    >>> one_line("x.view(\n    B,  # batch\n    L,\n)")
    'x.view(B, L)'
    """
    return visible(unfold(expression))


def short(expression: str) -> str:
    """Return an expression on one line, without `self.`.

    >>> short("self.Wq(x)")
    'Wq(x)'
    """
    return visible(strip_self(unfold(expression)))


def operation_name(step: Step) -> str:
    """Return the short name of a step's operation."""
    return visible(short_name(step.operation))


def numbers(values: Sequence[int]) -> str:
    """Return a shape or stride as text.

    >>> numbers((2, 8)), numbers(())
    ('2 8', '()')
    """
    return " ".join(map(str, values)) or "()"


def source_label(source: Source | None) -> str:
    """Return a place in the source as a table names it, `model.py:31`; empty if it is unknown."""
    return f"{source.file}:{source.line}" if source is not None else ""


def shape_label(tensor: TensorRecord | OutlineTensor) -> str:
    """Return a shape as text; an axis without a single size is shown by its symbol, such as `j1`."""
    return "?" if tensor.signature == "..." else " ".join(axis_sizes(tensor)) or "()"


def axis_sizes(tensor: TensorRecord | OutlineTensor) -> list[str]:
    """Return each axis's size as text, and the symbol of one that has no single size."""
    symbols = dict(enumerate(tensor.signature.split()))  # a saved one may have fewer than axes
    return [visible(symbols.get(axis, "?")) if size == NO_SIZE else str(size) for axis, size in enumerate(tensor.shape)]


def stride_label(tensor: TensorRecord | OutlineTensor) -> str:
    """Return a stride as text, with a mark if the tensor isn't contiguous; the layout of one without strides."""
    if tensor.layout is not UNSET and not tensor.stride:
        return visible(tensor.layout)
    return numbers(tensor.stride) + ("" if tensor.contiguous else f" {NOT_CONTIGUOUS}")


def step_label(trace: Trace, step: Step, shown: Container[int], around: Sequence[Loop]) -> str:
    """Return the text of a step in its row; `…` in it stands for the expression in the row above.

    The source's assignment is shown as `name = expression`; a name that only a later use of the value reveals, as
    `expression as name`. `shown` are the indices of the steps that have a row, and `around` are the loops
    around the step.
    """
    text = clip(short(step.expression))
    inplace = any(output.tensor.storage.kind == "inplace" for output in step.outputs)
    by_use = any(output.by_use for output in step.outputs)
    before, after = binding(text, [output.name for output in step.outputs], by_use, inplace)
    above = _above(trace, step, shown)
    if above:
        text = elide(text, above, len(before) + len(text) + len(after) > LONG)
    loops = "".join(f"×{visible(loop.expression)} " for loop in around)
    depth, inner = 0, step
    while inner.parent is not None and 0 < inner.parent < inner.index:
        depth, inner = depth + 1, trace.step(inner.parent)
    return loops + INNER * depth + before + text + after


def binding(text: str, names: Sequence[str | None], by_use: bool, inplace: bool) -> tuple[str, str]:
    """Return what to write before and after an expression to show the names of its results.

    Both are empty for results without names, for writes in place, and for an expression that is a statement itself.
    """
    if not names or not all(names) or inplace:
        return "", ""
    bound = visible(", ".join(strip_self(name) for name in names if name))
    if bound == text or re.match(rf"{re.escape(bound)} *(?:[-+@%&|^]|//?|\*\*?|<<|>>)=(?!=)", text):
        return "", ""
    return ("", f" as {bound}") if by_use else (f"{bound} = ", "")


def clip(text: str) -> str:
    """Return a long call without the last of its arguments; keywords after them stay, since they may change the result.

    >>> clip(f"f({', '.join(['argument'] * 30)})")[-21:]
    'rgument, argument, …)'
    >>> clip(f"f({', '.join(['argument'] * 30)}, is_causal=True)")[-28:]
    'argument, …, is_causal=True)'
    """
    if len(text) <= _LONGEST or not text.endswith(")"):
        return text
    end = text.rfind(", ", 0, _LONGEST)
    opened = text[:end].count("(") - text[:end].count(")")
    if end <= 0 or opened <= 0:
        return text
    keywords = [word for word in _KEYWORD.findall(text[end:]) if len(word) <= _LONGEST_KEYWORD]
    rest = "".join(f", {word}" for word in keywords if not _is_passed_on(word))
    return f"{text[:end]}, …{rest}{')' * opened}"


def _is_passed_on(keyword: str) -> bool:
    """Return whether a keyword argument only passes on a variable of its name, as in `training=training`."""
    name, _, value = keyword.partition("=")
    return name == value


def clip_around(text: str, other: str) -> str:
    """Return a long expression without what it has in common with another one, except near to what differs.

    >>> names = ", ".join(["argument"] * 30)
    >>> clip_around(f"f({names}, is_causal=True)", f"f({names}, is_causal=False)")
    'f(argument, argument, argume…gument, argument, is_causal=True)'
    """
    tokens, others = _TOKEN.findall(text), _TOKEN.findall(other)
    if len(text) <= _LONGEST or tokens == others:
        return clip(text)
    parts: list[str] = []
    for kind, _, _, start, end in SequenceMatcher(None, others, tokens, autojunk=False).get_opcodes():
        part = "".join(tokens[start:end])
        is_long = kind == "equal" and len(part) > 2 * _CONTEXT
        parts.append(f"{part[:_CONTEXT]}…{part[-_CONTEXT:]}" if is_long else part)
    return "".join(parts)


def elide(text: str, part: str, long: bool) -> str:
    """Return a text with `…` for a part of it, if that is the receiver of a method or the whole text is long.

    >>> elide("x.view(2, 3).mT", "x.view(2, 3)", long=False)
    '….mT'
    """
    start = find_part(text, part)
    end = start + len(part)
    if start < 0 or part == text or find_part(text, part, end) >= 0:
        return text
    grouped = text[start - 1 : start] == "(" and text[end : end + 1] == ")"
    if grouped and not re.search(r"[\w)\]]$", text[: start - 1]):
        start, end = start - 1, end + 1
    receiver = start == 0 and text[end : end + 1] in (".", "[")
    return text[:start] + "…" + text[end:] if receiver or long else text


def reference_label(reference: Reference | None, steps: Sequence[Step] | Sequence[OutlineStep]) -> str:
    """Return a reference as a table names it: the number of a step, the name of an input or a parameter."""
    return visible(reference_name(reference, steps))


def storage_label(
    kind: StorageKind, of: Reference | None, size: int, steps: Sequence[Step] | Sequence[OutlineStep]
) -> str:
    """Return where the result of a step is stored: `new 120 KiB`, `view of 2`, `same as 3` or `writes 4`.

    Of a tensor without a storage of its own only the size is known, where that is.
    """
    if kind == "unknown":
        return format_bytes(size) if size else "unknown"
    if kind == "new":
        return f"new {format_bytes(size)}"
    return f"{STORAGE_VERBS[kind]} {reference_label(of, steps)}"


def _above(trace: Trace, step: Step, shown: Container[int]) -> str | None:
    """Return the expression in the row above, where it has no name and the step reads it."""
    # what is above the first step inside a composite is the composite
    earlier = map(trace.step, range(step.index - 1, step.parent or 0, -1))
    previous = next((other for other in earlier if other.parent == step.parent), None)
    if previous is None or previous.index not in shown or len(previous.outputs) != 1 or previous.outputs[0].name:
        return None
    used = any(operand.step == previous.index for operand in step.operands)
    return short(previous.expression) if used else None


def operations_label(operations: Quantity | None) -> str:
    """Return a number of operations with its formula.

    >>> operations_label(Quantity(81920, "4*B*H*L*L*Dk")), operations_label(Quantity(7)), operations_label(None)
    ('81.9 k = 4*B*H*L*L*Dk', '7', 'unknown')
    """
    return _with_formula(operations, format_count)


def bytes_label(count: Quantity | None) -> str:
    """Return a number of bytes with its formula.

    >>> bytes_label(Quantity(81920, "8*B*L*D")), bytes_label(Quantity(0, "0"))
    ('80 KiB = 8*B*L*D', '0')
    """
    return _with_formula(count, format_bytes)


def _with_formula(quantity: Quantity | None, format_: Callable[[int], str]) -> str:
    if quantity is None:
        return "unknown"
    if not quantity.value:
        return "0"
    number, formula = format_(quantity.value), quantity.expression
    return number if formula is None or formula.isdecimal() else f"{number} = {formula}"
