"""`attnshape diff`: compares two traces, saved or new, step by step."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from attnshape.cli.flags import DifferenceFormat, Output, TimeLimit, takes_targets, typed_command
from attnshape.cli.help import COMPARING
from attnshape.cli.jobs import Job, is_source, jobs_of
from attnshape.cli.output import check_writable, resolve_format, screen_for, write
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError, ExitStatus, Option, did_you_mean
from attnshape.model.difference import KINDS, Difference, FolderDifference, Kind
from attnshape.options.flags import flag_words
from attnshape.options.limits import MEASURING_SECONDS, check_time_limit
from attnshape.options.pyproject import project_targets, resolve_name
from attnshape.options.spec import TargetSpec
from attnshape.reporters.registry import find_renderer
from attnshape.runtime.capture import to_standard_error

if TYPE_CHECKING:
    from attnshape.comparison.outline import Outline
    from attnshape.model.behaviour import Behaviour
    from attnshape.model.trace import Trace

_ANY = "any"
_INPUT_HELP = (
    "A trace saved with --format json, a snapshot, a target, a Python file with one attention, or a folder of saved "
    "traces."
)


@takes_targets
def diff(
    typed: TargetSpec,
    run: Mapping[str, object],
    old: Annotated[str, typer.Argument(metavar="OLD", help=_INPUT_HELP)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What to compare it with: likewise.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=COMPARING,
            metavar="LIST",
            help=f"The kinds that end with status 1: {', '.join((*KINDS, _ANY))}. Can be repeated.",
        ),
    ] = None,
    time_limit: TimeLimit = MEASURING_SECONDS,
    format_: DifferenceFormat = "auto",
    output: Output = None,
) -> None:
    """Compare two traces: steps added or removed, and shapes changed."""
    check_writable(output, [Path(old), Path(new)])
    name = resolve_format(format_, output)
    check_time_limit(time_limit)
    failing_kinds = _parse_kinds(fail_on or [_ANY])
    command = typed_command()
    inputs = _resolve(old, "OLD", typed, run, command), _resolve(new, "NEW", typed, run, command)
    # an unsuitable format is an error before anything runs
    find_renderer(name, "differences" if all(isinstance(side, Path) for side in inputs) else "difference")
    option = next(iter([*typed.given_options(), *(Option(name, value) for name, value in run.items())]), None)
    if option is not None and not any(isinstance(side, Job) for side in inputs):
        raise AttnshapeError(
            f"{flag_words(option)[0]} applies to targets, and saved traces have been run already",
            "leave it out, or name a target",
        )
    # redirected until the table is written, since threads of the traced code may still print
    with to_standard_error():
        difference = _compare(time_limit, *inputs)
        screen = screen_for(output)
        if isinstance(difference, Difference):
            text = find_renderer(name, "difference")(difference, command, screen)
        else:
            text = find_renderer(name, "differences")(difference, command, screen)
        write(text, output)
    if isinstance(difference, FolderDifference) and difference.not_compared:
        raise typer.Exit(ExitStatus.CANNOT)
    if failing_kinds & set(difference.kinds):
        raise typer.Exit(ExitStatus.FOUND)


def _parse_kinds(lists: list[str]) -> frozenset[Kind]:
    """Return the kinds in the values of `--fail-on`. Raises AttnshapeError if one is unknown or there are none."""
    words = [word.strip() for text in lists for word in text.split(",") if word.strip()]
    choices = (*KINDS, _ANY)
    for word in words:
        if word not in choices:
            raise AttnshapeError(
                f"--fail-on: there is no kind {word[:40]!r}", did_you_mean(word, choices, "the kinds are")
            )
    if not words:
        raise AttnshapeError("--fail-on names no kind", f"the kinds are {', '.join(choices)}")
    return frozenset(KINDS if _ANY in words else (kind for kind in KINDS if kind in words))


def _resolve(
    text: str, name: str, typed: TargetSpec, run: Mapping[str, object], command: str
) -> Trace | Outline | Job | Path:
    """Resolve the argument OLD or NEW to a saved trace, the path of a folder, or a job that traces a target.

    Raises AttnshapeError if there is no such file or target, or the file is neither a trace nor a snapshot.
    """
    from attnshape.comparison.saved import HOW_TO_SAVE, SUFFIXES, read_saved
    from attnshape.targets.builtin.registry import CATALOG

    if not text.strip():
        raise AttnshapeError(f"{name} is empty", "name a saved trace, a snapshot, a folder of these, or a target")
    known = [*CATALOG, *project_targets()]
    path = Path(text)
    # a target that has the name of a file must not make its comparison run code
    is_path = "/" in text or path.suffix in SUFFIXES
    try:
        if (is_path or text not in known) and path.is_dir():
            return path
        if (is_path or text not in known) and path.exists() and path.suffix != ".py":
            return read_saved(path)
    except (OSError, ValueError) as error:
        raise AttnshapeError(f"can't read {text[:80]!r}: {error}", HOW_TO_SAVE) from None
    revision, _, file = text.partition(":")
    if file.partition(":")[0].endswith(".py") and not revision.endswith(".py"):
        raise AttnshapeError(
            f"{name} is {text[:80]!r}, which looks like a file of a git revision: only files on disk are compared",
            f"check the revision out beside this folder: git worktree add ../old {shlex.quote(revision)}",
        )
    if is_source(text) and text not in known:
        found = jobs_of("diff", replace(typed, target=text), run)
        if len(found) == 1:
            return found[0]
    if ":" in text or text in known or path.suffix == ".py":
        return Job(text, {}, *resolve_name(replace(typed, target=text), run, command))
    if "/" in text or path.suffix in SUFFIXES:
        raise AttnshapeError(f"{name} is {text[:80]!r}: no such file", HOW_TO_SAVE)
    raise AttnshapeError(
        f"{name} is {text[:80]!r}: neither a file nor a target", did_you_mean(text, known, "the targets by name are")
    )


def _compare(
    time_limit: float, old: Trace | Outline | Job | Path, new: Trace | Outline | Job | Path
) -> Difference | FolderDifference:
    """Return the difference of two inputs, after tracing targets. Raises AttnshapeError if only one is a folder."""
    from attnshape.comparison.saved import compare_folders, compare_saved

    if isinstance(old, Path) and isinstance(new, Path):
        return compare_folders(old, new)
    if isinstance(old, Path) or isinstance(new, Path):
        raise AttnshapeError(
            f"{old if isinstance(old, Path) else new} is a folder and the other side isn't",
            "name two folders, or a file in it",
        )
    if isinstance(old, Job) or isinstance(new, Job):
        return compare_saved(*_trace_targets(time_limit, old, new))
    return compare_saved(old, new)


def _trace_targets(time_limit: float, *sides: Trace | Outline | Job) -> Iterator[Trace | Outline]:
    """Yield the saved sides as they are, and the traces of the others.

    The behaviour of a target is measured unless a saved side doesn't hold any; at the sizes of the other side.
    """
    # these import torch, so all checks that don't need it come first
    from attnshape.pipelines.behaviour import with_behaviour
    from attnshape.pipelines.trace import trace_request
    from attnshape.targets.imports import forget_imports

    gc.freeze()
    gc.enable()
    files = {side.spec.target.partition(":")[0] for side in sides if isinstance(side, Job)}
    known = [_behaviour_of(side) for side in sides if not isinstance(side, Job)]
    other = next((behaviour.sizes for behaviour in known if behaviour is not None), None)
    with Progress() as progress:
        for side in sides:
            if not isinstance(side, Job):
                yield side
                continue
            # two versions of a project may have modules of the same names
            with forget_imports() if len(files) > 1 else nullcontext():
                traced = trace_request(side.spec, side.options, progress=progress)
                if None not in known:
                    traced = with_behaviour(traced, side.spec, side.options, time_limit, other, progress=progress)
            measured = _behaviour_of(traced)
            other = measured.sizes if measured is not None and measured.sizes else other
            yield traced


def _behaviour_of(side: Trace | Outline) -> Behaviour | None:
    return side.behaviour or None
