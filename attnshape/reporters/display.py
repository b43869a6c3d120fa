"""How traces, reports, differences and articles display themselves in consoles and notebooks.

The model imports this module lazily, from `__str__` and `_repr_html_`: a program that displays nothing doesn't pay.
"""

from __future__ import annotations

import shutil

from attnshape.model.difference import Difference
from attnshape.model.explanation import Explanation
from attnshape.model.report import Report
from attnshape.model.trace import Trace
from attnshape.reporters.article_markdown import explanation_markdown
from attnshape.reporters.diff_view import diff_view
from attnshape.reporters.html_table import trace_html
from attnshape.reporters.markdown import diff_markdown, report_markdown, trace_markdown
from attnshape.reporters.report_view import ReportOptions
from attnshape.reporters.reporter import Screen
from attnshape.reporters.table import diff_table, trace_table
from attnshape.reporters.text import report_text
from attnshape.reporters.trace_view import ViewOptions, trace_view

_DEFAULT_WIDTH = 100
"""The width where there is no terminal."""


_IN_PYTHON = ReportOptions(where="`verified` lists them")


def display_text(value: Trace | Report | Difference | Explanation) -> str:
    """Return the text for a console, as wide as the terminal, without a newline at the end."""
    screen = Screen(shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns)
    if isinstance(value, Explanation):
        return display_markdown(value).rstrip("\n")
    if isinstance(value, Report):
        return report_text(value, screen, _IN_PYTHON).rstrip("\n")
    if isinstance(value, Trace):
        return trace_table(trace_view(value, ViewOptions()), screen).rstrip("\n")
    return diff_table(diff_view(value), screen).rstrip("\n")


def display_markdown(value: Trace | Report | Difference | Explanation) -> str:
    """Return the value as Markdown."""
    if isinstance(value, Explanation):
        return explanation_markdown(value)
    if isinstance(value, Report):
        return report_markdown(value, _IN_PYTHON)
    if isinstance(value, Trace):
        return trace_markdown(trace_view(value, ViewOptions()))
    return diff_markdown(diff_view(value))


def display_html(trace: Trace) -> str:
    """Return a trace as a `div` of HTML."""
    return trace_html(trace_view(trace, ViewOptions()))
