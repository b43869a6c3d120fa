"""`attnshape rule`: what a code means; without one, all codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnshape.cli.writing import use_color, width, write
from attnshape.render import rules
from attnshape.rules.pages import codes_under, page, pages


def rule(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="A code such as AS201, or a family such as AS2.")
    ] = None,
) -> None:
    """What a code of `check` means, why nothing else tells, and how to mend it; without CODE, all codes."""
    under = codes_under(code) if code is not None else ()
    if code is None or len(under) > 1:
        write(rules.listing([one for one in pages() if code is None or one.code in under], width()), None)
        return
    one = page(code)
    write(rules.terminal(one, width(), use_color(None)) if sys.stdout.isatty() else one.markdown, None)
