"""A report as GitHub's workflow commands: each finding becomes an annotation at its line."""

from __future__ import annotations

from attnshape.render.report_words import lists, shown, verdict
from attnshape.render.text import visible
from attnshape.report import Finding, Report


def github(report: Report) -> str:
    """Return a command for each finding, and below them what the log should say."""
    said = [f"{label}: {' · '.join(map(visible, items))}" for label, items in lists(report)]
    return "".join(f"{line}\n" for line in (*map(_command, report.findings), *said, verdict(report)))


def _command(finding: Finding) -> str:
    source = finding.source
    place = {"file": source.file, "line": str(source.line), "col": str(source.column)} if source else {}
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": finding.code}.items())
    hint = [f"hint: {finding.hint}"] if finding.hint else []
    message = "\n".join(visible(part) for part in (finding.message, *hint, shown(finding)))
    return f"::error {named}::{_data(message)}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(visible(value)).replace(":", "%3A").replace(",", "%2C")
