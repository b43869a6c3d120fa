"""Runs many cases of the families, several at once, and sums up what failed.

The cases are drawn in chunks: a chunk has a seed, and the same cases whenever it is drawn. `--seed S --cases N` starts
with the chunk S, so that a long run can be done in parts: the last line of a part says with which seed to continue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.fuzz import command_lines, faults, hostile_targets, process_signals, programs, saved_files
from tests.fuzz.cases import Family, Verdict, drawn
from tests.fuzz.harness import Harness

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (command_lines, saved_files, programs, process_signals, hostile_targets, faults)
}
CHUNK = 25
"""How many cases have one seed."""
_PROGRESS_SECONDS = 20.0


@dataclass(frozen=True)
class Finished:
    """A case that was tried."""

    family: str
    seed: int
    place: int
    verdict: Verdict
    description: str


@dataclass
class Sum:
    """The results of a family."""

    cases: int = 0
    valid: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    """Seconds by verb."""


def main() -> None:
    """Parse the command line and run what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one; can be repeated")
    parser.add_argument("--cases", type=int, help="how many cases of each family")
    parser.add_argument("--seed", type=int, default=0, help=f"the first chunk of {CHUNK} cases")
    parser.add_argument("--case", type=int, help="only this case of the chunk")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="start no further chunk after so many minutes")
    parser.add_argument("--long", action="store_true", help="as many cases as a long run has")
    options = parser.parse_args()
    names = options.family or list(FAMILIES)
    chunks = list(_chunks(names, options.cases, options.seed, options.long))
    if options.case is not None:
        chunks = [(name, options.seed, CHUNK) for name in names]
    sys.exit(_run(chunks, options.case, options.jobs, options.minutes))


def _chunks(names: Sequence[str], cases: int | None, seed: int, long: bool) -> Iterator[tuple[str, int, int]]:
    for name in names:
        total = cases if cases is not None else FAMILIES[name].long_cases if long else FAMILIES[name].fixed_cases
        for number in range((total + CHUNK - 1) // CHUNK):
            yield name, seed + number, min(CHUNK, total - number * CHUNK)


def _run(chunks: Sequence[tuple[str, int, int]], case: int | None, jobs: int, minutes: float | None) -> int:
    """Try the chunks, and print the failures as they come and the table in the end; return the exit status."""
    sums: dict[str, Sum] = {}
    waiting: multiprocessing.Queue[tuple[str, int, int] | None] = multiprocessing.Queue()
    finished: multiprocessing.Queue[Finished | None] = multiprocessing.Queue()
    deadline = time.time() + 60 * minutes if minutes is not None else None
    for chunk in (*chunks, *[None] * jobs):
        waiting.put(chunk)
    workers = [multiprocessing.Process(target=_work, args=(waiting, finished, case, deadline)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    started = printed = time.monotonic()
    last: dict[str, int] = {}
    total, ended = sum(count for _, _, count in chunks), 0
    while ended < jobs:
        result = finished.get()
        if result is None:
            ended += 1
            continue
        _add(sums.setdefault(result.family, Sum()), result)
        last[result.family] = max(last.get(result.family, 0), result.seed)
        done = sum(each.cases for each in sums.values())
        if time.monotonic() - printed > _PROGRESS_SECONDS:
            printed = time.monotonic()
            failures = sum(each.failures for each in sums.values())
            print(f"# {done} of {total} in {printed - started:.0f} s, {failures} failures", flush=True)
    for worker in workers:
        worker.join()
    _print_table(sums)
    for name, seed in last.items():
        print(f"# {name}: continue with --seed {seed + 1}")
    broken = any(worker.exitcode for worker in workers)
    return int(broken or any(each.failures for each in sums.values()))


def _work(waiting: object, finished: object, case: int | None, deadline: float | None) -> None:
    try:
        with Harness() as harness:
            while (chunk := waiting.get()) is not None:  # type: ignore[attr-defined]  # a queue
                name, seed, count = chunk
                if deadline is not None and time.time() > deadline:
                    continue
                family = FAMILIES[name]
                for place, each in enumerate(drawn(family, harness, seed, CHUNK)[:count]):
                    if case is not None and place != case:
                        continue
                    started = time.monotonic()
                    verdict = family.attempt(each, harness)
                    verdict.seconds = time.monotonic() - started
                    finished.put(Finished(name, seed, place, verdict, family.describe(each)))  # type: ignore[attr-defined]
    finally:
        finished.put(None)  # type: ignore[attr-defined]


def _add(total: Sum, result: Finished) -> None:
    verdict = result.verdict
    total.cases += 1
    total.seconds += verdict.seconds
    total.valid += verdict.valid
    total.skipped.update([verdict.skipped] if verdict.skipped else [])
    total.statuses.update(verdict.statuses)
    total.work.update(dict(verdict.work))
    if verdict.problems:
        total.failures += 1
        print(f"FAILED {result.family} --seed {result.seed} --case {result.place}: {result.description}")
        for problem in verdict.problems:
            print(f"    {problem}")
        sys.stdout.flush()


def _print_table(sums: dict[str, Sum]) -> None:
    rows: list[tuple[str, ...]] = [
        ("family", "cases", "valid", "invalid", "skipped", "ms/case", "failures", "by status")
    ]
    for name, each in sums.items():
        by_status = " ".join(f"{status}:{count}" for status, count in sorted(each.statuses.items()))
        per_case = f"{1000 * each.seconds / max(each.cases, 1):.0f}"
        numbers = (
            each.cases,
            each.valid,
            each.cases - each.valid,
            each.skipped.total(),
            per_case,
            each.failures,
            by_status,
        )
        rows.append((name, *map(str, numbers)))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, each in sums.items():
        for reason, count in each.skipped.items():
            print(f"# {name}: {count} skipped, since {reason}")
        if each.work:
            print(f"# {name}, seconds: {' '.join(f'{verb} {spent:.0f}' for verb, spent in each.work.most_common(9))}")
