"""A report as text for the terminal."""

from __future__ import annotations

from attnshape.reading import ReadLines, source_lines
from attnshape.render.excerpt import excerpt
from attnshape.render.fold import fold_command, fold_words
from attnshape.render.lines import Line, drawn
from attnshape.render.pattern import picture, title
from attnshape.render.report_words import closing, lists, place, shown, sizes, verdict
from attnshape.render.text import visible
from attnshape.report import Finding, Pattern, Report

_NARROWEST = 24
_INDENT = 2
_BAR = "| "
_STYLES = {"proved": "green", "not examined": "yellow"}


def text(
    report: Report, width: int, color: bool = False, patterns: bool = False, read_lines: ReadLines = source_lines
) -> str:
    """Return the report as text of at most `width` cells a line; colour only decorates."""
    width = max(width, _NARROWEST)
    sections = [_header(report, width)]
    sections += [_finding(finding, width, read_lines) for finding in report.findings]
    sections += [_pattern(pattern, width) for pattern in report.patterns if patterns]
    sections.append(_summary(report, width))
    first, *others = sections
    return drawn([*first, *(line for section in others for line in (Line(""), *section))], color)


def _header(report: Report, width: int) -> list[Line]:
    lines = [Line(one, "dim") for one in fold_command(visible(report.command), width)] if report.command else []
    ran = " · ".join(visible(part) for part in (report.target, report.dtype, sizes(report)) if part)
    return lines + _folded(ran, width, "bold")


def _finding(finding: Finding, width: int, read_lines: ReadLines) -> list[Line]:
    where = f"{place(finding.source)}: " if finding.source else ""
    lines = _folded(visible(f"{where}{finding.code} {finding.message}"), width, "bold red")
    found = excerpt(finding, read_lines)
    if found is not None:
        code, carets = found.fitted(width - _INDENT - len(_BAR))
        lines.append(_indented(_BAR + code))
        lines += [_indented(_BAR + carets, "red")] if carets else []
    if finding.hint:
        lines += _below(f"hint: {visible(finding.hint)}", width, "green")
    return lines + _below(visible(shown(finding)), width, "dim")


def _pattern(pattern: Pattern, width: int) -> list[Line]:
    rows = picture(pattern, width - _INDENT)
    return [*_folded(visible(title(pattern)), width, "bold"), *map(_indented, rows)]


def _summary(report: Report, width: int) -> list[Line]:
    lines: list[Line] = []
    for label, items in lists(report):
        lines += _folded(f"{label}: {' · '.join(map(visible, items))}", width, _STYLES.get(label, ""))
    lines += _folded(verdict(report), width, "bold red" if report.findings else "bold")
    return lines + _folded(visible(closing(report)), width, "dim")


def _folded(words: str, width: int, style: str) -> list[Line]:
    return [Line(one, style) for one in fold_words(words, width, hang=_INDENT)]


def _below(words: str, width: int, style: str) -> list[Line]:
    return [_indented(one, style) for one in fold_words(words, width - _INDENT)]


def _indented(words: str, style: str = "") -> Line:
    return Line(" " * _INDENT + words, style)
