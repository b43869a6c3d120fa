"""`attnshape diff`: two traces, saved or made now, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

from attnshape.cli.jobs import as_typed
from attnshape.cli.options import Format, Output
from attnshape.cli.request import Flags
from attnshape.cli.target_options import takes_flags
from attnshape.cli.writing import check_writable, resolve_format, use_color, width, write
from attnshape.comparing.kinds import KINDS, Kind
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.hints import nearest
from attnshape.render.formats import Screen
from attnshape.tracing.output import to_standard_error

_ANY = "any"
_WHAT = "A trace saved with --format json, a snapshot, a target, or a folder of saved traces."


@takes_flags
def diff(
    flags: Flags,
    old: Annotated[str, typer.Argument(metavar="OLD", help=_WHAT)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same for what it is compared with.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="LIST", help=f"What ends with status 1: {', '.join((*KINDS, _ANY))}. Repeat."),
    ] = None,
    format_: Format = "auto",
    output: Output = None,
) -> None:
    """Two traces, saved or made now, step by step: what was added, what went, and what is another shape."""
    # what compares is imported only here: the other verbs, which share this start, do without
    from attnshape.cli.sides import Target, compared, side
    from attnshape.comparing.difference import Difference
    from attnshape.comparing.folders import Differences
    from attnshape.render.diff_formats import find

    check_writable(output)
    form = find(resolve_format(format_, output))
    counting = _counting(fail_on or [_ANY])
    command = as_typed()
    sides = side(old, "OLD", flags, command), side(new, "NEW", flags, command)
    typed = next((flag for flag, values in flags.values.items() if values), None)
    if typed is not None and not any(isinstance(one, Target) for one in sides):
        raise AttnshapeError(
            f"--{typed} is for targets: what is saved has been run already", "leave it out, or name a target"
        )
    # until the table is written, since threads of the traced code may print meanwhile
    with to_standard_error():
        made = compared(*sides)
        screen = Screen(width(), use_color(output))
        draw = form.one(made, command, screen) if isinstance(made, Difference) else form.many(made, command, screen)
        write(draw, output)
    if isinstance(made, Differences) and made.not_compared:
        raise typer.Exit(ExitStatus.CANNOT)
    if counting & set(made.kinds):
        raise typer.Exit(ExitStatus.FOUND)


def _counting(lists: list[str]) -> frozenset[Kind]:
    """Return the kinds that `--fail-on` names. Raises AttnshapeError for another word, and where there is none."""
    words = [word.strip() for text in lists for word in text.split(",") if word.strip()]
    choices = (*KINDS, _ANY)
    for word in words:
        if word not in choices:
            raise AttnshapeError(f"--fail-on: there is no kind {word[:40]!r}", nearest(word, choices, "the kinds are"))
    if not words:
        raise AttnshapeError("--fail-on names nothing", f"the kinds are {', '.join(choices)}")
    return frozenset(KINDS if _ANY in words else (kind for kind in KINDS if kind in words))
