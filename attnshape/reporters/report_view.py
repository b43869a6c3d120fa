"""What every format for people shows of a report: findings with their source line, lists, verdict, patterns.

The texts are raw; each format escapes them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from msgspec import UNSET
from rich.cells import cell_len, set_cell_size

from attnshape.model.formatting import join_words, pluralize
from attnshape.model.report import Finding, Level, NotChecked, Pattern, Report
from attnshape.model.trace import Source
from attnshape.reporters.escaping import visible_characters
from attnshape.runtime.files import ReadLines

_SHOWN_SETS = 2
"""How many sets of sizes are shown in full."""
_DEPENDS, _INDEPENDENT = "■", "·"
_CUT = "…"
AS_ABOVE = "as above"
"""Stands for what the same output already has."""
_AFTER = 4
"""How many cells after the expression are worth shortening the text before it."""


@dataclass(frozen=True)
class ReportOptions:
    """What a format for people shows of a report; the others always have the whole."""

    patterns: bool = False
    """Whether to draw its attention patterns."""
    verbose: bool = False
    """Whether to list what was verified, and not only to count it."""
    quiet: bool = False
    """Whether to leave out everything but findings and what is undecided."""
    where: str = "-v lists them"
    """Where the reader finds what is only counted."""
    printed: frozenset[object] = frozenset()
    """The keys of findings and reasons that the same output already has: they aren't repeated in full."""


def location(source: Source) -> str:
    """Return a place in the source as editors and terminals read it.

    >>> location(Source("model.py", 31, 22, "forward"))
    'model.py:31:22'
    """
    return f"{source.file}:{source.line}:{source.column}"


def sizes(report: Report) -> str:
    """Return the sets of sizes at which the target ran; after the first two only how many more."""
    sets = [" ".join(f"{symbol}={size}" for symbol, size in one.items()) for one in report.small_sizes]
    more = len(sets) - _SHOWN_SETS
    return join_words([*sets[:_SHOWN_SETS], f"{more} more"] if more > 0 else sets or [""])


def counts_by_level(findings: Sequence[Finding]) -> list[str]:
    """Return how many findings there are of each level that occurs: `1 error`, `2 warnings`.

    >>> counts_by_level([])
    []
    """
    levels = [finding.level for finding in findings]
    return [pluralize(levels.count(level), level) for level in get_args(Level) if level in levels]


def evidence(finding: Finding) -> str:
    """Return what shows that a finding is real."""
    by = {"intervention": "intervention", "reproduced": "reproduced numbers", "measured": "measurement"}[finding.shown]
    return f"shown by {by}: {finding.evidence}" if finding.evidence else f"shown by {by}"


def details(finding: Finding) -> list[str]:
    """Return the lines below a finding's hint: where what is wrong is used, and what shows it."""
    used = [f"used at {location(finding.used)}"] if finding.used is not None else []
    return [*used, evidence(finding)]


def labelled_lists(report: Report, options: ReportOptions) -> list[tuple[str, list[str]]]:
    """Return the lists below the findings, each with its label and its items; empty lists are left out."""
    observed = [f"{fact.text} ({location(fact.source)})" if fact.source else fact.text for fact in report.facts]
    suppressed = [f"{one.code} {location(one.source)}" if one.source else one.code for one in report.suppressed]
    labelled = [
        ("undecided", undecided_texts(report, options)),
        ("claimed", claim_texts(report)),
        ("observed", observed),
        ("verified", list(report.verified) if options.verbose else verified_summary(report, options)),
        ("not checked", [not_checked_text(one, options.printed) for one in report.not_checked if not one.required]),
        ("suppressed", suppressed),
    ]
    return [(label, items) for label, items in labelled if items]


def undecided_texts(report: Report, options: ReportOptions) -> list[str]:
    """Return what makes the answer incomplete."""
    return [not_checked_text(one, options.printed) for one in report.undecided]


def claim_texts(report: Report) -> list[str]:
    """Return the claims, each with what became of it."""
    outcomes = report.claim_outcomes if report.claim_outcomes is not UNSET else {}
    return [f"{claim} ({outcomes[claim]})" if claim in outcomes else claim for claim in report.claims]


def verified_summary(report: Report, options: ReportOptions) -> list[str]:
    """Return how many properties were verified, as one item; a single one itself, and none where nothing was."""
    if len(report.verified) < 2:
        return list(report.verified)
    return [f"{pluralize(len(report.verified), 'property', 'properties')} ({options.where})"]


def verdict(report: Report) -> str:
    """Return the outcome on one line."""
    found = counts_by_level(report.findings) or ["no findings"]
    incomplete = [f"incomplete: {len(report.undecided)} undecided"] if report.undecided else []
    suppressed = [f"{len(report.suppressed)} suppressed"] if report.suppressed else []
    return " · ".join([*found, *incomplete, *suppressed, pluralize(report.runs, "extra run")])


