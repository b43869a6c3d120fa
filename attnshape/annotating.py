"""From requests to a file's new contents: observe the targets, write what holds of all runs, prove it."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jaxtyping
import torch

from attnshape.annotate.asked import Asked
from attnshape.annotate.changes import LeftOut, Wanted
from attnshape.annotate.clashing import without_clashes, without_taken
from attnshape.annotate.enforcing import already_unchecked, hook
from attnshape.annotate.names import names
from attnshape.annotate.outcome import Annotated
from attnshape.annotate.passed_over import not_understood, unfit_functions
from attnshape.annotate.project import Project
from attnshape.annotate.source import Source, decoded
from attnshape.annotate.styles import STYLES, Rewritten
from attnshape.annotate.tree import parse
from attnshape.catalog.registry import DEFAULT
from attnshape.ending import foreign_code
from attnshape.errors import AttnshapeError
from attnshape.exploring import explore_closely, small_enough
from attnshape.inference.small_runs import Doing
from attnshape.paths import display_path
from attnshape.proving.job import Call
from attnshape.proving.proof import Proof
from attnshape.proving.prover import Prover
from attnshape.settings import Settings
from attnshape.sizes import resolve
from attnshape.target.cases import as_case
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request
from attnshape.tracing.isolation import isolated
from attnshape.tracing.output import to_standard_error
from attnshape.tracing.patience import Patience
from attnshape.variables.forms import FunctionForms
from attnshape.variables.observe import Observed, observe
from attnshape.variables.signatures import signatures
from attnshape.written.verify import verify

_SECONDS = 30.0
"""How long constraints are looked for."""


def annotate_requests(
    requests: Sequence[Request],
    settings: Settings,
    asked: Asked,
    project: Project,
    prover: Prover,
    doing: Doing = lambda words: None,
) -> Annotated:
    """Return what is to be written into the file of the first target, proved; the others are more cases of its code.

    Raises AttnshapeError where that can't be done, as where the file is outside of the project.
    """
    with to_standard_error(), foreign_code(), isolated():
        requests = [*requests[:1], *map(as_case, requests[1:])]
        observed = [_observed_unless_annotated_wrongly(request, settings, asked, doing) for request in requests]
    doing("working out what holds in all runs")
    forms = signatures(observed)
    path = _file(requests[0], observed[0], forms, project)
    source = _read(path)
    forms = [one for one in forms if _is_file(one.function.file, path)]
    tree = parse(source)
    if not _any_known(forms, {(one.name, one.line) for one in tree.definitions}):
        raise AttnshapeError(
            f"nothing that ran is in {display_path(str(path))} as it is on the disk",
            "its code was made as it ran, or the file has changed since it was imported",
        )
    runs = [run for one in observed for run in (*one.small, one.actual)]
    forms, taken = without_taken(forms, runs)
    clashes: list[LeftOut] = []
    if asked.existing != "replace":
        forms, clashes = without_clashes(tree, names(tree), forms)
    unchecked = already_unchecked(tree, names(tree))
    sizes = tuple(run.numbers for run in runs)
    by_name = hook(path).is_possible
    wanted = Wanted(asked.existing, asked.matched, sizes=sizes, unchecked=unchecked, hook=by_name)
    if asked.style == "comment":
        rewritten = STYLES["comment"](source, forms, wanted)
        _means_the_same(source, rewritten)
        made = Annotated(source, asked.style, rewritten)
    else:
        made = Proof(source, forms, wanted, prover, _calls(requests, observed), settings).proved(asked, doing)
    passed_over = [*unfit_functions(tree, names(tree), forms)]
    if asked.style != "comment" and not made.left_out:  # else the proof says which annotations don't hold
        passed_over += not_understood(tree, names(tree), forms)
    made = replace(made, left_out=(*passed_over, *taken, *clashes, *made.left_out))
    if asked.existing != "check":
        return made
    doing("comparing what is written with what is measured")
    return replace(made, findings=verify(runs, [one.function for one in forms]).findings)


def _observed_unless_annotated_wrongly(request: Request, settings: Settings, asked: Asked, doing: Doing) -> Observed:
    """Observe a target; where its signatures are to be checked or replaced and it fails, without what enforces them."""
    try:
        return _observed(request, settings, doing)
    except AttnshapeError:
        if asked.existing == "keep":
            raise
    with _jaxtyping_off():
        return _observed(request, settings, doing)


@contextlib.contextmanager
def _jaxtyping_off() -> Iterator[None]:
    """Within it jaxtyping's decorators check nothing, and bind no sizes for what a hook of beartype's checks."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _observed(request: Request, settings: Settings, doing: Doing) -> Observed:
    doing("loading the target")
    target = find_target(request)
    sizes = small_enough(resolve(target.used, target.given, request.own))
    placement = Placement(torch.device("cpu"), torch.float32, settings.seed, settings.train)
    patience = Patience()
    variation = explore_closely(target, sizes, placement, patience, _SECONDS, doing)
    doing("watching the variables")
    return observe(target, variation, placement, patience)


def _file(request: Request, observed: Observed, forms: Sequence[FunctionForms], project: Project) -> Path:
    """Return the file to annotate: that of the code that is called, else the first of the project in which any ran.

    Raises AttnshapeError where there is none.
    """
    ran = [one.function.file for one in forms]
    named = [one for one in [observed.file, *ran] if one is not None and one.endswith(".py") and Path(one).is_file()]
    if not named:
        where = f"in {observed.file}" if observed.file is not None else "not in a file of Python code"
        raise AttnshapeError(
            f"the code of {request.target or DEFAULT} is {where}, so there is nothing to annotate",
            "name a function or class in a .py file: model.py:Attention",
        )
    paths = [Path(one).resolve() for one in named]
    path = next((path for path in paths if project.holds(path)), paths[0])
    project.check(path)
    return path


def _read(path: Path) -> Source:
    try:
        return decoded(path, path.read_bytes())
    except OSError as error:
        raise AttnshapeError(f"{display_path(str(path))} can't be read: {error.strerror}", "make it readable") from None


def _is_file(name: str, path: Path) -> bool:
    return not name.startswith("<") and Path(name).resolve() == path


def _any_known(forms: Sequence[FunctionForms], places: Collection[tuple[str, int]]) -> bool:
    return any((one.function.name, one.function.line) in places for one in forms)


def _calls(requests: Sequence[Request], observed: Sequence[Observed]) -> tuple[Call, ...]:
    """Return what is run for the proof: each target at its own sizes, and at two sets of small ones."""
    return tuple(
        Call(request, (one.actual.numbers, *(run.numbers for run in one.small[:2])))
        for request, one in zip(requests, observed, strict=True)
    )


def _means_the_same(source: Source, rewritten: Rewritten) -> None:
    """Raise AttnshapeError where comments changed the code."""
    for _, edits in rewritten.files:
        if ast.dump(ast.parse(source.edited(edits))) != ast.dump(ast.parse(source.data)):
            raise AttnshapeError(
                f"comments would change the code of {display_path(str(source.path))}",
                "nothing was written; please report it with the file",
            )
