"""The formats that `--format` names for a report: one line of the registry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnshape.errors import AttnshapeError
from attnshape.render.formats import AUTO, Screen
from attnshape.render.report_github import github
from attnshape.render.report_markdown import markdown
from attnshape.render.report_sarif import sarif
from attnshape.render.report_text import text
from attnshape.render.text import visible
from attnshape.report import Report


@dataclass(frozen=True)
class ReportFormat:
    """A format: how it draws a report, with pictures of patterns or without, and whether it can draw these."""

    draw: Callable[[Report, Screen, bool], str]
    pictures: bool = False


REPORT_FORMATS: dict[str, ReportFormat] = {
    "text": ReportFormat(
        lambda report, screen, patterns: text(report, screen.width, screen.color, patterns), pictures=True
    ),
    "markdown": ReportFormat(lambda report, screen, patterns: markdown(report, patterns), pictures=True),
    "json": ReportFormat(lambda report, screen, patterns: report.to_json() + "\n"),
    "github": ReportFormat(lambda report, screen, patterns: github(report)),
    "sarif": ReportFormat(lambda report, screen, patterns: sarif(report)),
}


def find(name: str, patterns: bool) -> ReportFormat:
    """Return the format of that name.

    Raises AttnshapeError where there is none, and where it has no pictures and `patterns` asks for them.
    """
    if name not in REPORT_FORMATS:
        raise AttnshapeError(
            f"there is no format {visible(name)!r}", f"the formats are {', '.join((AUTO, *REPORT_FORMATS))}"
        )
    found = REPORT_FORMATS[name]
    if patterns and not found.pictures:
        others = ", ".join(key for key, one in REPORT_FORMATS.items() if one.pictures)
        raise AttnshapeError(
            f"--format {name} has no pictures: --pattern is for people",
            f"leave it out, or choose another format: {others}",
        )
    return found
