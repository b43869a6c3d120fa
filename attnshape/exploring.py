"""Under which constraints a target runs at small sizes: what `check` and `annotate` ask before they look closer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from attnshape.errors import AttnshapeError
from attnshape.inference.assemble import ENOUGH_ROUNDS, assemble
from attnshape.inference.plan import Plan
from attnshape.inference.small_runs import Doing, SmallRuns
from attnshape.inference.variation import Variation, alone
from attnshape.inference.vary import Explorer
from attnshape.memory.standin import stand_ins, worth_foretelling
from attnshape.pipeline import small_run
from attnshape.sizes import Sizes
from attnshape.target.request import Placement, Target
from attnshape.tracing.patience import Patience
from attnshape.tracing.raw import RawTrace
from attnshape.tracing.runner import record_anew


def explore(
    target: Target, sizes: Sizes, placement: Placement, patience: Patience, seconds: float, doing: Doing
) -> Variation | None:
    """Return the target's variation at small sizes, None where it can't be built at others than its own.

    `seconds` is how long constraints are looked for. Raises AttnshapeError where the target fails at its own sizes.
    """
    if not target.varies:
        return None
    plan, actual, explorer = _begun(target, sizes, placement, patience, seconds, doing)
    return explorer.vary(plan, actual)


def explore_closely(
    target: Target, sizes: Sizes, placement: Placement, patience: Patience, seconds: float, doing: Doing
) -> Variation:
    """Return the variation with as many rounds as a trace's signatures take; at one run where nothing varies.

    Raises AttnshapeError where the target fails at its own sizes.
    """
    if not target.varies:
        return alone(Plan(sizes), _first_run(target, sizes, placement))
    plan, actual, explorer = _begun(target, sizes, placement, patience, seconds, doing)
    variation = explorer.vary(plan, actual)
    return explorer.extend(variation, ENOUGH_ROUNDS) if assemble(variation, sizes.numbers).unsure else variation


def small_enough(sizes: Sizes) -> Sizes:
    """Return the sizes, or where they are large smaller ones that stand in for them."""
    return next(stand_ins(sizes), sizes) if worth_foretelling(sizes) else sizes


def _begun(
    target: Target, sizes: Sizes, placement: Placement, patience: Patience, seconds: float, doing: Doing
) -> tuple[Plan, RawTrace, Explorer]:
    doing("running the target")
    single = replace(placement, dtype=torch.float32)

    def attempt(numbers: Mapping[str, int]) -> RawTrace:
        return small_run(target, numbers, single, patience, None)

    runs = SmallRuns(attempt, doing=doing, patience=seconds)
    plan = runs.weighed(Plan(sizes))
    return plan, _first_run(target, sizes, single), Explorer(runs)


def _first_run(target: Target, sizes: Sizes, placement: Placement) -> RawTrace:
    """Return a run at the user's sizes; what is large isn't run at all, and a run at smaller sizes stands in."""
    for numbers in [one.numbers for one in stand_ins(sizes)] if worth_foretelling(sizes) else [sizes.numbers]:
        actual = record_anew(partial(target.build, numbers, placement), placement.seed)
        if actual.failure is None:
            break
    if actual.failure is not None:
        error = actual.failure.error
        raise AttnshapeError(
            f"the target fails, so that nothing can be checked: {type(error).__name__}: {error}",
            "attnshape trace, with the same arguments, shows where and why",
        )
    return actual
