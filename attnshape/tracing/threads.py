"""Notices what threads that the traced code starts make of tensors, which the recorder can't see."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnshape.tracing.call import tensors_in

REASON = "it was made in another thread, whose steps can't be seen"


class OtherThreads:
    """What other threads made of tensors."""

    def __init__(self) -> None:
        self._made: dict[int, Callable[[], Tensor | None]] = {}

    @property
    def worked(self) -> bool:
        """Whether another thread worked on tensors."""
        return bool(self._made)

    def made(self, tensor: Tensor) -> bool:
        """Say whether the tensor was made in another thread."""
        reference = self._made.get(id(tensor))
        return reference is not None and reference() is tensor

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Take note of what another thread made."""
        self._made.update((id(tensor), weakref.ref(tensor)) for tensor in tensors)

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
        self._watching.note(tensors_in(result))
        return result
