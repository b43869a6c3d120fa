"""From a request to a report: find the target, find sizes that it takes, probe it at two of them."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence

import torch

from attnshape import __version__
from attnshape.attention.outcome import Measured, Mistake, NotExamined, Outcome, Proved
from attnshape.attention.pattern import patterns
from attnshape.attention.subject import Subject, shown
from attnshape.claims import Claims, parse_claims
from attnshape.ending import foreign_code, reraise_interruption
from attnshape.errors import AttnshapeError
from attnshape.exploring import explore
from attnshape.inference.small_runs import Doing
from attnshape.inference.variation import Variation
from attnshape.memory.standin import stand_ins, worth_foretelling
from attnshape.pipeline import Printed
from attnshape.probes import batch
from attnshape.probes.registry import PROBES
from attnshape.replaying.bench import Bench, Budget, OutOfTimeError
from attnshape.replaying.replay import Address
from attnshape.replaying.small_sizes import other_lengths, small_sizes
from attnshape.report import Fact, Finding, Pattern, Report, Unexamined
from attnshape.settings import Settings
from attnshape.sizes import Sizes, resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.isolation import isolated
from attnshape.tracing.output import to_standard_error
from attnshape.tracing.patience import Patience, TooLong
from attnshape.verifying import not_known, said, sizes_to_compare, verify_target
from attnshape.written.verify import Verified

_OVER = "the time limit was over"
_TOO_LARGE = 150 * 2**20
"""Bytes of one run's results, above which other sizes are tried first."""


def check_request(
    request: Request,
    settings: Settings,
    claims: Claims,
    time_limit: float,
    printed: Printed = to_standard_error,
    doing: Doing = lambda words: None,
) -> Report:
    """Return what a check finds; `time_limit` is in seconds, for all runs of it together.

    Raises AttnshapeError where the request can't be carried out, or the target fails at the sizes given.
    """
    doing("loading the target")
    with printed(), foreign_code(), isolated():
        target = find_target(request)
        sizes = resolve(target.used, target.given, request.own)
        placement = Placement(torch.device("cpu"), torch.float64, settings.seed, settings.train)
        patience, budget = Patience(), Budget(time_limit)
        claims = _with_case(target, sizes, placement, claims)
        _check_window(claims, sizes)
        # half of the time is for the probes
        variation = explore(target, sizes, placement, patience, time_limit / 2, doing)
        chosen = _sizes(variation, sizes)
        outcomes: list[list[tuple[Outcome, Subject]]] = []
        found: tuple[Pattern, ...] = ()
        used = []
        smallest: Subject | None = None
        for numbers in chosen:
            doing(f"probing at {', '.join(f'{k}={v}' for k, v in numbers.items())}")
            other = other_lengths(variation.plan, numbers) if variation is not None else None
            subject = _subject(target, numbers, placement, patience, budget, claims, other)
            if subject is None:
                continue
            if subject.bench.bytes > _TOO_LARGE:
                smallest = min(smallest or subject, subject, key=lambda one: one.bench.bytes)
                continue
            used.append(numbers)
            outcomes.append([(outcome, subject) for outcome in probed(subject, doing)])
            if len(outcomes) == 1:
                doing("looking which positions depend on which")
                found = _patterns(subject) if _batch_is_apart(outcomes[0]) else ()
            if len(outcomes) == 2 or not any(isinstance(one, Mistake) for one, _ in outcomes[0]):
                break
        if not outcomes and smallest is not None:
            used.append(smallest.bench.numbers)
            outcomes.append([(outcome, smallest) for outcome in probed(smallest, doing)])
        if not outcomes and not budget.is_spent:
            raise AttnshapeError(
                "the target runs at none of the small sizes that were tried, nor at its own, on the CPU",
                "attnshape trace, with the same arguments, shows where it fails",
            )
        doing("comparing what is written with what is measured")
        written = _written(target, variation, sizes, placement, patience, budget)
        return _report(target, settings, claims, sizes, used, budget, outcomes, found, written)


def _written(
    target: Target,
    variation: Variation | None,
    sizes: Sizes,
    placement: Placement,
    patience: Patience,
    budget: Budget,
) -> Verified:
    """Return whether what is written about shapes holds, or why this isn't known."""
    if budget.is_spent:
        return not_known(_OVER)
    return verify_target(target, sizes_to_compare(variation, sizes), placement, patience)


def _check_window(claims: Claims, sizes: Sizes) -> None:
    for letter in claims.window.symbols if claims.window is not None else ():
        if letter not in sizes.records:
            raise AttnshapeError(
                f"--claim window={claims.window.text if claims.window else ''}: the target has no size {letter}",
                "claim a number, window=4, or give the size that the target takes: --window 4",
            )


def _patterns(subject: Subject) -> tuple[Pattern, ...]:
    """Return which output positions depend on which input positions, as far as time allows."""
    try:
        return tuple(patterns(subject))
    except (OutOfTimeError, TooLong, RuntimeError):
        return ()


def _batch_is_apart(outcomes: Sequence[tuple[Outcome, Subject]]) -> bool:
    return any(isinstance(one, Proved) and one.text == batch.APART for one, _ in outcomes)


