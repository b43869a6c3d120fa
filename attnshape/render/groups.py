"""The headings between the steps of an attention: read off the roles, and absent where these don't tell."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.model import Step, Trace

_PREPARE = frozenset({"projection", "split"})
_ATTEND = frozenset({"scores", "scale", "mask", "softmax", "context"})
_MERGE = frozenset({"merge", "output"})


def headings(trace: Trace) -> dict[int, str]:
    """Return the index of the first step of each part, with the part's heading; empty where the order is another."""
    steps = trace.steps
    begin = _attend_begins(trace)
    contexts = [step.index for step in steps if step.role == "context"]
    if begin is None or not contexts:
        return {}
    end = contexts[-1]
    for step in steps:
        allowed = _PREPARE if step.index < begin else _ATTEND if step.index <= end else _MERGE
        if step.role in (_PREPARE | _ATTEND | _MERGE) - allowed:
            return {}
    before = _first(step for step in steps if step.index < begin and step.role)
    after = [step.index for step in steps if step.index > end and step.role]
    found = {begin: "attend"}
    if before is not None:
        found[before] = "project and split"
        if before > 1:
            found[1] = "before the attention"
    if after:
        found[after[0]] = "merge"
    elif end < len(steps):
        found[end + 1] = "after the attention"
    if after and after[-1] < len(steps):
        found[after[-1] + 1] = "after the attention"
    return found if len(found) > 1 else {}


def _attend_begins(trace: Trace) -> int | None:
    begin = _first(step for step in trace.steps if step.role in _ATTEND)
    if begin is None:
        return None
    # The scores' own expression may start earlier, with the transposed key.
    used = {operand.step for operand in trace.step(begin).operands}
    while begin > 1 and begin - 1 in used and not any(output.name for output in trace.step(begin - 1).outputs):
        if trace.step(begin - 1).role in _PREPARE:
            break
        begin -= 1
        used |= {operand.step for operand in trace.step(begin).operands}
    return _enclosing(trace, begin)


def _enclosing(trace: Trace, begin: int) -> int:
    """Return the outermost composite that begins with that step, as far as roles go."""
    parent = trace.step(begin).parent
    while parent is not None and parent < begin and not any(one.role for one in trace.steps[parent : begin - 1]):
        begin, parent = parent, trace.step(parent).parent
    return begin


def _first(steps: Iterator[Step]) -> int | None:
    return next((step.index for step in steps), None)
