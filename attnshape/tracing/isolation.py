"""Keeps what one run of the traced code does to the process from the next run, and from the tool."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

from attnshape.tracing import process_state, torch_state

_CPU_ONLY = (
    torch.version.cuda is None
    and torch.version.hip is None
    and getattr(torch.version, "xpu", None) is None
    and not torch.backends.mps.is_built()
)
"""Whether this build of torch has no accelerator."""


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Put back at the end what was changed within it.

    That is torch's defaults, modes, flags and hooks; the current folder, environment, import path, signal handlers and
    filters of warnings; the state of the random numbers. Modules that were imported stay.
    """
    settings = [(read, put_back, read()) for read, put_back in (*torch_state.KEPT, *process_state.KEPT)]
    randoms = [(put_back, read()) for read, put_back in (*torch_state.RANDOM, *process_state.RANDOM)]
    try:
        yield
    finally:
        for read, put_back, before in settings:
            # what can't be put back must not keep the rest from it
            with contextlib.suppress(Exception):
                if read() != before:
                    put_back(before)
        for put_back, before in randoms:
            with contextlib.suppress(Exception):
                put_back(before)


def seed_all(seed: int) -> None:
    """Seed torch's random numbers, Python's, and numpy's where these are in use."""
    if _CPU_ONLY:
        # torch.manual_seed would note the call stack for each accelerator that may still be set up
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more, and on a busy machine threads wait long for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
