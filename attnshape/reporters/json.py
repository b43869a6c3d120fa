"""JSON of a trace, a report, a difference, an explanation, or a batch of results."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from attnshape.model.trace import Trace, json_text
from attnshape.reporters.batch_view import BatchResult
from attnshape.reporters.reporter import BatchReporter, Reporter, Screen


def _batch(kind: Literal["trace", "report"], batch: BatchResult[Any], screen: Screen) -> str:
    """Return the results with the name and sizes of each target; a target that failed has its error instead."""
    results: list[dict[str, Any]] = [{"name": item.name, "sizes": item.sizes} for item in batch.items]
    for result, item in zip(results, batch.items, strict=True):
        if item.error is not None:
            result["error"] = {"message": item.error.message, "hint": item.error.hint}
        else:
            result[kind] = item.result
    head = {"schema": f"attnshape/{kind}s/1", "attnshape": batch.version, "command": batch.command}
    return json_text({**head, "results": results}) + "\n"


REPORTER = Reporter(
    "json",
    trace=lambda trace, options, screen: Trace.to_json(trace) + "\n",
    report=lambda report, screen, options: report.to_json() + "\n",
    difference=lambda difference, command, screen: difference.to_json() + "\n",
    differences=lambda differences, command, screen: differences.to_json() + "\n",
    traces=BatchReporter(partial(_batch, "trace"), shows_errors=False),
    targets=lambda found, screen: found.to_json() + "\n",
    explanation=lambda explanation, screen: explanation.to_json() + "\n",
    reports=BatchReporter(partial(_batch, "report"), shows_errors=False),
)
