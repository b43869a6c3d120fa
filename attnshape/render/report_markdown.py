"""A report as Markdown, to paste into a review."""

from __future__ import annotations

import re

from attnshape.reading import ReadLines, source_lines
from attnshape.render.excerpt import excerpt
from attnshape.render.pattern import picture, title
from attnshape.render.report_words import closing, lists, place, shown, sizes, verdict
from attnshape.render.text import code, prose, prose_with_code
from attnshape.report import Finding, Pattern, Report

_WIDTH = 100
"""How wide code may be before it is cut: what is wider scrolls where it is pasted."""


def markdown(report: Report, patterns: bool = False, read_lines: ReadLines = source_lines) -> str:
    """Return the report as Markdown."""
    parts = [code(report.command)] if report.command else []
    ran = [f"**{prose(report.target)}**"] if report.target.strip() else []
    parts.append(" · ".join([*ran, *(prose(part) for part in (report.dtype, sizes(report)) if part)]))
    parts += [_finding(finding, read_lines) for finding in report.findings]
    parts += [_pattern(pattern) for pattern in report.patterns if patterns]
    parts.append(f"**{prose(verdict(report))}**")
    items = [f"- {label}: {' · '.join(map(prose_with_code, items))}" for label, items in lists(report)]
    parts += ["\n".join([*items, f"- {prose(closing(report))}"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _finding(finding: Finding, read_lines: ReadLines) -> str:
    where = [code(place(finding.source))] if finding.source else []
    parts = [" ".join([f"**{prose(finding.code)}**", *where, prose_with_code(finding.message)])]
    found = excerpt(finding, read_lines)
    if found is not None:
        parts.append(_fenced([line for line in found.fitted(_WIDTH) if line], "python"))
    hints = [f"- hint: {prose_with_code(finding.hint)}"] if finding.hint else []
    parts.append("\n".join([*hints, f"- {prose_with_code(shown(finding))}"]))
    return "\n\n".join(parts)


def _pattern(pattern: Pattern) -> str:
    rows = picture(pattern, _WIDTH)
    return "\n\n".join([prose(title(pattern)), *([_fenced(rows, "text")] if rows else [])])


def _fenced(lines: list[str], language: str) -> str:
    """Return lines that are visible text as a block of code."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
