"""A report in words, as every format for people says it; the text is raw, each format makes it harmless."""

from __future__ import annotations

from attnshape.model import Source
from attnshape.render.numbers import count, joined
from attnshape.report import Finding, Report, Unexamined


def place(source: Source) -> str:
    """Return where something stands, as editors and terminals read it.

    >>> place(Source("model.py", 31, 22, "forward"))
    'model.py:31:22'
    """
    return f"{source.file}:{source.line}:{source.column}"


_SHOWN_SETS = 2


def sizes(report: Report) -> str:
    """Return the sizes at which the target was examined; of more sets than two their number."""
    sets = [" ".join(f"{letter}={size}" for letter, size in one.items()) for one in report.small_sizes]
    more = len(sets) - _SHOWN_SETS
    return joined([*sets[:_SHOWN_SETS], f"{more} more"] if more > 0 else sets or [""])


def shown(finding: Finding) -> str:
    """Return how a finding is shown."""
    way = {"intervention": "shown by intervention", "reproduced": "shown by reproduced numbers"}.get(
        finding.shown, "shown by measurement"
    )
    return f"{way}: {finding.evidence}" if finding.evidence else way


def lists(report: Report) -> list[tuple[str, list[str]]]:
    """Return what stands below the findings: a label and its items each, none of them empty."""
    measured = [f"{fact.text} ({place(fact.source)})" if fact.source else fact.text for fact in report.facts]
    silenced = [f"{one.code} {place(one.source)}" if one.source else one.code for one in report.silenced]
    labelled = [
        ("claimed", list(report.claims)),
        ("measured", measured),
        ("proved", list(report.proved)),
        ("not examined", list(map(unexamined, report.unexamined))),
        ("silenced", silenced),
    ]
    return [(label, items) for label, items in labelled if items]


def verdict(report: Report) -> str:
    """Return the outcome in one line."""
    found = count(len(report.findings), "finding") if report.findings else "no findings"
    silenced = [f"{len(report.silenced)} silenced"] if report.silenced else []
    return " · ".join([found, *silenced, count(report.runs, "extra run")])


def closing(report: Report) -> str:
    """Return where findings are explained, or what a report without any must not be taken for."""
    if report.findings:
        return f"attnshape rule {report.findings[0].code} says more"
    if report.proved:
        return "that nothing was found proves no more than what is listed as proved"
    return "that nothing was found proves nothing: there was nothing that could be proved"


def unexamined(one: Unexamined) -> str:
    """Return what could not be examined, and why."""
    return f"{one.what} ({one.why})" if one.why else one.what
