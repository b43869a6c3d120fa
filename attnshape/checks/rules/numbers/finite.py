"""Which numbers of a run aren't finite."""

from __future__ import annotations

import torch
from torch import Tensor

from attnshape.checks.interventions.experiment import ReplayRun


def is_not_finite(value: Tensor) -> Tensor:
    """Return where a tensor is NaN or infinite."""
    return ~torch.isfinite(value)


def first_not_finite(run: ReplayRun) -> tuple[str, Tensor] | None:
    """Return the first result with a number that isn't finite, and its path."""
    return next(((path, value) for path, value in run.returned if bool(is_not_finite(value).any())), None)
