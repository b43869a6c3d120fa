"""Checks a target: runs every rule at small sizes, and confirms the findings at other sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, get_args

import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor

from attnshape.checks.attention.definitions import use
from attnshape.checks.attention.dependence import patterns
from attnshape.checks.attention.key_patterns import key_patterns
from attnshape.checks.attention.layers import format_layers, layer_of, layers, same_code
from attnshape.checks.attention.subject import Subject, displayed_source
from attnshape.checks.interventions.experiment import Budget, OutOfTimeError
from attnshape.checks.interventions.module_state import ModuleState
from attnshape.checks.interventions.small_sizes import MAX_RESULT_BYTES, even_head_width
from attnshape.checks.rules import batch
from attnshape.checks.rules.guard import CHECK_FAILED, OUT_OF_TIME, RUN_TOO_LONG, guarded
from attnshape.checks.rules.layered import with_layers
from attnshape.checks.rules.protocol import Observation, Outcome, Undecided, Verification, Violation
from attnshape.checks.rules.registry import RULES
from attnshape.checks.rules.root_causes import AXES, root_causes
from attnshape.dims.sizes import Sizes
from attnshape.errors import AttnshapeError, Option, python_syntax
from attnshape.inference.plan import Plan
from attnshape.inference.small_runs import ProgressCallback
from attnshape.model.formatting import join_words
from attnshape.model.report import ClaimOutcome, Fact, Finding, Level, NotChecked, Pattern, Report
from attnshape.options.claims import Claims, parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.comments import (
    comments_not_checked,
    comments_report,
    cut_off_by_time,
    sizes_to_observe,
    verify_target,
)
from attnshape.pipelines.small_subjects import Subjects
from attnshape.pipelines.target_runs import affordable_sizes, load_target, sample_target
from attnshape.pipelines.trace import OutputRedirect
from attnshape.runtime.capture import to_standard_error
from attnshape.runtime.isolation import isolated, one_thread, unattended
from attnshape.runtime.signals import foreign_code
from attnshape.runtime.time_limit import TimeLimit, TooLong
from attnshape.targets.target import Target, require_device
from attnshape.tracing.tensor_access import shape_of

_MOST_PASSES = 3
"""At how many sets of sizes the rules run at most."""
_FOR_RULES = 0.8
"""The part of the time limit for the rules. A run that is under way when it ends, and the report, need the rest."""
_NOT_CONFIRMED = NotChecked(what="the findings at other sizes", why="no complete check at a second set of sizes")
_CUT_OFF = (OUT_OF_TIME, RUN_TOO_LONG, _NOT_CONFIRMED.why)
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class _RulePass:
    """The outcomes of all rules at one set of sizes."""

    subject: Subject
    outcomes: list[Outcome]

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the outcomes of one kind."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, kind)]

    @property
    def errors(self) -> list[Violation]:
        """The errors that are no consequence of others."""
        causes = root_causes(self.of(Violation), self.subject)
        return [violation for violation in causes if violation.level == "error"]

    @property
    def open_claims(self) -> set[str]:
        """The names of the claims that no rule could judge, or that one left undecided."""
        named = {name for outcome in self.outcomes for name in outcome.claims}
        return {name for gap in self.of(Undecided) for name in gap.claims} | ({*self.subject.claims.names} - named)

    @cached_property
    def places(self) -> frozenset[tuple[str, str, int]]:
        """The code and the line of each violation."""
        return frozenset(_code_and_line(_finding(violation, self.subject)) for violation in self.of(Violation))


def check_request(
    spec: TargetSpec,
    options: RunOptions,
    claims: Claims,
    time_limit: float,
    redirect_output: OutputRedirect = to_standard_error,
    progress: ProgressCallback = lambda activity: None,
) -> Report:
    """Check a target against every rule, and its shape comments against the shapes of its tensors.

    `time_limit` is in seconds, for all runs together; `redirect_output` returns a context for the target's output.

    Raises AttnshapeError if the request can't be carried out, or the target fails at the given sizes.
    """
    require_device(options.device)
    progress("loading the target")
    with redirect_output(), foreign_code(), isolated(), one_thread():
        target = load_target(spec, progress)
        modules = ModuleState(target.module)
        sizes = target.sizes
        run = RunOptions(dtype="float64", seed=options.seed, train=options.train)
        budget, limit = Budget(_FOR_RULES * time_limit), TimeLimit()
        claims = _merge_case_claims(claims, target, run)
        # the other half of the time is for the rules
        known = even_head_width(sizes) if claims.rope is not None else ()
        variation = sample_target(target, sizes, run, limit, time_limit / 2, progress, known)
        subjects = Subjects(target, run, claims, options.dtype, limit, budget, modules, variation, known)
        passes = _run_rules(subjects.candidates, subjects.at, progress)
        if not passes and not subjects.timed_out and not budget.is_spent:
            raise AttnshapeError(
                "the target runs neither at its own sizes nor at any of the small sizes that were tried, on the CPU",
                "attnshape trace, with the same arguments, shows where it fails",
            )
        visible = key_patterns(passes[0].subject) if passes else ()
        visibility: tuple[Pattern, ...] = ()
        independent = bool(passes) and batch.verifies_independence(passes[0].outcomes)
        # with independent batch elements, one run can change a different position in each
        if independent and passes[0].subject.experiment.bytes <= MAX_RESULT_BYTES:
            progress("finding out which positions depend on which")
            with contextlib.suppress(OutOfTimeError, TooLong, RuntimeError):
                visibility = tuple(patterns(passes[0].subject))
        progress("comparing the shape comments with the observed shapes")
        if budget.is_spent:
            comments = comments_not_checked(OUT_OF_TIME)
        else:
            comments = verify_target(target, sizes_to_observe(variation, sizes), run, limit)
        dtype = str(passes[0].subject.experiment.dtype).removeprefix("torch.") if passes else run.dtype
        checked_at = [
            {
                symbol: size
                for symbol, size in rule_pass.subject.experiment.numbers.items()
                if symbol not in sizes.labels
            }
            for rule_pass in passes
        ]
        modules.restore()
        report = comments_report(target, options, dtype, checked_at, comments)
        runs = budget.runs + comments.runs
        report = _with_rules(report, passes, claims)
        if passes and variation is not None:
            numbers = passes[0].subject.experiment.numbers
            left_out = tuple(_left_out(variation.plan, numbers))
            stands_for = tuple(_stands_for(variation.plan, numbers))
            facts, gaps = (*_without_effect(sizes), *stands_for, *report.facts), (*report.not_checked, *left_out)
            report = replace(report, facts=facts, not_checked=gaps)
        report = replace(report, not_checked=(*report.not_checked, *cut_off_by_time(target, variation, limit)))
        outcomes = _claim_outcomes(report, passes, claims)
        report = replace(report, claims=claims.texts, claim_outcomes=outcomes or UNSET, runs=runs)
        return replace(report, patterns=visibility, visible=visible)


def is_whole(report: Report) -> bool:
    """Return whether neither a limit on time nor a failure of the check itself has a part in a report."""
    return not any(gap.why in _CUT_OFF or gap.why.startswith(CHECK_FAILED) for gap in report.not_checked)


def _left_out(plan: Plan, numbers: Mapping[str, int]) -> Iterator[NotChecked]:
    """Yield the layers, or other iterations, that the user's run has and the checked one doesn't."""
    for name in plan.of_counts:
        symbol = plan.owner(name)
        if symbol not in plan.fewest and numbers[symbol] < plan.sizes.numbers[symbol]:
            why = f"runs with {symbol}={plan.sizes.numbers[symbol]} take too much work"
            yield NotChecked(what=f"what comes beyond {symbol}={numbers[symbol]}", why=why)


def _stands_for(plan: Plan, numbers: Mapping[str, int]) -> Iterator[Fact]:
    """Yield what was checked instead of all layers, where it is known that these are of the same kinds."""
    fewer = [symbol for symbol in plan.fewest if numbers[symbol] < plan.sizes.numbers[symbol]]
    if fewer:
        checked, own = (", ".join(f"{symbol}={of[symbol]}" for symbol in fewer) for of in (numbers, plan.sizes.numbers))
        yield Fact(text=f"the layers of {checked} stand for those of {own}, whose kinds they all are")


def _without_effect(sizes: Sizes) -> Iterator[Fact]:
    """Yield that sizes were given which change nothing."""
    if sizes.labels:
        yield Fact(text=f"nothing in the target depends on {join_words(sorted(sizes.labels))}")


def _merge_case_claims(claims: Claims, target: Target, run: RunOptions) -> Claims:
    """Return the claims of the user and of the target's case; the user's take precedence.

    Raises AttnshapeError if one is invalid; the user's claims are checked before the target is built.
    """
    sizes = target.sizes
    claims.require_values(sizes.numbers)
    numbers = next(affordable_sizes(target, sizes)).numbers
    with isolated(), unattended():
        built = target.build(numbers, run)
        names, tensors = built.parameter_names, dict(built.named_inputs())
    boolean = [name for name, tensor in tensors.items() if tensor.dtype == torch.bool]
    masks = boolean or [name for name in tensors if "mask" in name.lower()]
    claims = claims.about(list(dict.fromkeys([*tensors, *names])), masks)
    _require_masks(claims, tensors)
    of_case = built.claims
    shapes = {name: shape_of(tensor) for name, tensor in tensors.items()}
    claims.require_shapes(shapes, numbers)
    try:
        claims_of_case = parse_claims(of_case)
        claims_of_case.require_values(sizes.numbers)
        claims_of_case.require_shapes(shapes, numbers)
    except AttnshapeError as error:
        raise error.written_in(_case_syntax, f"the claims that {target.label} returns: ") from None
    return parse_claims([*of_case, *claims.texts]) if of_case else claims


def _require_masks(claims: Claims, tensors: Mapping[str, Tensor]) -> None:
    """Raise AttnshapeError if a claimed mask holds other whole numbers than 0 and 1, or no argument is left beside."""
    for name, meaning in claims.arguments.items():
        value, claim = tensors.get(name), Option("claims", f"{name}={meaning}")
        if value is None:
            continue
        is_whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if meaning in ("keep", "drop") and is_whole and value.numel() and int(value.max()) > 1:
            problem = f": {name} holds whole numbers up to {int(value.max())}, and a mask True and False, or 1 and 0"
            raise AttnshapeError((claim, problem), f"claim a mask, or describe it as one: {name}: bool B L")
        if len(tensors) == 1:
            problem = f": {name} is the only tensor that is given, so it is what is attended over"
            raise AttnshapeError((claim, problem), "claim nothing about it")


def _case_syntax(option: Option) -> str:
    """Return an option as a case gives it: of its claims only the text."""
    if option.field != "claims":
        return python_syntax(option)
    return str(option.value) if option.value is not None else "the claim"


def _run_rules(
    candidates: Sequence[Mapping[str, int]],
    subject_at: Callable[[Mapping[str, int]], Subject | None],
    progress: ProgressCallback,
) -> list[_RulePass]:
    """Run every rule at the first suitable sizes, and at other sizes too if there is an error to confirm.

    Where the second set of sizes doesn't have an error of the first one, a third one decides. Where the first set
    leaves claims open, as where two axes happen to have one size, the second one counts if it decides more of them.
    """
    passes: list[_RulePass] = []
    undecided: _RulePass | None = None
    smallest: Subject | None = None
    for numbers in candidates:
        progress(f"checking at {', '.join(f'{symbol}={size}' for symbol, size in numbers.items())}")
        subject = subject_at(numbers)
        if subject is None:
            continue
        if subject.experiment.bytes > MAX_RESULT_BYTES:
            smallest = min(smallest or subject, subject, key=lambda candidate: candidate.experiment.bytes)
            continue
        passes.append(_RulePass(subject, list(_outcomes(subject, progress))))
        if undecided is not None and len(passes) == 1 and len(passes[0].open_claims) >= len(undecided.open_claims):
            return [undecided]
        if undecided is None and passes[0].open_claims and not passes[0].errors:
            undecided = passes.pop()
            continue
        if len(passes) == _MOST_PASSES or _are_confirmed(passes):
            return passes
    if not passes and undecided is not None:
        passes.append(undecided)
    if not passes and smallest is not None:
        passes.append(_RulePass(smallest, list(_outcomes(smallest, progress))))
    return passes


def _are_confirmed(passes: Sequence[_RulePass]) -> bool:
    """Return whether other sets of sizes have every error of the first one."""
    first = passes[0]
    return {_code_and_line(_finding(violation, first.subject)) for violation in first.errors} <= _confirmed(passes)


def _confirmed(passes: Sequence[_RulePass]) -> set[tuple[str, str, int]]:
    """Return the codes and lines of the violations at other sets of sizes than the first."""
    return set[tuple[str, str, int]]().union(*(other.places for other in passes[1:]))


def _outcomes(subject: Subject, progress: ProgressCallback) -> Iterator[Outcome]:
    """Yield the outcomes of every rule."""
    for rule in RULES:
        progress(f"checking {rule.TOPIC}")
        yield from guarded(subject, rule.TOPIC, rule.check)


def _confirm(passes: Sequence[_RulePass]) -> tuple[list[Finding], list[NotChecked]]:
    """Return the root causes that every pass finds at the same line, and what remains open of the others.

    What a pass that was cut off doesn't find may be what it didn't come to, and stays a finding.
    """
    subject, every = passes[0].subject, passes[0].of(Violation)
    found = list(_findings(root_causes(every, subject), subject))
    if not any(violation.level == "error" for violation, _ in found):
        return [finding for _, finding in found], []
    if len(passes) == 1 and any(gap.incomplete for gap in passes[0].of(Undecided)):
        # where time is short, the sizes may be the user's, of which one may happen to be a multiple of another
        certain: list[Finding] = []
        doubtful: list[NotChecked] = []
        for violation, finding in found:
            if violation.level == "error" and violation.code.startswith(AXES):
                why = "found at one set of sizes, with no time for another"
                doubtful.append(NotChecked(what=finding.message, why=why, required=True))
            else:
                certain.append(finding)
        return certain, [*doubtful, _NOT_CONFIRMED]
    if len(passes) == 1 or any(gap.incomplete for other in passes[1:] for gap in other.of(Undecided)):
        return [finding for _, finding in found], [_NOT_CONFIRMED]
    confirmed = _confirmed(passes)
    unconfirmed = [
        NotChecked(what=finding.message, why="found at one set of sizes, and not at another", required=True)
        for _, finding in found
        if _code_and_line(finding) not in confirmed
    ]
    # what isn't confirmed hides no other finding as its consequence
    every = [violation for violation in every if _code_and_line(_finding(violation, subject)) in confirmed]
    return [finding for _, finding in _findings(root_causes(every, subject), subject)], unconfirmed


def _findings(violations: Sequence[Violation], subject: Subject) -> Iterator[tuple[Violation, Finding]]:
    """Yield each finding once, with its first violation; in a model with several layers, with those that have it.

    Of a line that is used in several places, the first use is named.
    """
    merged: dict[Finding, tuple[Finding, list[Violation]]] = {}
    for violation in violations:
        finding = _finding(violation, subject)
        merged.setdefault(replace(finding, used=None), (finding, []))[1].append(violation)
    several = len(set(layers(subject).values())) > 1
    for finding, alike in merged.values():
        paths = [path for violation in alike if (path := layer_of(subject, violation.at))]
        where = f", in {format_layers(paths)}" if several and paths else ""
        yield alike[0], replace(finding, evidence=finding.evidence + where)


def _finding(violation: Violation, subject: Subject) -> Finding:
    location = violation.place or subject.place(violation.at)
    used = None
    if violation.made is not None:
        location, used = violation.made, location
    elif location is not None and violation.at is not None:
        used = use(subject, violation.at, location)
    return Finding(
        code=violation.code,
        level=violation.level,
        message=violation.message,
        source=displayed_source(location),
        expression=location.expression if location is not None else "",
        hint=violation.hint,
        shown=violation.shown,
        evidence=violation.evidence,
        used=displayed_source(used),
    )


def _code_and_line(finding: Finding) -> tuple[str, str, int]:
    source = finding.source
    return (finding.code, source.file, source.line) if source is not None else (finding.code, "", 0)


def _shared_code(subject: Subject) -> Iterator[Fact]:
    """Yield for each line that makes the attention of several layers, which layers these are."""
    for source, paths in same_code(subject):
        yield Fact(text=f"the same code attends in {format_layers(paths)}", source=source)


def _facts(rule_pass: _RulePass) -> Iterator[Fact]:
    """Yield the facts; those that hold in some of the model's attentions only with the layers in which they hold."""
    for seen, text in with_layers(rule_pass.subject, rule_pass.of(Observation)):
        yield Fact(text=text, source=rule_pass.subject.source(seen.at))


