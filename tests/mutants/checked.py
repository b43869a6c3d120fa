"""Checks of the test-bed's cases, each at one of its sizes and seeds."""

import contextlib

from attnshape.claims import Claims
from attnshape.examine import check_request
from attnshape.report import Report
from attnshape.settings import Settings
from attnshape.target.request import Request
from tests.mutants.bed import PAIRS, UNUSUAL, Pair, Unusual
from tests.thorough import EVERY

SEEDS = (0, 1, 2)


def runs(entries: tuple[Pair, ...] | tuple[Unusual, ...]) -> list[tuple[Pair | Unusual, int, int]]:
    """Return each entry with a set of sizes and a seed, each in turn; where every test runs, with all of them."""
    if EVERY:
        return [(one, size, seed) for one in entries for size in range(len(one.sizes)) for seed in SEEDS]
    return [(one, place % len(one.sizes), SEEDS[place // 3 % 3]) for place, one in enumerate(entries)]


PAIR_RUNS = runs(PAIRS)
UNUSUAL_RUNS = runs(UNUSUAL)


def check(entry: Pair | Unusual, case: str, size: int, seed: int) -> Report:
    """Return what is found in a case."""
    request = Request(f"{entry.file}:{case}", given=entry.sizes[size])
    settings = Settings(seed=seed, command=f"attnshape check {case}")
    return check_request(request, settings, Claims(), 60.0, contextlib.nullcontext)


def failed_probes(report: Report) -> list[str]:
    """Return why probes failed internally, where any did."""
    return [one.why for one in report.unexamined if one.why.startswith("the probe failed")]
