"""The registry of output formats: one line a format."""

from __future__ import annotations

from typing import Any, Literal, overload

from attnshape.errors import AttnshapeError
from attnshape.reporters import github, html, json, markdown, mermaid, notebook, sarif, table, text
from attnshape.reporters.escaping import visible
from attnshape.reporters.reporter import (
    BatchReporter,
    DifferenceRenderer,
    ExplanationRenderer,
    FoldersRenderer,
    Kind,
    Reporter,
    ReportRenderer,
    TargetsRenderer,
    TraceRenderer,
)

AUTO = "auto"
"""A table or text on a terminal, Markdown elsewhere; the command line resolves it."""

REPORTERS: dict[str, Reporter] = {
    reporter.name: reporter
    for reporter in (
        table.REPORTER,
        text.REPORTER,
        markdown.REPORTER,
        json.REPORTER,
        mermaid.REPORTER,
        html.REPORTER,
        github.REPORTER,
        sarif.REPORTER,
        notebook.REPORTER,
    )
}

_KINDS: dict[Kind, str] = {
    "trace": "a trace",
    "report": "a report",
    "difference": "a comparison",
    "differences": "a comparison of folders",
    "traces": "several traces",
    "reports": "several reports",
    "targets": "a list of targets",
    "explanation": "an article",
}


def formats_for(kind: Kind) -> list[str]:
    """Return the names of the formats that render such a value, in the order of the registry.

    >>> formats_for("report")
    ['text', 'markdown', 'json', 'html', 'github', 'sarif']
    """
    return [name for name, reporter in REPORTERS.items() if getattr(reporter, kind) is not None]


@overload
def find_renderer(
    name: str, kind: Literal["trace"], *, selects: bool = False, picture: bool = False
) -> TraceRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["report"], *, draws_patterns: bool = False) -> ReportRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["difference"]) -> DifferenceRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["differences"]) -> FoldersRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["targets"]) -> TargetsRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["explanation"]) -> ExplanationRenderer: ...
@overload
def find_renderer(name: str, kind: Literal["traces", "reports"], *, selects: bool = False) -> BatchReporter: ...
def find_renderer(
    name: str, kind: Kind, *, selects: bool = False, picture: bool = False, draws_patterns: bool = False
) -> Any:
    """Return what renders a kind of value in a format, which has the name that `--format` takes; `auto` is resolved.

    Raises AttnshapeError if there is no such format, or if it can't show a part of a trace (`selects`), add a `picture`
    to its table, or draw attention patterns; the hint names the formats that can.
    """
    able = formats_for(kind)
    choices = ", ".join((AUTO, *able))
    reporter = REPORTERS.get(name)
    if reporter is None:
        raise AttnshapeError(f"there is no format {visible(name)!r}", f"the formats are {choices}")
    if name not in able:
        raise AttnshapeError(f"--format {name} can't show {_KINDS[kind]}", f"choose another format: {choices}")
    if selects and not _selects(reporter, kind):
        others = ", ".join(other for other in able if _selects(REPORTERS[other], kind))
        whole = "always has the whole trace: --columns, --match, --depth and --explain are for tables"
        raise AttnshapeError(f"--format {name} {whole}", f"leave them out, or choose another format: {others}")
    if picture and not reporter.has_pictures:
        others = ", ".join(other for other in able if REPORTERS[other].has_pictures)
        raise AttnshapeError(f"--format {name} has no room for --picture", f"choose another format: {others}")
    if draws_patterns and not reporter.draws_patterns:
        others = ", ".join(other for other in able if REPORTERS[other].draws_patterns)
        cannot = "can't draw patterns: --pattern is for people"
        raise AttnshapeError(f"--format {name} {cannot}", f"leave it out, or choose another format: {others}")
    return getattr(reporter, kind)


def _selects(reporter: Reporter, kind: Kind) -> bool:
    """Return whether a format can show a part of each trace."""
    return reporter.selects and (kind != "traces" or (reporter.traces is not None and reporter.traces.selects))
