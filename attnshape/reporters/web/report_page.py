"""The page of a report: its findings at their lines, each with the page of its rule, then what else is known."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET

from attnshape.checks.rules.pages import codes, page
from attnshape.model.report import Finding, Pattern, Report
from attnshape.reporters import report_view
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.trace_view import Header
from attnshape.reporters.web.document import document
from attnshape.reporters.web.markup import SymbolColors, code, escaped, items, page_header, prose
from attnshape.reporters.web.patterns import key_patterns, pattern_figure, pattern_list
from attnshape.reporters.web.source_lines import source_figure
from attnshape.runtime.files import ReadLines, source_lines

_WHOLE = ReportOptions(patterns=True, verbose=True)


def report_document(report: Report, read_lines: ReadLines = source_lines) -> str:
    """Return the page of a report."""
    details = tuple(filter(None, (report.dtype, report_view.sizes(report))))
    colors = SymbolColors({symbol for sizes in report.small_sizes for symbol in sizes})
    header = page_header("check", Header(report.command, report.target, details, ()), colors)
    body = f"{header}\n<main>\n{report_section(report, read_lines)}\n</main>"
    return document(report.target, body, report.attnshape)


def report_section(report: Report, read_lines: ReadLines = source_lines) -> str:
    """Return what the page shows below its header."""
    tone = "bad" if report.found_something or report.undecided else "good"
    lines = [f"found: {code(report.found)}"] if report.found is not UNSET else []
    if not report.findings:  # each finding has the page of its rule
        lines.append(escaped(report_view.closing(report, _WHOLE)))
    verdict = f'<div class="verdict {tone}"><strong>{escaped(report_view.verdict(report))}</strong></div>'
    parts = [f'<section class="panel">\n<h2>Result</h2>\n{verdict}{items(lines)}\n</section>']
    parts += [_finding(finding, read_lines) for finding in report.findings]
    lists = "".join(_list(label, texts) for label, texts in report_view.labelled_lists(report, _WHOLE))
    if lists:
        parts.append(
            f'<section class="panel">\n<h2>What else is known</h2>\n<div class="columns">{lists}</div>\n</section>'
        )
    drawn = [
        ("Which keys each query sees", key_patterns(report.visible)),
        ("Which positions depend on which", pattern_list(map(_pattern, report.patterns))),
    ]
    panels = "\n".join(f'<section class="panel">\n<h2>{title}</h2>\n{one}\n</section>' for title, one in drawn if one)
    return "\n".join([*parts, f'<div class="pattern-panels">\n{panels}\n</div>'] if panels else parts)


def _finding(finding: Finding, read_lines: ReadLines) -> str:
    title = f'{escaped(finding.level)} <span class="code">{escaped(finding.code)}</span> {prose(finding.message)}'
    parts = [f"<h3>{title}</h3>"]
    if finding.source is not None:
        parts.append(source_figure(finding.source, finding.expression, read_lines))
    hint = [f"<strong>hint:</strong> {prose(finding.hint)}"] if finding.hint else []
    parts.append(items([*hint, *map(prose, report_view.details(finding))]))
    if finding.code in codes():
        parts.append(_rule(finding.code))
    return f'<article class="panel finding {finding.level}">\n{"".join(parts)}\n</article>'


def _rule(name: str) -> str:
    """Return the page of a rule, folded."""
    rule = page(name)
    sections = "".join(f"<h4>{escaped(title)}</h4>{''.join(_blocks(body))}" for title, body in rule.sections.items())
    return f'<details class="rule"><summary>{escaped(rule.code)}: {prose(rule.title)}</summary>{sections}</details>'


def _blocks(markdown: str) -> Iterator[str]:
    """Yield the paragraphs and the code of a rule's page, whose Markdown has nothing else."""
    for part in re.split(r"^(```.*?^```)$", markdown, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            lines = part.splitlines()[1:-1]
            yield f'<pre tabindex="0">{chr(10).join(map(escaped, lines))}</pre>'
            continue
        for paragraph in part.split("\n\n"):
            if paragraph.strip():
                yield f"<p>{prose(' '.join(paragraph.split()))}</p>"


def _list(label: str, texts: list[str]) -> str:
    shown = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f'<section><h3>{label}</h3><ul class="lines">{shown}</ul></section>'


def _pattern(pattern: Pattern) -> str:
    """Return a pattern as a picture: a row for each output position, a column for each input position."""
    title = f"{pattern.output} (rows, {pattern.queries}) depends on {pattern.input} (columns, {pattern.keys})"
    return pattern_figure(title, pattern.rows)
