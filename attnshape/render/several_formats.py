"""How each format puts several results together: one line of a registry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from attnshape.model import Trace
from attnshape.render import several_json, several_markdown, several_text
from attnshape.render.formats import Screen
from attnshape.render.report_github import github_together
from attnshape.render.report_sarif import sarif_together
from attnshape.report import Report
from attnshape.several import Made, Outcome, Outcomes

Draw = Callable[[Made], str]
"""Draws one result in the format, as if it stood for itself."""


@dataclass(frozen=True)
class Together(Generic[Made]):
    """What is written for each result as soon as it is there, and what at the end."""

    part: Callable[[Outcome[Made], Draw[Made], Screen], str]
    end: Callable[[Outcomes[Made], Screen], str]
    for_people: bool = True
    """Whether people read it, who see there what can't be carried out."""


def _text(outcome: Outcome[Any], draw: Draw[Any], screen: Screen) -> str:
    above = several_text.heading(outcome, screen.width, screen.color)
    return above + "\n" + (f"{draw(outcome.made)}\n" if outcome.made is not None else "")


def _markdown(outcome: Outcome[Any], draw: Draw[Any], screen: Screen) -> str:
    above = several_markdown.heading(outcome)
    return above + "\n" + (f"{draw(outcome.made)}\n" if outcome.made is not None else "")


def _nothing(outcome: Outcome[Any], draw: Draw[Any], screen: Screen) -> str:
    """Return nothing: the format is one document, which is made at the end."""
    return ""


_FOR_TERMINALS: Together[Any] = Together(
    _text, lambda outcomes, screen: several_text.summary(outcomes.each, screen.width, screen.color)
)
_MARKDOWN: Together[Any] = Together(_markdown, lambda outcomes, screen: several_markdown.summary(outcomes.each))

TRACES: dict[str, Together[Trace]] = {
    "table": _FOR_TERMINALS,
    "markdown": _MARKDOWN,
    "json": Together(_nothing, lambda outcomes, screen: several_json.traces(outcomes), for_people=False),
}
REPORTS: dict[str, Together[Report]] = {
    "text": _FOR_TERMINALS,
    "markdown": _MARKDOWN,
    "json": Together(_nothing, lambda outcomes, screen: several_json.reports(outcomes), for_people=False),
    "github": Together(_nothing, lambda outcomes, screen: github_together(outcomes.each)),
    "sarif": Together(_nothing, lambda outcomes, screen: sarif_together(outcomes), for_people=False),
}
