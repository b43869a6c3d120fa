"""Notices work on tensors in threads that the traced code starts, which the recorder can't see."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class OtherThreads:
    """Whether another thread worked on tensors."""

    def __init__(self) -> None:
        self.worked = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the threads that are started within it, as long as it lasts."""
        before = threading.getprofile()
        # called at the start of each new thread, in that thread
        threading.setprofile(self._started)
        try:
            yield
        finally:
            threading.setprofile(before)

    def _started(self, *_: object) -> None:
        sys.setprofile(None)
        _Witness(self).__enter__()  # type: ignore[no-untyped-call]  # torch leaves its modes untyped


class _Witness(TorchFunctionMode):
    """Takes note that a thread does something with tensors; modes are each thread's own."""

    def __init__(self, watching: OtherThreads) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._watching.worked = True
        return result
