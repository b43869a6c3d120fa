"""`attnshape annotate`: what the trace knows, written into the source."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnshape.cli.jobs import Job, jobs_of
from attnshape.cli.options import Output
from attnshape.cli.progress import Progress
from attnshape.cli.request import Flags
from attnshape.cli.target_options import takes_target
from attnshape.cli.writing import check_writable, use_color, write_bytes
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.hints import nearest
from attnshape.render.text import visible
from attnshape.settings import Settings
from attnshape.target.request import Request
from attnshape.tracing.output import to_standard_error

# what annotates is imported by the functions that use it: the other verbs, which share this start, do without
if TYPE_CHECKING:
    from attnshape.annotate.outcome import Annotated as Made
    from attnshape.annotate.project import Project

_OF_ONE_TARGET = ("init", "input", "with")


@takes_target
def annotate(
    target: str | None,
    flags: Flags,
    style: Annotated[str, typer.Option(metavar="NAME", help="jaxtyping or comment.")] = "jaxtyping",
    include: Annotated[
        str | None, typer.Option(metavar="matched", help="Write axes too that were matched to a size, not proved.")
    ] = None,
    existing: Annotated[
        str, typer.Option(metavar="HOW", help="Signatures that are there: keep, replace or check.")
    ] = "keep",
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Another run of the code: what is written holds for all. Repeat."),
    ] = None,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Write what has the annotations checked as the code runs.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Change the file; else the diff is printed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --write: also where git hasn't seen the file as it is.")
    ] = False,
    output: Output = None,
) -> None:
    """What the trace knows, written into the source: annotations or comments, as a diff or with --write."""
    _check_options(style, include, existing, enforce, write, force, output)
    check_writable(output)
    _check_output(output, [Path(one.rpartition(":")[0]) for one in (target or "", *(case or []))])
    requests, settings = _requests(target, flags, case or [])
    from attnshape.annotate.asked import Asked
    from attnshape.annotate.project import current_project
    from attnshape.proving.prover import Prover

    project = current_project()
    # torch is imported only here, once everything that can be wrong without it has been looked at
    from attnshape.annotating import annotate_requests
    from attnshape.target.device import require_device

    gc.freeze()
    gc.enable()
    require_device(settings.device)
    how = Asked(style, existing, include is not None, enforce)  # type: ignore[arg-type]  # looked at above
    # until the diff is written, since threads of the code that ran may print meanwhile
    with to_standard_error():
        with Progress() as progress, Prover() as prover:
            made = annotate_requests(requests, settings, how, project, prover, progress)
        _hand_over(made, project, write, force, output)
    if made.findings:
        raise typer.Exit(ExitStatus.FOUND)


def _hand_over(made: Made, project: Project, write: bool, force: bool, output: Path | None) -> None:
    """Write the files, or the diff; then say on standard error what was done."""
    from attnshape.annotate.diffing import colored, unified
    from attnshape.annotate.project import in_repository
    from attnshape.annotate.saving import check_writable as check_files
    from attnshape.annotate.saving import save
    from attnshape.render.annotating import summary

    files = made.files
    _check_output(output, [made.source.path, *(source.path for source, _ in files)])
    if write:
        check_files([source.path for source, _ in files], project, force)
        save(files)
    elif files:
        diff = unified(files, Path.cwd().resolve())
        write_bytes(colored(diff) if use_color(output) else diff, output)
    for line in summary(made, written=write):
        print(visible(line), file=sys.stderr)  # noqa: T201 - standard output is the diff's
    if write and any(not in_repository(source.path) for source, _ in files):
        print("note: there is no git here to bring the old file back", file=sys.stderr)  # noqa: T201


def _check_options(
    style: str, include: str | None, existing: str, enforce: bool, write: bool, force: bool, output: Path | None
) -> None:
    from attnshape.annotate.asked import EXISTING, STYLE_NAMES

    if style not in STYLE_NAMES:
        raise AttnshapeError(f"there is no style {style[:40]!r}", nearest(style, list(STYLE_NAMES), "the styles are"))
    if include not in (None, "matched"):
        raise AttnshapeError(
            f"--include is {include[:40]!r}, expected matched", "leave it out to write only what is proved"
        )
    if existing not in EXISTING:
        raise AttnshapeError(f"--existing is {existing[:40]!r}", nearest(existing, list(EXISTING), "it can be"))
    if enforce and style != "jaxtyping":
        raise AttnshapeError("--enforce is for annotations; comments can't be checked", "leave out --style comment")
    if force and not write:
        raise AttnshapeError("--force says that --write may write, but there is no --write", "add --write")
    if write and output is not None:
        raise AttnshapeError(
            "--output is for the diff, and with --write there is none", "leave one out: --write changes the file itself"
        )


def _check_output(output: Path | None, sources: Sequence[Path]) -> None:
    """Raise AttnshapeError where the diff would be written over the code."""
    for source in sources:
        if output is not None and source.is_file() and output.exists() and output.samefile(source):
            raise AttnshapeError(
                f"--output {output} is the code itself, which the diff would overwrite",
                "name another file for the diff; --write changes the code",
            )


def _requests(target: str | None, flags: Flags, cases: list[str]) -> tuple[list[Request], Settings]:
    """Return the target's requests, one for each of its sets of sizes, then those of the cases."""
    if not target:
        raise AttnshapeError("no target is given", "name what to annotate: attnshape annotate model.py:Attention")
    jobs = _jobs(target, flags)
    found = [job.request for job in jobs]
    without = Flags({flag: [] if flag in _OF_ONE_TARGET else values for flag, values in flags.values.items()})
    for text in cases:
        same = [replace(found[0], target=text)] if ":" in text else [job.request for job in _jobs(text, without)]
        found += same
    return found, jobs[0].settings


def _jobs(target: str, flags: Flags) -> list[Job]:
    return [job for job in jobs_of("annotate", target, flags, every=False).each if isinstance(job, Job)]
