"""SARIF 2.1.0, the format of code scanning."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from attnshape.checks.rules.pages import Page, family, pages, usual_level
from attnshape.model.report import Finding, Level, Report
from attnshape.model.trace import Source, json_text
from attnshape.reporters.batch_view import BatchResult, distinct_findings, outcome, title
from attnshape.reporters.escaping import visible
from attnshape.reporters.report_view import evidence, not_checked_text
from attnshape.reporters.reporter import BatchReporter, Reporter

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Level, str] = {"error": "error", "warning": "warning", "notice": "note"}
_LINK = re.compile(r"\[([^\[\]]*)\](?=\()")


def report_sarif(report: Report) -> str:
    """Return a report as a log of one run, without suppressed findings."""
    notes = [_note("note", f"not checked: {not_checked_text(one)}") for one in report.not_checked]
    return _log(report.attnshape, report.command, notes, report.findings, _properties(report))


def batch_sarif(batch: BatchResult[Report]) -> str:
    """Return several reports as a log of one run, each finding once.

    A target that failed is an error notification, and the run doesn't count as successful.
    """
    notes, targets = [], []
    for item in batch.items:
        name = title(item)
        if item.result is None:
            notes.append(_note("error", f"{name}: {outcome(item)}"))
        else:
            not_checked = map(not_checked_text, item.result.not_checked)
            notes += [_note("note", f"{name}: not checked: {text}") for text in not_checked]
            targets.append({"name": visible(name), **_properties(item.result)})
    return _log(batch.version, batch.command, notes, distinct_findings(batch.items), {"targets": targets})


def _log(
    version: str, command: str, notes: Sequence[dict[str, Any]], findings: Sequence[Finding], properties: dict[str, Any]
) -> str:
    rules = pages()
    places = {page.code: place for place, page in enumerate(rules)}
    digests: Counter[str] = Counter()
    invocation = {
        "commandLine": visible(command),
        "executionSuccessful": all(note["level"] != "error" for note in notes),
        "toolExecutionNotifications": notes,
    }
    run = {
        "tool": {"driver": {"name": "attnshape", "version": visible(version), "rules": list(map(_rule, rules))}},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, places, digests) for finding in findings],
        "properties": properties,
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _note(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": _message(text)}}


def _properties(report: Report) -> dict[str, Any]:
    return {
        "target": visible(report.target),
        "claims": list(map(visible, report.claims)),
        "observed": [visible(fact.text) for fact in report.facts],
        "verified": list(map(visible, report.verified)),
        "smallSizes": [{visible(symbol): size for symbol, size in one.items()} for one in report.small_sizes],
        "extraRuns": report.runs,
    }


def _rule(page: Page) -> dict[str, Any]:
    return {
        "id": page.code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": " ".join(page.sections["What it costs"].split())},
        "help": {"text": page.markdown, "markdown": page.markdown},
        "defaultConfiguration": {"level": _LEVELS[usual_level(page.code)]},
        "properties": {"tags": ["attention", family(page.code)]},
    }


def _result(finding: Finding, places: dict[str, int], digests: Counter[str]) -> dict[str, Any]:
    hint = [f"hint: {finding.hint}"] if finding.hint else []
    result: dict[str, Any] = {
        "ruleId": visible(finding.code),
        "level": _LEVELS[finding.level],
        "message": {"text": "\n".join(map(_message, (finding.message, *hint, evidence(finding))))},
        "partialFingerprints": {"attnshapeFinding/v1": _fingerprint(finding, digests)},
    }
    if finding.code in places:
        result["ruleIndex"] = places[finding.code]
    if finding.source is not None:
        result["locations"] = [_location(finding.source, finding.expression)]
    if finding.used is not None:
        result["relatedLocations"] = [{**_location(finding.used, ""), "message": {"text": "used here"}}]
    return result


def _location(source: Source, expression: str) -> dict[str, Any]:
    path = PurePath(source.file)
    uri = quote(path.as_posix(), errors="backslashreplace")
    physical: dict[str, Any] = {"artifactLocation": {"uri": f"file://{uri}" if path.is_absolute() else uri}}
    if source.line >= 1 and source.column >= 1:
        physical["region"] = _region(source, expression)
    location: dict[str, Any] = {"physicalLocation": physical}
    if source.function:
        location["logicalLocations"] = [{"name": visible(source.function), "kind": "function"}]
    return location


def _region(source: Source, expression: str) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": source.line, "startColumn": source.column}
    if expression:
        *above, last = expression.split("\n")
        region["endLine"] = source.line + len(above)
        region["endColumn"] = len(last) + (1 if above else source.column)
        region["snippet"] = {"text": "\n".join(map(visible, (*above, last)))}
    return region


def _fingerprint(finding: Finding, digests: Counter[str]) -> str:
    """Return a fingerprint that stays the same when lines above the finding are added or removed."""
    source = finding.source
    parts = (finding.code, source.file if source else "", source.function if source else "", finding.expression)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
    digests[digest] += 1
    return f"{digest}:{digests[digest]}"


def _message(text: str) -> str:
    """Return the text with brackets escaped, so that nothing in it is taken for a link."""
    return _LINK.sub(r"\\[\1\\]", visible(text))


REPORTER = Reporter(
    "sarif",
    report=lambda report, screen, options: report_sarif(report),
    reports=BatchReporter(lambda batch, screen: batch_sarif(batch), shows_errors=False),
)
