"""A report as GitHub's workflow commands: each finding becomes an annotation at its line."""

from __future__ import annotations

from collections.abc import Sequence

from attnshape.render.report_words import lists, shown, verdict
from attnshape.render.several_words import came_out, found_once, tally, title
from attnshape.render.text import visible
from attnshape.report import Finding, Report
from attnshape.several import Outcome

_FILE = "pyproject.toml"
"""To which what is wrong with a target that is named there is pinned."""


def github(report: Report) -> str:
    """Return a command for each finding, and below them what the log should say."""
    said = [f"{label}: {' · '.join(map(visible, items))}" for label, items in lists(report)]
    return "".join(f"{line}\n" for line in (*map(_command, report.findings), *said, verdict(report)))


def github_together(outcomes: Sequence[Outcome[Report]]) -> str:
    """Return the commands of several reports, a finding that several have once, and below them how each came out."""
    commands = [_command(one) for one in found_once(outcomes)]
    commands += [_refusal(one) for one in outcomes if one.error is not None]
    # after a word of ours no name is taken for a command
    said = [f"target {title(one)}: {came_out(one)}" for one in outcomes]
    return "".join(f"{line}\n" for line in (*commands, *map(_said, (*said, tally(outcomes)))))


def _command(finding: Finding) -> str:
    source = finding.source
    place = {"file": source.file, "line": str(source.line), "col": str(source.column)} if source else {}
    named = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": finding.code}.items())
    hint = [f"hint: {finding.hint}"] if finding.hint else []
    message = "\n".join(visible(part) for part in (finding.message, *hint, shown(finding)))
    return f"::error {named}::{_data(message)}"


def _refusal(outcome: Outcome[Report]) -> str:
    words = [came_out(outcome), *([f"hint: {outcome.error.hint}"] if outcome.error and outcome.error.hint else [])]
    named = f"file={_property(_FILE)},title={_property(title(outcome))}"
    return f"::error {named}::{_data(chr(10).join(map(visible, words)))}"


def _said(text: str) -> str:
    """Return a line of the log in which the runner finds no command of its older kind, which may stand anywhere."""
    return visible(text).replace("##[", "# #[")


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(visible(value)).replace(":", "%3A").replace(",", "%2C")
