"""Runs `check` on the cases at their sets of sizes and seeds."""

import contextlib
from collections.abc import Callable, Sequence
from itertools import product
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet

from attnshape.checks.rules.registry import RULES
from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from tests.mutants.cases import PAIRS, Pair, Unusual

SEEDS = (0, 1, 2)


def runs(
    entries: Sequence[Pair | Unusual],
    is_quick: Callable[[int], bool],
    is_for_ci: Callable[[int], bool] = lambda index: False,
) -> list[ParameterSet]:
    """Return parameters for each entry at each of its sizes and with each seed.

    One set of sizes and one seed of each entry are slow unless `is_quick` holds for its index, the same ones whatever
    entries are added; CI makes those for which `is_for_ci` holds, and samples the others. The rest are for a nightly
    run.
    """
    found = []
    for index, entry in enumerate(entries):
        number = crc32(str(entry).encode())
        chosen = (number % len(entry.sizes), SEEDS[number // len(entry.sizes) % len(SEEDS)])
        slow = pytest.mark.slow(in_ci=True) if is_for_ci(index) else pytest.mark.slow
        for run in product(range(len(entry.sizes)), SEEDS):
            mark = slow if run == chosen else pytest.mark.nightly
            marks = () if run == chosen and is_quick(index) else mark
            found.append(pytest.param(entry, *run, marks=marks, id="-".join(map(str, (entry, *run)))))
    return found


def is_first_of_its_rule(index: int) -> bool:
    """Return whether no pair before this one has a code of the same rule."""
    codes = next(rule.CODES for rule in RULES if PAIRS[index].code in rule.CODES)
    return not any(pair.code in codes for pair in PAIRS[:index])


def is_first_of_its_code(index: int) -> bool:
    """Return whether no pair before this one has the same code."""
    return not any(pair.code == PAIRS[index].code for pair in PAIRS[:index])


def check(entry: Pair | Unusual, case: str, size: int, seed: int) -> Report:
    """Run `check` on a case, and return the report."""
    request = TargetSpec(f"{entry.file}:{case}", sizes=entry.sizes[size])
    settings = RunOptions(seed=seed, command=f"attnshape check {case}")
    return check_request(request, settings, Claims(), 300.0, contextlib.nullcontext)


def failed_rules(report: Report) -> list[str]:
    """Return the reasons of rules that failed internally."""
    return [entry.why for entry in report.not_checked if entry.why.startswith("the check failed")]
