"""Several results as one JSON document: schemas `attnshape/traces/1` and `attnshape/reports/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from attnshape.model import Trace
from attnshape.report import Report
from attnshape.several import Outcome, Outcomes


def traces(outcomes: Outcomes[Trace]) -> str:
    """Return the traces, each with its target's name and sizes, or the error in its place."""
    return _document("trace", outcomes)


def reports(outcomes: Outcomes[Report]) -> str:
    """Return the reports, each with its target's name and sizes, or the error in its place."""
    return _document("report", outcomes)


def _document(kind: str, outcomes: Outcomes[Any]) -> str:
    content = {
        "schema": f"attnshape/{kind}s/1",
        "attnshape": outcomes.version,
        "command": outcomes.command,
        "results": [_result(kind, outcome) for outcome in outcomes.each],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def _result(kind: str, outcome: Outcome[Any]) -> dict[str, Any]:
    named = {"name": outcome.name, "sizes": outcome.sizes}
    if outcome.error is not None:
        return {**named, "error": {"message": outcome.error.message, "hint": outcome.error.hint}}
    return {**named, kind: outcome.made}
