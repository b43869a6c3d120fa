"""From a request to a report: run every rule at small sizes, and confirm what they find at other sizes."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from attnshape import __version__
from attnshape.checks.attention.perturbation import changed_indices, other_numbers
from attnshape.checks.attention.subject import Subject, displayed_source
from attnshape.checks.interventions.experiment import Budget, Experiment, Intervention, OutOfTimeError
from attnshape.checks.interventions.replay import OutputRef, Replace
from attnshape.checks.interventions.small_sizes import other_lengths, small_sizes, symbol_or_number
from attnshape.checks.rules import batch
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.registry import RULES
from attnshape.comments.verify import CommentVerification
from attnshape.dims.sizes import Sizes, are_large, proxy_sizes
from attnshape.errors import AttnshapeError
from attnshape.inference.small_runs import ProgressCallback, Samples
from attnshape.model.report import Fact, Finding, NotChecked, Pattern, Report
from attnshape.options.claims import Claims, parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.comments import comments_not_checked, sizes_to_observe, verify_target
from attnshape.pipelines.target_runs import sample_target
from attnshape.pipelines.trace import Printed
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.isolation import isolated
from attnshape.runtime.signals import foreign_code, reraise_interruption
from attnshape.runtime.time_limit import TimeLimit, TooLong
from attnshape.targets.find import find_target
from attnshape.targets.target import Target, require_device

_SECONDS = 2.0
"""The time limit for all patterns of a subject, in seconds."""


def patterns(subject: Subject) -> Iterator[Pattern]:
    """Yield a pattern for each input that has tokens and a batch, until the time limit.

    Batch elements must stay apart: several tokens are changed in one run, each in another batch element.
    """
    deadline = time.monotonic() + _SECONDS
    batch = subject.numbers.get(subject.batch or "", 0)
    for name, value in subject.inputs.items():
        symbol = next((one for one in subject.lengths if subject.numbers[one] in value.shape), None)
        if symbol is None or batch < 2 or batch not in value.shape:
            continue
        rows, tokens = list(value.shape).index(batch), list(value.shape).index(subject.numbers[symbol])
        if rows == tokens:
            continue
        found: dict[str, list[set[int]]] = {}
        sizes: dict[str, int] = {}
        for start in range(0, subject.numbers[symbol], batch):
            if time.monotonic() > deadline:
                return
            diff = subject.perturb(Intervention(inputs={name: _diagonal(rows, tokens, start)}))
            if not diff.comparable:
                return
            for path, mask in diff.returned():
                axis = _tokens(subject, mask.shape)
                if axis is not None and batch in mask.shape:
                    elements = mask.movedim(list(mask.shape).index(batch), 0)
                    left = axis + (axis < list(mask.shape).index(batch))
                    found.setdefault(path, []).extend(changed_indices(one, left - 1) for one in elements)
                    sizes[path] = mask.shape[axis]
        for path, size in sizes.items():
            columns = found[path][: subject.numbers[symbol]]
            yield Pattern(
                output=path,
                input=name,
                queries=symbol_or_number(size, subject.numbers),
                keys=symbol,
                rows=tuple("".join("#" if row in column else "." for column in columns) for row in range(size)),
            )


def _diagonal(rows: int, tokens: int, start: int) -> Replace:
    """Return the replacement that changes another token in each batch element, the first of them `start`."""

    def change(value: Tensor) -> Tensor:
        other = other_numbers(value)
        places = torch.arange(value.shape[rows]) + start
        at = torch.zeros(value.shape[rows], value.shape[tokens], dtype=torch.bool)
        inside = places < value.shape[tokens]
        at[torch.arange(value.shape[rows])[inside], places[inside]] = True
        at = at if rows < tokens else at.T
        shape = [size if axis in (rows, tokens) else 1 for axis, size in enumerate(value.shape)]
        return torch.where(at.reshape(shape), other, value)

    return change


def _tokens(subject: Subject, shape: tuple[int, ...]) -> int | None:
    """Return the axis of a result that holds tokens, None if there is none."""
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    return next((axis for axis, size in enumerate(shape) if size in lengths and size > 1), None)


_OUT_OF_TIME = "the time limit was reached"
_TOO_LARGE = 150 * 2**20
"""Bytes of one run's results, above which other sizes are tried first."""
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class _LoadedTarget:
    """A target, with everything that says how to run and to judge it."""

    target: Target
    sizes: Sizes
    run: RunOptions
    claims: Claims
    limit: TimeLimit
    budget: Budget


@dataclass(frozen=True)
class _RulePass:
    """What every rule reports at one set of sizes."""

    subject: Subject
    outcomes: list[Outcome]

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the outcomes of one kind."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, kind)]


