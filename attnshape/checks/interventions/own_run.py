"""The user's own run, repeated on the CPU with every tensor kept: the numbers in it are those that the user gets."""

from __future__ import annotations

import torch

from attnshape.checks.interventions.experiment import Experiment, ReplayRun


class OwnRun(Experiment):
    """A target in the user's dtype, with the parameters that its constructor makes.

    Other experiments replace parameters that are zero, which would hide the effect of changes, and prefer float64.
    """

    def _first(self) -> ReplayRun:
        self._default = torch.get_default_dtype()
        self._state = {}
        return self.run()
