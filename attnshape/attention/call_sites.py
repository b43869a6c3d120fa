"""Where a helper function was entered: for what goes wrong in how it is called, not in what it does."""

from __future__ import annotations

from types import CodeType

from attnshape.attention.kinds import MOVES
from attnshape.attention.subject import Subject
from attnshape.inference.kinds import CAST
from attnshape.replaying.replay import Address
from attnshape.tracing.places import Places
from attnshape.tracing.raw import Place

_ARITHMETIC = {
    *("mul", "add", "sub", "neg", "div", "rsub", "__rsub__", "__rmul__", "sin", "cos", "polar", "outer", "einsum"),
    *("view_as_complex", "view_as_real", "arange", "pow", "__rpow__", "exp", "__rtruediv__", "reciprocal", "stack"),
    *("ones_like", "complex", "roll", "empty_like", "copy_", "__setitem__", "unflatten", "real", "imag", "arange"),
}


def entering(subject: Subject, address: Address) -> Place | None:
    """Return where the function that a call stands in was called, where that does arithmetic and moves numbers only.

    None where the call stands in code that does more than that.
    """
    calls = subject.base.event(address).calls
    if len(calls) < 2 or not _is_helper(subject, calls[0].f_code):
        return None
    return Places().find(calls[1])[0]


def _is_helper(subject: Subject, code: CodeType) -> bool:
    own = [event for event in subject.base.events if any(moment.f_code is code for moment in event.calls)]
    return all(event.name in _ARITHMETIC | MOVES | CAST for event in own)
