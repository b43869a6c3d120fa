"""Changes something in every attention of a target in one run.

Each attention's context is put back to that of the unchanged run, so that a change in one attention reaches no other:
each is observed by itself, though the number of runs doesn't grow with the number of attentions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor

from attnshape.checks.attention.perturbation import PerturbationDiff, differs
from attnshape.checks.interventions.experiment import Experiment, Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef, Replace


@dataclass(frozen=True)
class SimultaneousRun:
    """A run in which the contexts of attentions were put back."""

    base: ReplayRun
    run: ReplayRun
    contexts: dict[OutputRef, Tensor]
    """Each context as the attention computed it, before it was put back."""
    tolerance: float

    @property
    def diff(self) -> PerturbationDiff:
        """Which elements of the results differ, with the contexts put back."""
        return PerturbationDiff(self.base, self.run, self.tolerance)

    def changes(self, context: OutputRef) -> bool:
        """Return whether an attention computed another context than in the unchanged run."""
        return bool(self.mask(context).any())

    def mask(self, context: OutputRef) -> Tensor:
        """Return which elements of a context differ as the attention computed it."""
        return differs(self.base.value(context), self.contexts[context], self.tolerance)

    def is_apart(self, ref: OutputRef) -> bool:
        """Return whether the call that returned a result read what it read in the unchanged run.

        If not, a change elsewhere reached it, and what follows from replacing its result can't be told apart.
        """
        if not self.run.follows(self.base):
            return False
        before, after = self.base.event(ref).operand_values, self.run.event(ref).operand_values
        return not any(differs(a, b, self.tolerance).any() for a, b in zip(before, after, strict=True))


def run_simultaneously(experiment: Experiment, contexts: Iterable[OutputRef], change: Intervention) -> SimultaneousRun:
    """Run with an intervention, and put the contexts back; the intervention may change them from what they were."""
    base = experiment.base
    computed: dict[OutputRef, Tensor] = {}

    def put_back(context: OutputRef) -> Replace:
        changed = change.results.get(context)

        def replacement(value: Tensor) -> Tensor:
            computed[context] = value
            if value.shape != base.value(context).shape:  # the code takes a different path
                return value
            before = base.value(context).clone()
            return changed(before) if changed is not None else before

        return replacement

    results = {**change.results, **{context: put_back(context) for context in contexts}}
    run = experiment.run(replace(change, results=results))
    return SimultaneousRun(base, run, computed, experiment.tolerance)
