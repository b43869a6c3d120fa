"""What is said beneath the table: preconditions and notes."""

from __future__ import annotations

from collections.abc import Sequence

from attnshape.inference.assemble import Assembled
from attnshape.inference.constraint import Equal, Multiple
from attnshape.inference.variation import Variation
from attnshape.paths import display_path
from attnshape.sizes import Sizes
from attnshape.tracing.patience import TooLong


def preconditions(variation: Variation) -> tuple[str, ...]:
    """Return under which conditions on the sizes the target runs."""
    return tuple(str(c) for c in variation.plan.constraints if isinstance(c, (Equal, Multiple)))


def notes(variation: Variation, sizes: Sizes, assembled: Assembled, wrong: Sequence[str]) -> tuple[str, ...]:
    """Return what the reader should know about this trace."""
    actual = variation.actual
    found = []
    if actual.broken is not None:
        found.append(actual.broken)
    found += actual.notes
    mapped = [f"step {number}" for number, step in enumerate(actual.steps, 1) if step.mapped]
    if mapped:
        found.append(f"an axis that vmap maps over is hidden in {_listed(mapped)}")
    unread = sorted({step.place.file for step in actual.steps if step.place and not step.place.expression})
    found += [f"the source of {display_path(file)} can't be read: its steps go by their operations" for file in unread]
    if not variation.runs:
        return (*found, "one run only: an axis is matched to the one size that it equals", *wrong)
    fixed = variation.plan.fixed
    if fixed:
        numbers = ", ".join(f"{letter}={sizes.records[letter].size}" for letter in fixed)
        found.append(f"not varied: {numbers}, since at other sizes the code takes other steps or fails")
    elif not variation.complete and actual.failure is None:
        after = f"after step {variation.common}" if variation.common else "from the first step on"
        ended = any(run.failure is not None and isinstance(run.failure.error, TooLong) for run in variation.runs)
        why = "runs for too long" if ended else "takes other steps"
        found.append(f"at small sizes the code {why} {after}: axes there are matched only")
    if sizes.labels:
        letters = ", ".join(letter for letter in sizes.records if letter in sizes.labels)
        found.append(f"nothing in the target depends on {letters}: axes of that size are matched only")
    if assembled.missed:
        found.append(f"no formula for {_listed(assembled.missed)}: shown as this run's number")
    for condition, places in assembled.conditions.items():
        found.append(f"holds only where {condition}, as here: {_listed(places)}")
    found += wrong
    return tuple(found)


def _listed(places: Sequence[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