def _claim_outcomes(report: Report, passes: Sequence[_RulePass], claims: Claims) -> dict[str, ClaimOutcome]:
    """Return the outcome of each claim; one that both holds somewhere and is violated elsewhere is contradicted."""
    outcomes = passes[0].outcomes if passes else []
    codes = {finding.code for finding in (*report.findings, *report.suppressed)}
    named: dict[str, ClaimOutcome] = {}
    for name, text in zip(claims.names, claims.texts, strict=True):
        own = [outcome for outcome in outcomes if name in outcome.claims]
        if any(isinstance(one, Violation) and one.code in codes for one in own):
            named[text] = "contradicted"
        else:
            is_open = not own or any(isinstance(one, (Violation, Undecided)) for one in own)
            named[text] = "undecided" if is_open else "verified"
    return named


def _not_checked(gap: Undecided, claims: Claims) -> NotChecked:
    """Return what is reported of an undecided property: the claims that it leaves open, if there are any."""
    texts = [text for name, text in zip(claims.names, claims.texts, strict=True) if name in gap.claims]
    what = f"the claim{'s' if len(texts) > 1 else ''} {join_words(texts)}" if texts else gap.topic
    return NotChecked(what=what, why=gap.reason, required=bool(texts) or gap.incomplete)


def _with_rules(report: Report, passes: Sequence[_RulePass], claims: Claims) -> Report:
    """Add the outcomes of the rules to the report on shape comments."""
    if not passes:
        return replace(report, not_checked=(NotChecked(what="everything", why=OUT_OF_TIME, required=True),))
    findings, unconfirmed = _confirm(passes)
    first = passes[0]
    facts = [*_shared_code(first.subject), *_facts(first)]
    undecided = [_not_checked(gap, claims) for gap in first.of(Undecided)]
    named = {name for outcome in first.outcomes for name in outcome.claims}
    undecided += [
        NotChecked(what=f"the claim {text}", why="the code has nothing that it could be compared with", required=True)
        for name, text in zip(claims.names, claims.texts, strict=True)
        if name not in named
    ]
    found = [*findings, *report.findings]
    return replace(
        report,
        findings=tuple(sorted(found, key=lambda finding: get_args(Level).index(finding.level))),
        facts=tuple(dict.fromkeys(facts)),
        verified=(*dict.fromkeys(verified.text for verified in first.of(Verification)), *report.verified),
        not_checked=tuple(dict.fromkeys([*undecided, *unconfirmed, *report.not_checked])),
    )
