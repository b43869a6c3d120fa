"""Tells counters, on which no result depends, from buffers whose changes matter."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import constant
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention

_CALLS = (1, 2, 3, 4, 6, 10, 999, 1000, 10**6)
"""After how many calls results are compared."""


def is_idle_counter(subject: Subject, name: str) -> bool:
    """Return whether a buffer counts calls, and no result changes whatever the number of calls before.

    The last of these numbers are those at which code acts that does something every so many calls.
    """
    before, after = subject.base.state[name], subject.base.state_after[name]
    if before.numel() != 1 or before.is_floating_point() or before.dtype == torch.bool:
        return False
    later = map(partial(_after_calls, before, after), _CALLS)
    return all(subject.perturb(Intervention(parameters={name: constant(value)})).has_no_effect for value in later)


def _after_calls(before: Tensor, after: Tensor, calls: int) -> Tensor:
    return before + (after - before) * calls
