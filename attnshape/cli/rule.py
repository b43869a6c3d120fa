"""`attnshape rule`: what a code means; without one, all codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnshape.checks.rules.pages import codes_under, page, pages
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
    under = codes_under(code) if code is not None else ()
    if code is None or len(under) > 1:
        write(rule_list([one for one in pages() if code is None or one.code in under], terminal_width()), None)
        return
    one = page(code)
    write(rule_page(one, terminal_width(), use_color(None)) if sys.stdout.isatty() else one.markdown, None)
