"""A report as SARIF 2.1.0, which code scanning reads."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import msgspec

from attnshape.model import Source
from attnshape.render.report_words import shown, unexamined
from attnshape.render.several_words import came_out, found_once, title
from attnshape.render.text import visible
from attnshape.report import Finding, Report
from attnshape.rules.pages import Page, family, pages
from attnshape.several import Outcomes

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LINK = re.compile(r"\[([^\[\]]*)\](?=\()")


def sarif(report: Report) -> str:
    """Return the report as a log of one run; what is silenced is left out."""
    notes = [_note("note", f"not examined: {unexamined(one)}") for one in report.unexamined]
    return _log(report.attnshape, report.command, notes, report.findings, _properties(report))


def sarif_together(outcomes: Outcomes[Report]) -> str:
    """Return several reports as a log of one run, with a finding that several have once.

    What can't be carried out is a notification of an error, and the run counts as one that failed.
    """
    notes, targets = [], []
    for outcome in outcomes.each:
        name = title(outcome)
        if outcome.made is None:
            notes.append(_note("error", f"{name}: {came_out(outcome)}"))
        else:
            notes += [_note("note", f"{name}: not examined: {unexamined(one)}") for one in outcome.made.unexamined]
            targets.append({"name": visible(name), **_properties(outcome.made)})
    return _log(outcomes.version, outcomes.command, notes, found_once(outcomes.each), {"targets": targets})


def _log(
    version: str,
    command: str,
    notes: Sequence[dict[str, Any]],
    findings: Sequence[Finding],
    properties: dict[str, Any],
) -> str:
    rules = pages()
    places = {page.code: place for place, page in enumerate(rules)}
    seen: Counter[str] = Counter()
    run = {
        "tool": {"driver": {"name": "attnshape", "version": version, "rules": list(map(_rule, rules))}},
        "invocations": [
            {
                "commandLine": visible(command),
                "executionSuccessful": all(note["level"] != "error" for note in notes),
                "toolExecutionNotifications": notes,
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, places, seen) for finding in findings],
        "properties": properties,
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=1).decode() + "\n"


def _note(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": _message(text)}}


def _properties(report: Report) -> dict[str, Any]:
    return {
        "target": visible(report.target),
        "claims": list(map(visible, report.claims)),
        "measured": [visible(fact.text) for fact in report.facts],
        "proved": list(map(visible, report.proved)),
        "smallSizes": [{visible(letter): size for letter, size in one.items()} for one in report.small_sizes],
        "extraRuns": report.runs,
    }


def _rule(page: Page) -> dict[str, Any]:
    return {
        "id": page.code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": " ".join(page.sections["What it costs"].split())},
        "help": {"text": page.markdown, "markdown": page.markdown},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["attention", family(page.code)]},
    }


def _result(finding: Finding, places: dict[str, int], seen: Counter[str]) -> dict[str, Any]:
    hint = [f"hint: {finding.hint}"] if finding.hint else []
    result: dict[str, Any] = {
        "ruleId": visible(finding.code),
        "level": "error",
        "message": {"text": "\n".join(map(_message, (finding.message, *hint, shown(finding))))},
        "partialFingerprints": {"attnshapeFinding/v1": _fingerprint(finding, seen)},
    }
    if finding.code in places:
        result["ruleIndex"] = places[finding.code]
    if finding.source is not None:
        result["locations"] = [_location(finding.source, finding.expression)]
    return result


def _location(source: Source, expression: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(source.file)}}
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


def _uri(file: str) -> str:
    path = PurePath(file)
    encoded = quote(path.as_posix(), errors="backslashreplace")
    return f"file://{encoded}" if path.is_absolute() else encoded


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """Return what stays the same while lines above the finding come and go."""
    source = finding.source
    parts = (finding.code, source.file if source else "", source.function if source else "", finding.expression)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
    seen[digest] += 1
    return f"{digest}:{seen[digest]}"


def _message(text: str) -> str:
    """Return the text so that nothing in it is taken for a link."""
    return _LINK.sub(r"\\[\1\\]", visible(text))