def check_request(
    spec: TargetSpec,
    options: RunOptions,
    claims: Claims,
    time_limit: float,
    printed: Printed = to_standard_error,
    progress: ProgressCallback = lambda words: None,
) -> Report:
    """Check a target against every rule, and its shape comments against the shapes of its tensors.

    Args:
        spec: The target and its sizes.
        options: How to run it.
        claims: What the user says the code is meant to do.
        time_limit: Seconds for all runs together.
        printed: Opens the context in which the target's own output is caught.
        progress: Called with what happens next, for a progress display.

    Raises:
        AttnshapeError: The request can't be carried out, or the target fails at the given sizes.
    """
    require_device(options.device)
    progress("loading the target")
    with printed(), foreign_code(), isolated():
        loaded = _load(spec, options, claims, time_limit)
        # the rules get the other half of the time
        variation = sample_target(loaded.target, loaded.sizes, loaded.run, loaded.limit, time_limit / 2, progress)
        passes = _run_rules(loaded, variation, progress)
        if not passes and not loaded.budget.is_spent:
            raise AttnshapeError(
                "the target runs neither at its own sizes nor at any of the small sizes that were tried, on the CPU",
                "attnshape trace, with the same arguments, shows where it fails",
            )
        pattern: tuple[Pattern, ...] = ()
        if passes and _can_show_patterns(passes[0]):
            progress("finding out which positions depend on which")
            pattern = _patterns(passes[0].subject)
        progress("comparing the shape comments with the observed shapes")
        comments = _verify_shape_comments(loaded, variation)
        return _report(loaded, options, passes, pattern, comments)


def _load(spec: TargetSpec, options: RunOptions, claims: Claims, time_limit: float) -> _LoadedTarget:
    """Find the target, its sizes, and what it and the user claim; the user's claims win."""
    target = find_target(spec)
    sizes = target.sizes
    run = RunOptions(dtype="float64", seed=options.seed, train=options.train)
    numbers = next(proxy_sizes(sizes)).numbers if are_large(sizes) else sizes.numbers
    budget = Budget(time_limit)
    with isolated():
        of_case = target.build(numbers, run).claims
    claims = parse_claims([*of_case, *claims.texts]) if of_case else claims
    if claims.window is not None:
        for symbol in claims.window.symbols:
            if symbol not in sizes.records:
                raise AttnshapeError(
                    f"--claim window={claims.window.text}: the target has no size {symbol}",
                    "claim a number, window=4, or give the size that the target takes: --window 4",
                )
    return _LoadedTarget(target, sizes, run, claims, TimeLimit(), budget)


def _run_rules(loaded: _LoadedTarget, variation: Samples | None, progress: ProgressCallback) -> list[_RulePass]:
    """Run every rule at the best set of sizes, and again at a second one if there is a violation to confirm."""
    passes: list[_RulePass] = []
    smallest: Subject | None = None
    for numbers in _candidate_sizes(loaded.sizes, variation):
        progress(f"checking at {', '.join(f'{symbol}={size}' for symbol, size in numbers.items())}")
        subject = _subject(loaded, numbers, variation)
        if subject is None:
            continue
        if subject.experiment.bytes > _TOO_LARGE:
            smallest = min(smallest or subject, subject, key=lambda one: one.experiment.bytes)
            continue
        passes.append(_RulePass(subject, list(_outcomes(subject, progress))))
        if len(passes) == 2 or not passes[0].of(Violation):
            return passes
    if not passes and smallest is not None:
        passes.append(_RulePass(smallest, list(_outcomes(smallest, progress))))
    return passes


def _candidate_sizes(sizes: Sizes, variation: Samples | None) -> list[Mapping[str, int]]:
    """Return the sizes to check at, the best first: sets of small primes, then the user's own."""
    if variation is None:
        return [sizes.numbers]
    return [*small_sizes(variation.plan), *([] if are_large(sizes) else [sizes.numbers])]


def _subject(loaded: _LoadedTarget, numbers: Mapping[str, int], variation: Samples | None) -> Subject | None:
    """Return the target at these sizes, None if it fails at them or takes too long."""
    other = other_lengths(variation.plan, numbers) if variation is not None else None
    try:
        bench = Experiment(loaded.target, numbers, loaded.run, loaded.limit, loaded.budget)
    except (TooLong, OutOfTimeError):
        return None
    if bench.base.error is not None or bench.raw.failure is not None:
        return None
    return Subject(bench, loaded.claims, other)