def _with_case(target: Target, sizes: Sizes, placement: Placement, claims: Claims) -> Claims:
    """Return the claims with those of a case; what is typed wins."""
    numbers = next(stand_ins(sizes)).numbers if worth_foretelling(sizes) else sizes.numbers
    with isolated():
        said = target.build(numbers, placement).claims
    return parse_claims([*said, *claims.texts]) if said else claims


def _sizes(variation: Variation | None, sizes: Sizes) -> list[Mapping[str, int]]:
    """Return the sizes to probe at, the best first: sets of small primes, then the user's own."""
    if variation is None:
        return [sizes.numbers]
    return [*small_sizes(variation.plan), *([] if worth_foretelling(sizes) else [sizes.numbers])]


def _subject(
    target: Target,
    numbers: Mapping[str, int],
    placement: Placement,
    patience: Patience,
    budget: Budget,
    claims: Claims,
    other: Mapping[str, int] | None,
) -> Subject | None:
    """Return the target at these sizes, None where it fails at them; `other` differ from them in lengths only."""
    try:
        bench = Bench(target, numbers, placement, patience, budget)
    except (TooLong, OutOfTimeError):
        return None
    if bench.base.error is not None or bench.raw.failure is not None:
        return None
    return Subject(bench, claims, other)


def probed(subject: Subject, doing: Doing = lambda words: None) -> Iterator[Outcome]:
    """Yield what every probe says; one that fails is not examined, and the others go on."""
    for probe in PROBES:
        doing(f"examining {probe.WHAT}")
        try:
            if not subject.steady:
                yield Measured("the result is random, and no seed makes it the same again")
                yield NotExamined("everything", "two runs of the same code with the same seed differ")
                return
            yield from list(probe.examine(subject))
        except OutOfTimeError:
            yield NotExamined(probe.WHAT, _OVER)
        except TooLong:
            yield NotExamined(probe.WHAT, "a run took too long")
        except BaseException as error:  # noqa: BLE001 - one probe's failure must not end the check
            reraise_interruption(error)
            yield NotExamined(probe.WHAT, f"the probe failed: {type(error).__name__}: {error}")


def _report(
    target: Target,
    settings: Settings,
    claims: Claims,
    sizes: Sizes,
    used: Sequence[Mapping[str, int]],
    budget: Budget,
    outcomes: list[list[tuple[Outcome, Subject]]],
    found: tuple[Pattern, ...],
    verified: Verified,
) -> Report:
    first = outcomes[0] if outcomes else []
    mistakes = [(outcome, subject) for outcome, subject in first if isinstance(outcome, Mistake)]
    findings = [finding(mistake, subject) for mistake, subject in _foremost(mistakes)]
    unsure: list[Unexamined] = []
    for again in outcomes[1:]:
        seen = [finding(outcome, subject) for outcome, subject in again if isinstance(outcome, Mistake)]
        lines = {(one.code, one.source.file, one.source.line) if one.source else (one.code, "", 0) for one in seen}
        kept = []
        for one in findings:
            key = (one.code, one.source.file, one.source.line) if one.source else (one.code, "", 0)
            if key in lines:
                kept.append(one)
            else:
                unsure.append(Unexamined(what=one.message, why="it is seen at one set of sizes, and not at another"))
        findings = kept
    return Report(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=target.label,
        command=settings.command,
        seed=settings.seed,
        dtype=str(first[0][1].bench.dtype).removeprefix("torch.") if first else "float64",
        sizes=dict(sizes.records),
        small_sizes=tuple({k: v for k, v in numbers.items() if k not in sizes.labels} for numbers in used),
        claims=claims.texts,
        runs=budget.runs + verified.runs,
        findings=(*dict.fromkeys(findings), *verified.findings),
        facts=tuple(
            dict.fromkeys(
                Fact(text=outcome.text, source=subject.source(outcome.at))
                for outcome, subject in first
                if isinstance(outcome, Measured)
            )
        ),
        proved=(
            *dict.fromkeys(outcome.text for outcome, _ in first if isinstance(outcome, Proved)),
            *said(verified),
        ),
        unexamined=tuple(
            dict.fromkeys(
                [
                    *(Unexamined(what=one.what, why=one.why) for one, _ in first if isinstance(one, NotExamined)),
                    *unsure,
                    *([] if first else [Unexamined(what="everything", why=_OVER)]),
                    *(verified.unexamined if first else ()),
                ]
            )
        ),
        patterns=found,
    )


def _foremost(mistakes: Sequence[tuple[Mistake, Subject]]) -> list[tuple[Mistake, Subject]]:
    """Return the mistakes that don't follow from another: one of axes makes all behind it wrong."""
    kept: list[tuple[Mistake, Subject]] = []
    for mistake, subject in sorted(mistakes, key=lambda one: one[0].at or Address(0)):
        axes = [one for one, _ in kept if one.code.startswith("AS1")]
        behind = any(one.at and mistake.at in subject.flow.behind(one.at) for one in axes)
        same = any(subject.source(one.at) == subject.source(mistake.at) for one in axes)
        if not behind and not same:
            kept.append((mistake, subject))
    return kept


def finding(mistake: Mistake, subject: Subject) -> Finding:
    """Return a mistake as it is reported: at its place in the source."""
    place = mistake.place or subject.place(mistake.at)
    return Finding(
        code=mistake.code,
        message=mistake.message,
        source=shown(place),
        expression=place.expression if place is not None else "",
        hint=mistake.hint,
        shown=mistake.shown,
        evidence=mistake.evidence,
    )
