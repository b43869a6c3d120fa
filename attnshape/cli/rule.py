"""`attnshape rule`: explains a code, or lists all codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnshape.checks.rules.pages import codes_under, pages
from attnshape.checks.rules.pages import page as find_page
from attnshape.cli.output import terminal_width, use_color, write
from attnshape.reporters.reference_pages import rule_list, rule_page


def rule(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A code such as AS201, or a family such as AS2.")
    ] = None,
) -> None:
    """Explain a code of `check`: the mistake and how to fix it.

    Without CODE, list all codes.
    """
    matches = codes_under(code) if code is not None else ()
    if code is None or len(matches) > 1:
        write(rule_list([page for page in pages() if code is None or page.code in matches], terminal_width()), None)
    elif sys.stdout.isatty():
        write(rule_page(find_page(code), terminal_width(), use_color(None)), None)
    else:
        write(find_page(code).markdown, None)
