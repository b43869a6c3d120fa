"""States on which inputs the results depend, and whether they are random."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.dependence import patterns
from attnshape.checks.attention.perturbation import differs, other_numbers, other_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Experiment, Intervention, ReplayRun
from attnshape.checks.rules import batch
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided
from attnshape.model.formatting import join_words, pluralize
from attnshape.model.report import Pattern
from attnshape.tracing.operations import FUSED_ATTENTION, RANDOM

_SEEDS = (1, 2)


def inputs(subject: Subject) -> Iterator[Outcome]:
    """Yield on which inputs each result depends, and at which positions."""
    reached: dict[str, list[str]] = {path: [] for path, value in subject.base.returned if value.numel()}
    for name in subject.base.inputs:
        if name in subject.unvaried:
            yield Undecided("inputs", f"{name} can't be varied: {subject.unvaried[name]}")
            continue
        for change in (other_numbers, other_pattern):
            diff = subject.perturb(Intervention(inputs={name: change}))
            found = [path for path, mask in diff.returned() if bool(mask.any())]
            for path in found:
                reached[path].append(name)
            if found:
                break
    if left_out := subject.experiment.observe(lambda runnable, _: runnable.left_at_none):
        yield Undecided("inputs", f"what {join_words(left_out)} would change: left at the default None")
    for path, names in reached.items():
        yield Observation(f"{path} depends on {join_words(names) or 'no input'}")
    if batch.verifies_independence(batch.check(subject)):
        for pattern in patterns(subject):
            if (text := _positions(pattern)) is not None:
                yield Observation(text)


def _positions(pattern: Pattern) -> str | None:
    """Return which positions of an input a position of a result depends on, None if there is no plain rule."""
    rows = pattern.rows
    if not rows or not rows[0]:
        return None
    of = f"of {pattern.input}"
    shown = [[mark == "#" for mark in row] for row in rows]
    aligned = len(rows[0]) - len(rows)
    if all(all(row) for row in shown):
        return f"each position of {pattern.output} depends on every position {of}"
    if all(seen == (key <= query + aligned) for query, row in enumerate(shown) for key, seen in enumerate(row)):
        return f"position i of {pattern.output} depends on positions up to i {of}"
    if all(seen == (key == query) for query, row in enumerate(shown) for key, seen in enumerate(row)):
        return f"position i of {pattern.output} depends on position i {of} alone"
    count = sum(map(sum, shown))
    every = len(rows) * len(rows[0])
    return f"{pattern.output} depends on {pattern.input} at {count} of {every} pairs of positions"


def randomness(subject: Subject, training: Experiment | None) -> Iterator[Outcome]:
    """Yield whether the results are random, as the target runs and in training mode, and what draws numbers."""
    yield Observation(_drawn("the result", subject.experiment))
    if training is None:
        yield Undecided("randomness", "it doesn't run in training mode")
    elif not subject.experiment.training:
        yield Observation(_drawn("in training mode the result", training))


def _drawn(what: str, experiment: Experiment) -> str:
    runs = [experiment.run(Intervention(seed=seed)) for seed in _SEEDS]
    if not _differ(experiment, *runs):
        return f"{what} isn't random"
    names = [event.short_name for event in runs[0].events if event.name in RANDOM]
    fused = sum(event.name in FUSED_ATTENTION for event in runs[0].events)
    if not names:
        return f"{what} is random{': scaled_dot_product_attention' if fused else ''}"
    return f"{what} is random: {pluralize(len(names), 'call')} of {join_words(sorted(set(names)))}"


def _differ(experiment: Experiment, run: ReplayRun, other: ReplayRun) -> bool:
    pairs = zip(run.returned, other.returned, strict=False)
    return any(
        value.shape != twin.shape or bool(differs(value, twin, experiment.tolerance).any())
        for (_, value), (_, twin) in pairs
    )
