"""How several targets came out, in words, as every format says it; the text is raw, each format makes it harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnshape.errors import ExitStatus
from attnshape.model import Trace
from attnshape.render.numbers import count
from attnshape.report import Finding, Report
from attnshape.several import Outcome

CANNOT = "can't be carried out"


def sizes(outcome: Outcome[Any]) -> str:
    """Return the sizes that a target lists for a run."""
    return " ".join(f"{letter}={size}" for letter, size in outcome.sizes.items())


def title(outcome: Outcome[Any]) -> str:
    """Return what stands above one of several results."""
    return ", ".join(part for part in (outcome.name, sizes(outcome)) if part)


def came_out(outcome: Outcome[Any]) -> str:
    """Return in a few words how it came out."""
    match outcome.made:
        case Trace() as trace:
            return _traced(trace)
        case Report() as report:
            return _checked(report)
    return f"{CANNOT}: {outcome.error.message if outcome.error else 'unknown'}"


def tally(outcomes: Sequence[Outcome[Any]]) -> str:
    """Return how many came out in each way."""
    statuses = [outcome.status for outcome in outcomes]
    kinds = (
        (ExitStatus.FINE, "fine"),
        (ExitStatus.FOUND, "with something found"),
        (ExitStatus.CANNOT, f"that {CANNOT}"),
    )
    parts = [f"{statuses.count(status)} {words}" for status, words in kinds if status in statuses]
    return f"{count(len(outcomes), 'result')}: {', '.join(parts)}"


def found_once(outcomes: Sequence[Outcome[Report]]) -> list[Finding]:
    """Return the findings of all reports; one that an earlier report has at the same place is left out."""
    seen: set[object] = set()
    found: list[Finding] = []
    for outcome in outcomes:
        own = outcome.made.findings if outcome.made is not None else ()
        found += [finding for finding in own if _place(finding) not in seen]
        seen |= {_place(finding) for finding in own}
    return found


def _place(finding: Finding) -> object:
    return (finding.code, finding.source or finding.message, finding.expression)


def _traced(trace: Trace) -> str:
    if trace.failure is not None:
        source = trace.failure.source
        return f"failed at step {len(trace.steps) + 1}" + (f", {source.file}:{source.line}" if source else "")
    broken = sum(not one.holds for one in trace.expectations)
    wrong = sum(
        bool(output.tensor.declared and not output.tensor.checked) for step in trace.steps for output in step.outputs
    )
    parts = [f"{count(broken, 'expectation')} not met"] * bool(broken)
    parts += [f"{count(wrong, 'annotation')} wrong"] * bool(wrong)
    return ", ".join(parts) or "fine"


def _checked(report: Report) -> str:
    if not report.findings:
        return "fine" + (f", {len(report.silenced)} silenced" if report.silenced else "")
    codes = ", ".join(dict.fromkeys(finding.code for finding in report.findings))
    return f"{count(len(report.findings), 'finding')}: {codes}"