def _outcomes(subject: Subject, progress: ProgressCallback) -> Iterator[Outcome]:
    """Yield what every rule reports. A rule that fails leaves its topic undecided, and the others go on."""
    for rule in RULES:
        progress(f"checking {rule.TOPIC}")
        try:
            if not subject.is_deterministic:
                yield Observation("the result is random even with a fixed seed")
                yield Undecided("everything", "two runs of the same code with the same seed differ")
                return
            yield from list(rule.check(subject))
        except OutOfTimeError:
            yield Undecided(rule.TOPIC, _OUT_OF_TIME)
        except TooLong:
            yield Undecided(rule.TOPIC, "a run took too long")
        except BaseException as error:  # noqa: BLE001 - one rule's failure must not end the check
            reraise_interruption(error)
            yield Undecided(rule.TOPIC, f"the check failed: {type(error).__name__}: {error}")


def _can_show_patterns(first: _RulePass) -> bool:
    """Return whether each position is tried in a batch element of its own, and at a reasonable cost."""
    return Verification(batch.INDEPENDENT) in first.outcomes and first.subject.experiment.bytes <= _TOO_LARGE


def _patterns(subject: Subject) -> tuple[Pattern, ...]:
    """Return which output positions depend on which input positions, as far as time allows."""
    try:
        return tuple(patterns(subject))
    except (OutOfTimeError, TooLong, RuntimeError):
        return ()


def _verify_shape_comments(loaded: _LoadedTarget, variation: Samples | None) -> CommentVerification:
    if loaded.budget.is_spent:
        return comments_not_checked(_OUT_OF_TIME)
    sizes = sizes_to_observe(variation, loaded.sizes)
    return verify_target(loaded.target, sizes, loaded.run, loaded.limit)


def _confirm(passes: Sequence[_RulePass]) -> tuple[list[Finding], list[NotChecked]]:
    """Return the root causes that every pass finds at the same line, and those that only the first one finds."""
    findings = [_finding(one, passes[0].subject) for one in _root_causes(passes[0])] if passes else []
    unconfirmed: list[NotChecked] = []
    for again in passes[1:]:
        seen = {_code_and_line(_finding(violation, again.subject)) for violation in again.of(Violation)}
        unconfirmed += [
            NotChecked(what=one.message, why="found at one set of sizes, and not at another")
            for one in findings
            if _code_and_line(one) not in seen
        ]
        findings = [one for one in findings if _code_and_line(one) in seen]
    return findings, unconfirmed


def _root_causes(first: _RulePass) -> list[Violation]:
    """Return the violations that don't follow from another: mixed-up axes make everything downstream wrong."""
    subject = first.subject
    kept: list[Violation] = []
    for violation in sorted(first.of(Violation), key=lambda one: one.at or OutputRef(0)):
        of_axes = [one for one in kept if one.code.startswith("AS1")]
        downstream = any(one.at and violation.at in subject.graph.behind(one.at) for one in of_axes)
        same_line = any(subject.source(one.at) == subject.source(violation.at) for one in of_axes)
        if not downstream and not same_line:
            kept.append(violation)
    return kept


def _finding(violation: Violation, subject: Subject) -> Finding:
    place = violation.place or subject.place(violation.at)
    return Finding(
        code=violation.code,
        message=violation.message,
        source=displayed_source(place),
        expression=place.expression if place is not None else "",
        hint=violation.hint,
        shown=violation.shown,
        evidence=violation.evidence,
    )


def _code_and_line(finding: Finding) -> tuple[str, str, int]:
    source = finding.source
    return (finding.code, source.file, source.line) if source is not None else (finding.code, "", 0)


def _report(
    loaded: _LoadedTarget,
    options: RunOptions,
    passes: Sequence[_RulePass],
    pattern: tuple[Pattern, ...],
    comments: CommentVerification,
) -> Report:
    findings, unconfirmed = _confirm(passes)
    facts: list[Fact] = []
    verified: list[str] = []
    not_checked = [NotChecked(what="everything", why=_OUT_OF_TIME)]
    if passes:
        first = passes[0]
        facts = [Fact(text=one.text, source=first.subject.source(one.at)) for one in first.of(Observation)]
        verified = [one.text for one in first.of(Verification)]
        not_checked = [NotChecked(what=one.topic, why=one.reason) for one in first.of(Undecided)]
        not_checked += [*unconfirmed, *comments.not_checked]
    labels = loaded.sizes.labels
    return Report(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=loaded.target.label,
        command=options.command,
        seed=options.seed,
        dtype=str(passes[0].subject.experiment.dtype).removeprefix("torch.") if passes else "float64",
        sizes=dict(loaded.sizes.records),
        small_sizes=tuple(
            {symbol: size for symbol, size in one.subject.experiment.numbers.items() if symbol not in labels}
            for one in passes
        ),
        claims=loaded.claims.texts,
        runs=loaded.budget.runs + comments.runs,
        findings=(*dict.fromkeys(findings), *comments.findings),
        facts=tuple(dict.fromkeys(facts)),
        verified=(*dict.fromkeys(verified), *comments.summary),
        not_checked=tuple(dict.fromkeys(not_checked)),
        patterns=pattern,
    )
