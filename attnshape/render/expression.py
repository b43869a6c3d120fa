"""A step's source text: on one line, and shortened to what the step itself does."""

from __future__ import annotations

import re
from collections.abc import Container

from attnshape.model import Step, Trace
from attnshape.render.text import visible
from attnshape.step_text import unfolded, without_self

LONG = 40
"""From how many characters on an argument is shortened too; a method's receiver always is."""

_LONGEST = 120
"""From how many characters on a call's last arguments are left out."""


def one_line(expression: str) -> str:
    r"""Return an expression's text on one line, without the comments and line breaks between its parts.

    >>> one_line("x.view(\n    B,  # batch\n    L,\n)")
    'x.view(B, L)'
    """
    return visible(unfolded(expression))


def label(trace: Trace, step: Step, shown: Container[int]) -> str:
    """Return a step as its row shows it, where `…` is the row above.

    `name = expression` where the source assigns it, `expression as name` where the name is a later consumer's variable.
    `shown` holds the indices of the steps that have a row.
    """
    text = clipped(short(step.expression))
    before, after = _names(step, text)
    above = _above(trace, step, shown)
    if above:
        text = elided(text, above, len(before) + len(text) + len(after) > LONG)
    turns = "".join(f"×{visible(loop.expression)} " for loop in trace.loops if loop.first <= step.index <= loop.last)
    return turns + "↳ " * _depth(trace, step) + before + text + after


def _names(step: Step, text: str) -> tuple[str, str]:
    """Return what stands before and after a step's expression; nothing where the expression is a statement itself."""
    names = [output.name for output in step.outputs]
    if not names or not all(names) or any(output.tensor.storage.kind == "inplace" for output in step.outputs):
        return "", ""
    bound = visible(", ".join(without_self(name) for name in names if name))
    if bound == text or re.match(rf"{re.escape(bound)} *(?:[-+@%&|^]|//?|\*\*?|<<|>>)=(?!=)", text):
        return "", ""
    by_use = any(output.by_use for output in step.outputs)
    return ("", f" as {bound}") if by_use else (f"{bound} = ", "")


def short(expression: str) -> str:
    """Return an expression on one line, without `self.`.

    >>> short("self.Wq(x)")
    'Wq(x)'
    """
    return without_self(one_line(expression))


def clipped(text: str) -> str:
    """Return a call without the last of its arguments where they are many.

    >>> clipped(f"f({', '.join(['argument'] * 30)})")[-21:]
    'rgument, argument, …)'
    """
    if len(text) <= _LONGEST or not text.endswith(")"):
        return text
    end = text.rfind(", ", 0, _LONGEST)
    opened = text[:end].count("(") - text[:end].count(")")
    return f"{text[:end]}, …{')' * opened}" if end > 0 and opened > 0 else text


def _above(trace: Trace, step: Step, shown: Container[int]) -> str | None:
    earlier = map(trace.step, range(step.index - 1, 0, -1))
    previous = next((one for one in earlier if one.parent == step.parent), None)
    if previous is None or previous.index not in shown or len(previous.outputs) != 1 or previous.outputs[0].name:
        return None
    used = any(operand.step == previous.index for operand in step.operands)
    return short(previous.expression) if used else None


def elided(text: str, part: str, long: bool) -> str:
    """Return a text with `…` for a part of it, where that is what a method is called on, or `long` says so."""
    places = [match.span() for match in re.finditer(rf"(?<![\w.]){re.escape(part)}(?!\w)", text)]
    if len(places) != 1 or part == text:
        return text
    start, end = places[0]
    grouped = text[start - 1 : start] == "(" and text[end : end + 1] == ")"
    if grouped and not re.search(r"[\w)\]]$", text[: start - 1]):
        start, end = start - 1, end + 1
    receiver = start == 0 and text[end : end + 1] in (".", "[")
    return text[:start] + "…" + text[end:] if receiver or long else text


def _depth(trace: Trace, step: Step) -> int:
    depth = 0
    while step.parent is not None and 0 < step.parent < step.index:
        step = trace.step(step.parent)
        depth += 1
    return depth
