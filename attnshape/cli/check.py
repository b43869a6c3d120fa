"""`attnshape check`: mistakes in attention code that no shape tells of."""

from __future__ import annotations

import gc
import math
import shlex
import sys
from typing import Annotated

import typer
from msgspec.structs import replace

from attnshape.claims import parse_claims
from attnshape.cli.options import Output
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags, asked, named
from attnshape.cli.target_options import takes_target
from attnshape.cli.writing import check_writable, resolve_format, use_color, width, write
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.render.formats import Screen
from attnshape.render.report_formats import find
from attnshape.selecting import Selection
from attnshape.silencing import split
from attnshape.tracing.output import to_standard_error


@takes_target
def check(
    target: str | None,
    flags: Flags,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM", help="What is meant: causal, window=W, mask=keep, scale=1/sqrt(Dk) … Repeat."),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Only these codes or families: AS2,AS301. Repeat.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Not these codes or families: AS204. Repeat.")
    ] = None,
    written: Annotated[
        bool, typer.Option("--written", help="Only what is written about shapes: comments, docstrings, annotations.")
    ] = False,
    pattern: Annotated[
        bool, typer.Option("--pattern", help="Draw which output positions depend on which input positions.")
    ] = False,
    time_limit: Annotated[str, typer.Option(metavar="SECONDS", help="When to stop looking further.")] = "60",
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="auto, text, markdown, json, github or sarif.")
    ] = "auto",
    output: Output = None,
) -> None:
    """Mistakes in attention code that no shape tells of: each with its line, its numbers and a hint."""
    check_writable(output)
    form = find(resolve_format(format_, output, "text"), pattern)
    selection = Selection.parse(select or [], ignore or [])
    limit = _seconds(time_limit)
    found, given = named(target, Flags({**flags.values, "claim": claim or []}))
    claims = parse_claims(given.values["claim"])
    request, settings = asked(found, given, shlex.join(["attnshape", *sys.argv[1:]]))
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.examine import check_request
    from attnshape.target.device import require_device
    from attnshape.verifying import verify_request

    gc.freeze()
    gc.enable()
    require_device(settings.device)
    # until the report is written, since threads of the examined code may print meanwhile
    with to_standard_error():
        with Progress() as progress:
            if written:
                made = verify_request(request, settings, limit, doing=progress)
            else:
                made = check_request(request, settings, claims, limit, doing=progress)
        counting, silenced = split(made.findings, selection)
        made = replace(made, findings=counting, silenced=(*made.silenced, *silenced))
        write(form.draw(made, Screen(width(), use_color(output)), pattern), output)
    if made.found_something:
        raise typer.Exit(ExitStatus.FOUND)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise AttnshapeError(
            f"--time-limit is {text[:40]!r}, expected a number of seconds above 0", "for example --time-limit 60"
        )
    return seconds
