"""Several results of one command, and their texts in the formats for people; each format escapes them itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model.formatting import pluralize
from attnshape.model.report import Finding, Report
from attnshape.model.trace import Trace
from attnshape.reporters.labels import source_label
from attnshape.reporters.report_view import counts_by_level, finding_key

ResultT = TypeVar("ResultT", Trace, Report)


@dataclass(frozen=True)
class BatchItem(Generic[ResultT]):
    """One target at one set of sizes, with its trace or report, or with the error that prevented it."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes that the target lists for this run; empty if it lists none."""
    result: ResultT | None = None
    error: AttnshapeError | None = None
    """Set if and only if there is no result."""
    is_unchanged: bool = False
    """Whether the result is one of an earlier command, since nothing that it depends on has changed."""

    @property
    def status(self) -> ExitStatus:
        """The exit status of a command with this item alone."""
        return self.result.exit_status if self.result is not None else ExitStatus.CANNOT


@dataclass(frozen=True)
class BatchResult(Generic[ResultT]):
    """All items of one command, in order."""

    version: str
    """The version of attnshape."""
    command: str
    shows_reasons: bool = field(default=False, kw_only=True)
    """Whether the reason why a target can't be carried out is above the summary, under the target's heading."""
    items: tuple[BatchItem[ResultT], ...]

    @property
    def status(self) -> ExitStatus:
        """The highest status of all items: 2 before 1 before 0."""
        return max((item.status for item in self.items), default=ExitStatus.FINE)


FAILED = "can't be carried out"
INCOMPLETE = "incomplete"
COLUMNS = ("target", "sizes", "outcome")
"""The columns of the summary."""


def sizes_text(item: BatchItem[Any]) -> str:
    """Return the sizes that a target lists for a run."""
    return " ".join(f"{symbol}={size}" for symbol, size in item.sizes.items())


def title(item: BatchItem[Any]) -> str:
    """Return the heading of a result."""
    return ", ".join(part for part in (item.name, sizes_text(item)) if part)


def outcome(item: BatchItem[Any], with_reason: bool = True) -> str:
    """Return the outcome in a few words; of a target that can't be carried out, with the reason."""
    match item.result:
        case Trace() as trace:
            return _trace_outcome(trace)
        case Report() as report:
            return _report_outcome(report)
    return f"{FAILED}: {item.error.message if item.error else 'unknown'}" if with_reason else FAILED


_KINDS = ("fine", "with problems", INCOMPLETE, f"that {FAILED}")


def _kind(item: BatchItem[Any]) -> str:
    if item.result is None:
        return f"that {FAILED}"
    return {ExitStatus.FINE: "fine", ExitStatus.FOUND: "with problems"}.get(item.status, INCOMPLETE)


def totals(items: Sequence[BatchItem[Any]]) -> str:
    """Return how many results had each outcome."""
    kinds = [_kind(item) for item in items]
    parts = [f"{kinds.count(kind)} {kind}" for kind in _KINDS if kind in kinds]
    unchanged = sum(item.is_unchanged for item in items)
    kept = f" · {unchanged} unchanged, from the cache" if unchanged else ""
    return f"{pluralize(len(items), 'result')}: {', '.join(parts)}{kept}" if items else "no results"


def distinct_findings(items: Sequence[BatchItem[Report]]) -> list[Finding]:
    """Return the findings of all reports, without those that an earlier report has at the same place."""
    places: set[object] = set()
    distinct: list[Finding] = []
    for item in items:
        own = item.result.findings if item.result is not None else ()
        keyed = [(finding_key(finding), finding) for finding in own]
        distinct += [finding for place, finding in keyed if place not in places]
        places |= {place for place, _ in keyed}
    return distinct


def _report_outcome(report: Report) -> str:
    counts = counts_by_level(report.findings)
    if report.found_something:
        return f"{', '.join(counts)}: {', '.join(dict.fromkeys(finding.code for finding in report.findings))}"
    if report.undecided:
        return f"{INCOMPLETE}: {', '.join(dict.fromkeys(one.what for one in report.undecided))}"
    suppressed = [f"{len(report.suppressed)} suppressed"] if report.suppressed else []
    return ", ".join(["fine", *counts, *suppressed])


def _trace_outcome(trace: Trace) -> str:
    if trace.failure is not None:
        place = source_label(trace.failure.source)
        return f"failed at step {len(trace.steps) + 1}{place and f', {place}'}"
    broken = sum(not expected.holds for expected in trace.expectations)
    wrong = sum(
        bool(output.tensor.declared and not output.tensor.checked) for step in trace.steps for output in step.outputs
    )
    parts = [f"{pluralize(broken, 'expectation')} not met"] * bool(broken)
    parts += [f"{pluralize(wrong, 'annotation')} wrong"] * bool(wrong)
    return ", ".join(parts) or "fine"
