"""`attnshape diff`: compares two traces, saved or new, step by step."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

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
    "traces. REVISION:FILE is a file of a git revision."
)


@dataclass(frozen=True)
class _Version:
    """A target as it is in a folder: the current one, or that of a git revision."""

    job: Job
    folder: Path
    revision: str = ""

    @property
    def file(self) -> Path:
        """The file or module of the target."""
        return self.folder / self.job.spec.target.partition(":")[0]


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
            help=f"The kinds that end with status 1, any by default: {', '.join((*KINDS, _ANY))}. Can be repeated.",
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
    with ExitStack() as revisions:
        inputs = _as_declared(
            _resolve(old, "OLD", typed, run, command, revisions),
            _resolve(new, "NEW", typed, run, command, revisions),
        )
        # an unsuitable format is an error before anything runs
        find_renderer(name, "differences" if all(isinstance(side, Path) for side in inputs) else "difference")
        option = next(iter([*typed.given_options(), *(Option(name, value) for name, value in run.items())]), None)
        if option is not None and not any(isinstance(side, _Version) for side in inputs):
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


def _as_declared(
    old: Trace | Outline | _Version | Path, new: Trace | Outline | _Version | Path
) -> tuple[Trace | Outline | _Version | Path, Trace | Outline | _Version | Path]:
    """Return both sides, with what pyproject.toml declares for one of two targets of the same name in both.

    It may not name the target of the other file, or that of an older revision.
    """
    sides = [old, new]
    declared = [isinstance(side, _Version) and ":" not in side.job.name for side in sides]
    if sorted(declared) != [False, True]:
        return old, new
    known, other = (sides[declared.index(value)] for value in (True, False))
    if not isinstance(known, _Version) or not isinstance(other, _Version):
        return old, new
    _, _, name = known.job.spec.target.partition(":")
    if other.job.spec.target.partition(":")[2] == name:
        spec = msgspec.structs.replace(known.job.spec, target=other.job.spec.target)
        sides[declared.index(False)] = replace(other, job=replace(other.job, spec=spec))
    return sides[0], sides[1]


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
    text: str, name: str, typed: TargetSpec, run: Mapping[str, object], command: str, revisions: ExitStack
) -> Trace | Outline | _Version | Path:
    """Resolve the argument OLD or NEW to a saved trace, the path of a folder, or a target to trace.

    The files of a git revision are removed when `revisions` closes. Raises AttnshapeError if there is no such file,
    target or revision, or the file is neither a trace nor a snapshot.
    """
    from attnshape.comparison.saved import SUFFIXES

    revision, _, of_revision = text.partition(":")
    suffix = Path(of_revision.partition(":")[0]).suffix
    if not (suffix in (".py", *SUFFIXES) and revision and not revision.endswith(".py")):
        return _resolve_in(Path.cwd(), text, name, typed, run, command)
    from attnshape.targets.revision import checked_out

    folder = revisions.enter_context(checked_out(revision))
    with chdir(folder):
        if not Path(of_revision.partition(":")[0]).is_file():
            raise AttnshapeError(
                f"{name} is {text[:80]!r}, and {revision} has no such file",
                f"git ls-tree -r --name-only {shlex.quote(revision)} lists its files",
            )
        side = _resolve_in(folder, of_revision, name, typed, run, command)
    return replace(side, revision=revision) if isinstance(side, _Version) else side


def _resolve_in(
    folder: Path, text: str, name: str, typed: TargetSpec, run: Mapping[str, object], command: str
) -> Trace | Outline | _Version | Path:
    """Resolve the argument OLD or NEW in the current folder, or in that of a revision."""
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
    if is_source(text) and text not in known:
        found = jobs_of("diff", msgspec.structs.replace(typed, target=text), run)
        if len(found) == 1:
            return _Version(found[0], folder)
    if ":" in text or text in known or path.suffix == ".py":
        job = Job(text, {}, *resolve_name(msgspec.structs.replace(typed, target=text), run, command))
        return _Version(job, folder)
    if "/" in text or path.suffix in SUFFIXES:
        raise AttnshapeError(f"{name} is {text[:80]!r}: no such file", HOW_TO_SAVE)
    problem = f"{name} is {text[:80]!r}: neither a file nor a target"
    otherwise = f"{text[:40]}:FILE is a file of a revision; the targets by name are"
    raise AttnshapeError(problem, did_you_mean(text, known, otherwise))


def _compare(
    time_limit: float, old: Trace | Outline | _Version | Path, new: Trace | Outline | _Version | Path
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
    if isinstance(old, _Version) or isinstance(new, _Version):
        return compare_saved(*_trace_targets(time_limit, old, new))
    return compare_saved(old, new)


def _trace_targets(time_limit: float, *sides: Trace | Outline | _Version) -> Iterator[Trace | Outline]:
    """Yield the saved sides as they are, and the traces of the others.

    The behaviour of a target is measured unless a saved side doesn't hold any; at the sizes of the other side.
    """
    # these import torch, so all checks that don't need it come first
    from attnshape.pipelines.behaviour import with_behaviour
    from attnshape.pipelines.trace import trace_request
    from attnshape.targets.imports import forget_imports

    gc.freeze()
    gc.enable()
    files = {side.file for side in sides if isinstance(side, _Version)}
    known = [_behaviour_of(side) for side in sides if not isinstance(side, _Version)]
    other = next((behaviour.sizes for behaviour in known if behaviour is not None), None)
    with Progress() as progress:
        for side in sides:
            if not isinstance(side, _Version):
                yield side
                continue
            spec, options = side.job.spec, side.job.options
            # two versions of a project have modules of the same names
            with chdir(side.folder), forget_imports() if len(files) > 1 else nullcontext():
                traced = trace_request(spec, options, progress=progress)
                if None not in known:
                    traced = with_behaviour(traced, spec, options, time_limit, other, progress=progress)
            if side.revision:
                traced = msgspec.structs.replace(traced, target=f"{side.revision}:{traced.target}")
            measured = _behaviour_of(traced)
            other = measured.sizes if measured is not None and measured.sizes else other
            yield traced


def _behaviour_of(side: Trace | Outline) -> Behaviour | None:
    return side.behaviour or None
