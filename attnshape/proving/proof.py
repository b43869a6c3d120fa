"""Runs what would be written, leaves out what doesn't hold, and compares every result with the original's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attnshape.annotate.asked import Asked
from attnshape.annotate.changes import Change, LeftOut, Place, Wanted
from attnshape.annotate.enforcing import hook
from attnshape.annotate.functions import refusing_none
from attnshape.annotate.names import names
from attnshape.annotate.outcome import Annotated
from attnshape.annotate.source import Edit, Source
from attnshape.annotate.styles import Rewritten, enforced, jaxtyping
from attnshape.annotate.tree import parse
from attnshape.errors import AttnshapeError
from attnshape.inference.small_runs import Doing
from attnshape.paths import display_path
from attnshape.proving.job import Answer, Blame, Call, Job
from attnshape.proving.libraries import libraries
from attnshape.proving.prover import Prover
from attnshape.settings import Settings
from attnshape.variables.forms import FunctionForms

_MOST_ATTEMPTS = 40


class Proof:
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
            if asked.enforce:
                self._allow_none()
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
        same = self._is_same(answer)
        at = [
            " ".join(f"{letter}={size}" for letter, size in numbers.items())
            for call in self._calls
            for numbers in call.numbers
        ]
        return Annotated(self._source, asked.style, rewritten, tuple(self._left_out), tuple(dict.fromkeys(at)), same)

    def _allow_none(self) -> None:
        """Leave unchecked what would refuse a None that is its own default, though no run gave one."""
        tree = parse(self._source)
        made = enforced(self._source, self._forms, self._wanted).made
        rewritten = {(one.place.line, one.place.name) for one in made.changes if one.place.kind == "argument"}
        for one in made.functions:
            refusing = [name for name in refusing_none(one.node, names(tree)) if (one.line, name) not in rewritten]
            if refusing and one.name not in self._wanted.unchecked:
                self._wanted = replace(self._wanted, unchecked=self._wanted.unchecked | {one.name})
                why = f"{refusing[0]} is None by default, and its own annotation doesn't say so"
                self._left_out.append(LeftOut(f"no check of the arguments and the result of {one.name}", why))

    def _job(self, checked: Rewritten | None) -> Job:
        files = {str(s.path): s.edited(edits) for s, edits in checked.files} if checked is not None else {}
        where = hook(self._source.path)
        targets = [Path(call.request.target.rpartition(":")[0]) for call in self._calls]
        hooked = checked is not None and self._wanted.hook
        return Job(
            files,
            self._calls,
            self._settings.seed,
            self._settings.train,
            module=where.module if hooked else "",
            alone=str(self._source.path) if hooked and where.package is None else "",
            libraries=libraries([str(path.resolve()) for path in (self._source.path, *targets)]),
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

    def _is_same(self, answer: Answer) -> bool:
        """Say whether the results are the original's, bit for bit; not where those differ by themselves.

        Raises AttnshapeError where they are others.
        """
        original = self._job(None)
        before = self._prover.ask(original)
        if before.blame is not None:  # as where a signature that is replaced was enforced
            original = replace(original, checked=False)
            before = self._prover.ask(original)
        if before.blame is not None:
            raise AttnshapeError(
                f"{display_path(str(self._source.path))} as it is doesn't run in a process of its own: "
                f"{before.blame.message}",
                "nothing was written; a target must not depend on what ran before it",
            )
        if before.results == answer.results:
            return True
        again = self._prover.ask(original)
        if again.results != before.results:
            self._left_out.append(
                LeftOut("no proof that the results are the same", "two runs of the original differ by themselves")
            )
            return False
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
