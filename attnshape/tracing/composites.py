"""Steps into torch's own Python functions, so that what they do inside is seen too."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

_QUESTIONS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


class Bodies:
    """The bodies of one run's composites: functions that would hand a watched call over as a whole.

    A composite asks `has_torch_function` first, and hands itself over where the answer is yes. Its body is the same
    code with the same closure and defaults, in whose globals the answer is no.
    """

    def __init__(self) -> None:
        self._known: dict[Callable[..., Any], FunctionType | None] = {}

    def of(self, func: Callable[..., Any]) -> FunctionType | None:
        """Return the function's body, None where there is nothing to step into."""
        if not isinstance(func, FunctionType):
            return None
        if func not in self._known:
            self._known[func] = _body(func)
        return self._known[func]


def _body(func: FunctionType) -> FunctionType | None:
    if _QUESTIONS.isdisjoint(func.__code__.co_names):
        return None
    namespace = func.__globals__ | dict.fromkeys(_QUESTIONS, _no)
    body = FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _no(*_: object) -> bool:
    return False


class Invocation:
    """Marks a running frame as one composite's, by its position among the steps.

    It is set as the frame's trace function, the one attribute of a frame that can be set; it lives as long as the
    call, and is called only under a debugger, where it does nothing.
    """

    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """Do nothing."""
