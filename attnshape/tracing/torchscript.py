"""Sees the calls of TorchScript, which runs outside of Python and hands no operation over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

REASON = "TorchScript"
_CALLED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
Seen = Callable[[Callable[[], Any], tuple[Any, ...], dict[str, Any], FrameType], Any]
"""What makes such a call, given the call itself, its arguments, and the frame that it comes from."""


class ScriptCalls:
    """Hands each call of TorchScript that one thread's Python code makes to the recorder, between two moments.

    Their classes' `__call__` is another as long as that; there is no hook for it.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen: Seen | None = seen
        self._before: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> ScriptCalls:
        self._before = [kind.__call__ for kind in _CALLED]
        for kind, before in zip(_CALLED, self._before, strict=True):
            kind.__call__ = self._watching(before)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, before in zip(_CALLED, self._before, strict=True):
            kind.__call__ = before
        self._seen = None  # it holds the recorder

    def _watching(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def call(called: Any, *args: Any, **keywords: Any) -> Any:
            if self._seen is None or threading.get_ident() != self._thread:
                return before(called, *args, **keywords)
            return self._seen(lambda: before(called, *args, **keywords), args, keywords, sys._getframe(1))

        return call