def closing(report: Report, options: ReportOptions) -> str:
    """Return the last line: where the findings are explained, or what the absence of findings means.

    It is empty if the output already has it.
    """
    text = _closing(report)
    return "" if text in options.printed else text


def _closing(report: Report) -> str:
    if report.findings:
        return f"for an explanation, run: attnshape rule {report.findings[0].code}"
    if report.undecided:
        return "the answer is incomplete: no findings doesn't mean that what is undecided holds"
    if report.verified:
        return "no findings: this means no more than what was verified"
    return "no findings: this means nothing, since nothing could be verified"


def not_checked_text(one: NotChecked, printed: Collection[object] = ()) -> str:
    """Return what wasn't checked, and why; a reason that the output already has isn't repeated."""
    return f"{one.what} ({AS_ABOVE if one.why in printed else one.why})" if one.why else one.what


def finding_key(finding: Finding) -> object:
    """Return what tells a finding from others, whatever was done to show it."""
    return finding.code, finding.source or finding.message, finding.expression


def printed_by(report: Report) -> frozenset[object]:
    """Return the keys of what the text of a report has, for `ReportOptions.printed`."""
    return frozenset([*map(finding_key, report.findings), *(one.why for one in report.not_checked), _closing(report)])


@dataclass(frozen=True)
class Excerpt:
    """A line of source without its indentation: the expression of a finding, and the text before and after it."""

    before: str
    marked: str
    after: str

    def fit(self, width: int) -> tuple[str, str]:
        """Return the line and the carets below it, cut to a width around the start of the expression.

        >>> Excerpt("x = ", "q @ k", " / 2").fit(40)
        ('x = q @ k / 2', '    ^^^^^')
        >>> Excerpt("attention_scores = ", "q @ k", " / math.sqrt(D)").fit(20)
        ('…cores = q @ k / ma…', '         ^^^^^')
        """
        before = self.before
        if cell_len(before + self.marked) + len(_CUT) > width:
            before = _end(before, max(width // 4, width - cell_len(self.marked) - 2 * len(_CUT) - _AFTER))
        line = before + self.marked + self.after
        if cell_len(line) > width:
            line = set_cell_size(line, width - len(_CUT)) + _CUT
        start = cell_len(before)
        return line, (" " * start + "^" * min(cell_len(self.marked), width - start)).rstrip()


def excerpt(source: Source | None, expression: str, read_lines: ReadLines) -> Excerpt | None:
    """Return the source line of an expression, such as a finding's; None if it can't be read.

    An expression that spans lines is marked on the first. If the file no longer has the expression there, only the
    first character is marked.
    """
    lines = read_lines(source.file) if source is not None else ()
    if source is None or not 1 <= source.line <= len(lines):
        return None
    line = lines[source.line - 1].rstrip()
    indent = len(line) - len(line.lstrip())
    column = source.column - 1
    shown = visible_characters(line[indent:])
    if not indent <= column < len(line):
        return Excerpt("".join(shown), "", "") if shown else None
    first = (expression.splitlines() or [""])[0].rstrip()
    end = column + (len(first) if first and line.startswith(first, column) else 1)
    parts = shown[: column - indent], shown[column - indent : end - indent], shown[end - indent :]
    return Excerpt(*map("".join, parts))


def _end(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    start = next(place for place in range(len(text) + 1) if cell_len(text[place:]) <= width - len(_CUT))
    return _CUT + text[start:]


def pattern_title(pattern: Pattern) -> str:
    """Return the caption of a drawn pattern.

    >>> pattern_title(Pattern(output="output", input="x", queries="Lq", keys="L", rows=("#",)))
    'output (rows, Lq) depends on x (columns, L) at ■, not at ·'
    """
    rows, columns = f"{pattern.output} (rows, {pattern.queries})", f"{pattern.input} (columns, {pattern.keys})"
    return f"{rows} depends on {columns} at {_DEPENDS}, not at {_INDEPENDENT}"


def drawn_row(row: str) -> str:
    """Return a row of a pattern as text.

    >>> drawn_row("##.")
    '■ ■ ·'
    """
    return " ".join(_DEPENDS if char == "#" else _INDEPENDENT for char in row)


def pattern_rows(pattern: Pattern, width: int) -> list[str]:
    """Return a line for each output position, at most `width` cells wide.

    >>> pattern_rows(Pattern(output="output", input="x", queries="L", keys="L", rows=("#.", "##")), 40)
    ['■ ·', '■ ■']
    """
    lines = list(map(drawn_row, pattern.rows))
    return [line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…" for line in lines]
