"""Runs `check` on the cases at their sets of sizes and seeds."""

import contextlib
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from _pytest.mark import ParameterSet

from attnshape.checks.rules.registry import RULES
from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from tests.mutants.cases import PAIRS, Pair, Unusual

SEEDS = (0, 1, 2)


def runs(entries: Sequence[Pair | Unusual], is_quick: Callable[[int], bool]) -> list[ParameterSet]:
    """Return parameters for each entry at each of its sizes and with each seed.

    One set of sizes and one seed of each entry are what CI checks; they are slow unless `is_quick` holds for the
    entry's index. All others are for a nightly run.
    """
    found = []
    for index, entry in enumerate(entries):
        chosen = (index % len(entry.sizes), SEEDS[index // 3 % 3])
        for run in product(range(len(entry.sizes)), SEEDS):
            mark = pytest.mark.nightly if run != chosen else pytest.mark.slow
            marks = () if run == chosen and is_quick(index) else mark
            found.append(pytest.param(entry, *run, marks=marks, id="-".join(map(str, (entry, *run)))))
    return found


def is_first_of_its_rule(index: int) -> bool:
    """Return whether no pair before this one has a code of the same rule."""
    codes = next(rule.CODES for rule in RULES if PAIRS[index].code in rule.CODES)
    return not any(pair.code in codes for pair in PAIRS[:index])


def check(entry: Pair | Unusual, case: str, size: int, seed: int) -> Report:
    """Run `check` on a case, and return the report."""
    request = TargetSpec(f"{entry.file}:{case}", sizes=entry.sizes[size])
    settings = RunOptions(seed=seed, command=f"attnshape check {case}")
    return check_request(request, settings, Claims(), 300.0, contextlib.nullcontext)


def failed_rules(report: Report) -> list[str]:
    """Return the reasons of rules that failed internally."""
    return [entry.why for entry in report.not_checked if entry.why.startswith("the check failed")]
