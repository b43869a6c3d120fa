"""From requests to a file's new contents: observe the targets, write what holds of all runs, prove it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from attnshape.annotate.asked import Asked
from attnshape.annotate.changes import Change, Place, Wanted
from attnshape.annotate.enforcing import already_unchecked, hook
from attnshape.annotate.names import names
from attnshape.annotate.outcome import Annotated, LeftOut
from attnshape.annotate.project import Project
from attnshape.annotate.source import Edit, Source, decoded
from attnshape.annotate.styles import STYLES, Rewritten, enforced, jaxtyping
from attnshape.annotate.tree import parse
from attnshape.catalog.registry import DEFAULT
from attnshape.ending import foreign_code
from attnshape.errors import AttnshapeError
from attnshape.exploring import explore_closely, small_enough
from attnshape.inference.small_runs import Doing
from attnshape.paths import display_path
from attnshape.proving.job import Answer, Blame, Call, Job
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

_SECONDS = 30.0
"""How long constraints are looked for."""
_MOST_ATTEMPTS = 40


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
        observed = [_observed(request, settings, doing) for request in requests]
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
    sizes = tuple(run.numbers for one in observed for run in (*one.small, one.actual))
    unchecked = already_unchecked(tree, names(tree))
    by_name = hook(path).is_possible
    wanted = Wanted(asked.existing, asked.matched, sizes=sizes, unchecked=unchecked, hook=by_name)
    if asked.style == "comment":
        rewritten = STYLES["comment"](source, forms, wanted)
        _means_the_same(source, rewritten)
        return Annotated(source, asked.style, rewritten)
    return _Proof(source, forms, wanted, prover, _calls(requests, observed), settings).proved(asked, doing)


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


class _Proof:
    """Runs what would be written, leaves out what doesn't hold, and compares every result with the original's."""

    def __init__(
        self,
        source: Source,
        forms: Sequence[FunctionForms],
        wanted: Wanted,
        prover: Prover,
        calls: tuple[Call, ...],
        settings: Settings,
    ) -> None:
        self._source, self._forms, self._wanted = source, forms, wanted
        self._prover, self._calls, self._settings = prover, calls, settings
        self._left_out: list[LeftOut] = []
        if not wanted.hook:
            name = display_path(str(source.path))
            self._left_out.append(LeftOut("no check of local variables", f"{name} can't be imported by its name"))

    def proved(self, asked: Asked, doing: Doing) -> Annotated:
        """Return what can be written."""
        style = enforced if asked.enforce else jaxtyping
        for attempt in itertools.count():
            rewritten = style(self._source, self._forms, self._wanted)
            if not rewritten.files:
                return Annotated(self._source, asked.style, rewritten, tuple(self._left_out))
            doing("proving that what is written holds")
            checked = enforced(self._source, self._forms, self._wanted)
            answer = self._prover.ask(self._job(checked))
            if answer.blame is None:
                break
            if attempt == _MOST_ATTEMPTS:
                raise self._cannot(answer.blame)
            self._leave_out(answer.blame, checked)
        self._compare(answer)
        at = [
            " ".join(f"{letter}={size}" for letter, size in numbers.items())
            for call in self._calls
            for numbers in call.numbers
        ]
        return Annotated(self._source, asked.style, rewritten, tuple(self._left_out), tuple(dict.fromkeys(at)))

    def _job(self, checked: Rewritten | None) -> Job:
        files = {str(s.path): s.edited(edits) for s, edits in checked.files} if checked is not None else {}
        where = hook(self._source.path)
        hooked = checked is not None and self._wanted.hook
        return Job(
            files,
            self._calls,
            self._settings.seed,
            self._settings.train,
            module=where.module if hooked else "",
            alone=str(self._source.path) if hooked and where.package is None else "",
        )

    def _leave_out(self, blame: Blame, checked: Rewritten) -> None:
        """Leave out what is to blame. Raises AttnshapeError where nothing of what would be written is."""
        place = self._place(blame, checked)
        if place is not None:
            self._wanted = replace(self._wanted, without=self._wanted.without | {place})
            self._left_out.append(LeftOut(f"no annotation for {place}", blame.message))
        elif blame.kind == "local" and self._wanted.hook:
            self._wanted = replace(self._wanted, hook=False)
            where = f"{display_path(blame.file)}, in line {self._original_line(blame, checked)}"
            self._left_out.append(LeftOut(f"no hook, for {where} has an annotation that doesn't hold", blame.message))
        elif blame.function and self._name(blame) not in self._wanted.unchecked:
            self._wanted = replace(self._wanted, unchecked=self._wanted.unchecked | {self._name(blame)})
            self._left_out.append(
                LeftOut(f"no check of the arguments and the result of {self._name(blame)}", blame.message)
            )
        elif blame.function and self._name(blame) not in self._wanted.untouched:
            self._wanted = replace(self._wanted, untouched=self._wanted.untouched | {self._name(blame)})
            del self._left_out[-1:]  # what was said of its check
            self._left_out.append(LeftOut(f"no annotation in {self._name(blame)}", blame.message))
        else:
            raise self._cannot(blame)

    def _name(self, blame: Blame) -> str:
        """Return the function to blame under its name in the file."""
        known = [one.name for one in parse(self._source).definitions]
        return next(
            (name for name in known if blame.function == name or blame.function.endswith(f".{name}")), blame.function
        )

    def _place(self, blame: Blame, checked: Rewritten) -> Place | None:
        """Return the new annotation that is to blame, None where it is one of the author's own."""
        edits = [edit for source, edits in checked.files if source is self._source for edit in edits]
        for change in checked.made.changes:
            place = change.place
            if blame.kind == "local" and place.kind == "local":
                if self._line(change, edits) == blame.line and blame.file == str(self._source.path):
                    return place
            elif blame.kind == place.kind and place.function == self._name(blame) and place.name == blame.name:
                return place
        return None

    def _line(self, change: Change, edits: Sequence[Edit]) -> int:
        """Return the line that a change stands on once all edits are made."""
        return self._source.line(change.place.offset) + _lines_above(change.place.offset, edits)

    def _original_line(self, blame: Blame, checked: Rewritten) -> int:
        edits = [edit for source, edits in checked.files if source is self._source for edit in edits]
        lines = range(1, blame.line + 1)
        return next(
            (line for line in lines if line + _lines_above(self._source.offset(line, 0), edits) == blame.line), 0
        )

    def _compare(self, answer: Answer) -> None:
        """Raise AttnshapeError where a result isn't the original's, bit for bit."""
        before = self._prover.ask(self._job(None))
        if before.results == answer.results:
            return
        again = self._prover.ask(self._job(None))
        if again.results != before.results:
            self._left_out.append(
                LeftOut("no proof that the results are the same", "two runs of the original differ by themselves")
            )
            return
        raise AttnshapeError(
            f"the annotated {display_path(str(self._source.path))} gives other results",
            "nothing was written; leave --enforce out, or write comments: --style comment",
        )

    def _cannot(self, blame: Blame) -> AttnshapeError:
        return AttnshapeError(
            f"the annotated {display_path(str(self._source.path))} doesn't run: {blame.message}",
            "nothing was written; leave --enforce out, or write comments: --style comment",
        )


def _lines_above(offset: int, edits: Sequence[Edit]) -> int:
    """Return how many lines edits add above a place."""
    return sum(
        edit.text.count("\n") or edit.text.count("\r") for edit in edits if edit.start < offset or edit.start == offset
    )
