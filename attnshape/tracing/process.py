"""What of the process the traced code may change, put back as it was."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Put back what is done inside to random states, grad mode, the default dtype and device, and the import path."""
    path, python, cpu = list(sys.path), random.getstate(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else None
    numpy = sys.modules.get("numpy.random")
    numbers = numpy.get_state() if numpy is not None else None
    grad, dtype, device = torch.is_grad_enabled(), torch.get_default_dtype(), _default_device()
    try:
        yield
    finally:
        sys.path[:] = path
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.set_state(numbers)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if _default_device() != device:
            torch.set_default_device(device)


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _default_device() -> Any:
    """Return the device that was set as default; None where none was, which `torch.get_default_device` hides."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context.device if context is not None else None
