"""`attnshape annotate`: writes the shapes that a trace knows into the source."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import replace

from attnshape.cli.flags import Output, takes_target
from attnshape.cli.help import ANNOTATING
from attnshape.cli.jobs import jobs_of
from attnshape.cli.output import check_writable, print_message, use_color, write_bytes
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError, ExitStatus
from attnshape.model.formatting import join_words, pluralize
from attnshape.options.spec import AnnotateOptions, Existing, RunOptions, StyleName, TargetSpec, require_name
from attnshape.reporters.escaping import visible_lines
from attnshape.runtime.capture import data_stream, to_standard_error
from attnshape.runtime.files import display_path

if TYPE_CHECKING:
    from attnshape.annotate.saving import Project
    from attnshape.annotate.styles import AnnotatedFile

# what annotates is imported by the functions that use it: the other verbs, which share this start, do without

_annotating: Any = partial(typer.Option, rich_help_panel=ANNOTATING)


@takes_target
def annotate(
    typed: TargetSpec,
    run: Mapping[str, object],
    style: Annotated[StyleName, _annotating(metavar="NAME", help="jaxtyping or comment.")] = "jaxtyping",
    include: Annotated[
        Literal["matched"] | None,
        _annotating(metavar="matched", help="Also write axes that only match a size, unverified."),
    ] = None,
    existing: Annotated[
        Existing, _annotating(metavar="HOW", help="Existing signatures: keep, replace or check.")
    ] = "keep",
    case: Annotated[
        list[str] | None,
        _annotating(metavar="TARGET", help="Another run of the code; annotations hold for all. Repeat."),
    ] = None,
    enforce: Annotated[
        bool, _annotating("--enforce", help="Write decorators that check annotations as the code runs.")
    ] = False,
    write: Annotated[bool, _annotating("--write", help="Change the file; else the diff is printed.")] = False,
    force: Annotated[bool, _annotating("--force", help="With --write: also files with uncommitted changes.")] = False,
    output: Output = None,
) -> None:
    """Annotate the source with its shapes; print a diff, or change the files with --write."""
    _check_options(style, enforce, write, force, output)
    check_writable(output)
    specs, options = _specs(typed, run, case or [])
    from attnshape.annotate.saving import current_project

    project = current_project()
    # torch is imported only here, after everything that can be validated without it
    from attnshape.pipelines.annotate import annotate_requests

    gc.freeze()
    gc.enable()
    how = AnnotateOptions(style, existing, include is not None, enforce)
    # until the diff is written, since threads of the code that ran may print meanwhile
    with to_standard_error():
        with Progress() as progress:
            annotated = annotate_requests(specs, options, how, project, progress)
        _hand_over(annotated, project, write, force, output)
    if annotated.findings:
        raise typer.Exit(ExitStatus.FOUND)


def _hand_over(annotated: AnnotatedFile, project: Project, write: bool, force: bool, output: Path | None) -> None:
    """Write the files, or the diff; then a summary to standard error."""
    from attnshape.annotate.saving import check_writable as check_files
    from attnshape.annotate.saving import color_diff, is_in_repository, save, unified_diff

    files = annotated.files
    if write:
        check_files([source.path for source, _ in files], project, force)
        save(files)
    elif files:
        diff = unified_diff(files, Path.cwd().resolve())
        # elsewhere `git apply` may read it, which takes it as it is
        shown = visible_lines(diff) if output is None and data_stream().isatty() else diff
        write_bytes(color_diff(shown) if use_color(output) else shown, output)
    summary = list(annotation_summary(annotated, written=write))
    if write and any(not is_in_repository(source.path) for source, _ in files):
        summary.append("note: there is no git repository to restore the old file from")
    for line in summary:
        print_message(line)


def _check_options(style: str, enforce: bool, write: bool, force: bool, output: Path | None) -> None:
    if enforce and style != "jaxtyping":
        raise AttnshapeError("--enforce is for annotations; comments can't be checked", "leave out --style comment")
    if force and not write:
        raise AttnshapeError("--force says that --write may write, but there is no --write", "add --write")
    if write and output is not None:
        raise AttnshapeError(
            "--output is for the diff, and with --write there is none", "leave one out: --write changes the file itself"
        )


def _specs(typed: TargetSpec, run: Mapping[str, object], cases: list[str]) -> tuple[list[TargetSpec], RunOptions]:
    """Return the target at each of its sets of sizes, then the cases, and how to run them."""
    if not typed.target:
        raise AttnshapeError("no target is given", "name what to annotate: attnshape annotate model.py:Attention")
    jobs = jobs_of("annotate", typed, run)
    specs = [job.spec for job in jobs]
    for name in cases:
        if ":" in name:
            specs.append(replace(jobs[0].spec, target=name))
        else:
            other = replace(typed, target=require_name(name), init=None, inputs={}, arguments={})
            specs += [job.spec for job in jobs_of("annotate", other, run)]
    return specs, jobs[0].options


_NOUNS = {"argument": "argument", "result": "result", "local": "local variable"}


def annotation_summary(annotated: AnnotatedFile, written: bool) -> Iterator[str]:
    """Yield the lines that sum up an annotation, which was written to the files or only shown."""
    name = display_path(str(annotated.source.path))
    if annotated.files:
        counts: Counter[str] = Counter(change.place.kind for change in annotated.changes)
        parts = [pluralize(counts[kind], noun) for kind, noun in _NOUNS.items() if counts[kind]]
        verb = "annotated" if written else "to annotate"
        yield f"{name}: {join_words(parts) if parts else 'decorators'} {verb}"
    else:
        yield f"{name}: nothing to change"
    if annotated.verified_at:
        bits = " and gives the same bits" if annotated.same_bits else ""
        sizes = "; ".join(filter(None, annotated.verified_at)) or "its own sizes"
        yield f"verified: runs{',' if bits else ' and'} passes its checks{bits} at {sizes}"
    for finding in annotated.findings:
        line = f":{finding.source.line}" if finding.source is not None else ""
        yield f"{name}{line}: {finding.message}; {finding.evidence}"
        yield f"  hint: {finding.hint}"
    if annotated.unpacked:
        by_function: dict[str, dict[str, None]] = {}
        for place in annotated.unpacked:
            by_function.setdefault(place.function, {})[place.name] = None
        listed = "; ".join(f"{', '.join(names)} in {function}" for function, names in by_function.items())
        yield f"left out, since unpacked names can't be annotated: {listed}"
    for omission in annotated.omissions:
        yield f"left out: {omission.what}: {omission.why}"
    for note in annotated.notes:
        yield f"note: {note}"
    hook = annotated.rewrite.hook
    if hook is not None and hook.package is None and annotated.files:
        yield f"note: beartype checks local variables only where these lines run before {hook.module} is imported:"
        yield from (f"  {line}" for line in hook.lines)
        yield "attnshape trace checks them anyway"
