"""Compares what is written about shapes in the traced functions with what was measured."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attnshape.model import Source
from attnshape.paths import display_path
from attnshape.report import Finding, Unexamined
from attnshape.variables.observe import Run
from attnshape.variables.watch import Function
from attnshape.written import source
from attnshape.written.annotations import annotations_in
from attnshape.written.calls import Call, Shape
from attnshape.written.claim import PROSE, Written
from attnshape.written.claimed import written_in
from attnshape.written.comments import claims
from attnshape.written.docstrings import entries_of
from attnshape.written.fitting import fits, holds, size
from attnshape.written.measured import Measured
from attnshape.written.notation import Group, groups, in_line
from attnshape.written.types import allows, kind_of
from attnshape.written.unify import Letters, unify
from attnshape.written.wording import in_letters, tuple_of, written_like

RANK, ORDER, SIZE, TYPE = "AS001", "AS002", "AS003", "AS004"
_LEAST_IN_PROSE = 3
"""Axes that a shape within prose must have: pairs stand for many things there."""
_LARGEST_CONSTANT = 4
"""Axes of more than this many elements are of a size that varies; small runs have sizes from 5 on."""
CODES = (RANK, ORDER, SIZE, TYPE)


@dataclass(frozen=True)
class Verified:
    """What came of it: how many claims hold, and those that don't."""

    held: int = 0
    findings: tuple[Finding, ...] = ()
    runs: int = 0
    unexamined: tuple[Unexamined, ...] = ()
    """Why it isn't known."""


def verify(runs: Sequence[Run], functions: Iterable[Function]) -> Verified:
    """Return which claims in the functions' source hold in every run."""
    held = 0
    findings: list[Finding] = []
    for function in functions:
        file = source.read(function.file)
        found = source.node_of(file, function) if file is not None else None
        if file is None or found is None:
            continue
        measured = Measured(function, runs)
        written = written_in(file, *found, measured)
        letters = unify([one.demand for one in written], measured.calls)
        for one in written:
            if holds(one.demand, letters.chosen):
                held += 1
            elif _is_sure(one, letters, measured.calls):
                findings.append(_finding(one, letters, measured, file))
        findings += _of_types(written, measured, file)
    findings.sort(key=lambda one: (one.source.file, one.source.line) if one.source is not None else ("", 0))
    unique = {(one.source, one.message): one for one in findings}
    return Verified(held, tuple(unique.values()), len(runs))


def has_claims(functions: Iterable[Function]) -> bool:
    """Say whether anything in the functions' source may be a claim, before any run is made for it."""
    for function in functions:
        file = source.read(function.file)
        found = source.node_of(file, function) if file is not None else None
        if file is not None and found is not None and _mentions(file, *found):
            return True
    return False


def _mentions(file: source.File, node: source.FunctionNode, owner: ast.ClassDef | None) -> bool:
    return (
        any(claims(one.text) for one in source.comments_in(file, node))
        or any(True for _ in annotations_in(node))
        or any(any(groups(one.text)) or in_line(one.text) for one in entries_of(node, owner))
    )


def _is_sure(one: Written, letters: Letters, calls: Sequence[Call]) -> bool:
    """Say whether what doesn't hold was meant as a shape: its letters are more than this one claim's word."""
    if one.annotation is not None:
        return True
    names = [name for group in one.demand.groups for name in group.letters]
    if one.demand.weight <= PROSE and all(len(group.tokens) < _LEAST_IN_PROSE for group in one.demand.groups):
        return False
    known = [name for name in dict.fromkeys(names) if letters.known(name)]
    tensors = {name for call in calls for name in call.tensors}
    if all(name in tensors and name not in letters.named for name in names):
        return False
    return 2 * len(known) >= len(set(names)) and bool(known)


def _finding(one: Written, letters: Letters, measured: Measured, file: source.File) -> Finding:
    place, shape = _first_wrong(one, letters)
    group = _closest(one, shape)
    code = _code(group, shape, letters, place)
    axes = in_letters(shape, place, one.demand, group, letters, measured.calls)
    numbers = " ".join(map(str, shape))
    at = ", ".join(f"{k}={v}" for k, v in measured.calls[place].numbers.items())
    return Finding(
        code=code,
        message=f"{one.text} is written of {one.said_of}, measured {tuple_of(axes)}",
        source=_source(one, measured, file),
        expression=one.written,
        hint=_hint(one, group, axes),
        shown="measured",
        evidence=f"at {at} it is {numbers}",
    )


def _hint(one: Written, group: Group, axes: Sequence[str]) -> str:
    """Return what to write instead; nothing can be said of an axis that no letter in the function stands for."""
    unnamed = [axis for axis in axes if axis.isdecimal() and int(axis) > _LARGEST_CONSTANT]
    if unnamed:
        return f"no letter in the function stands for the axis that is {unnamed[0]} in this run: give it one"
    return f"write {written_like(axes, group, one.annotation is not None)}"


def _source(one: Written, measured: Measured, file: source.File) -> Source:
    column = max(file.lines[one.line - 1].find(one.written, one.column), one.column)
    return Source(display_path(measured.function.file), one.line, column + 1, measured.function.name)


def _first_wrong(one: Written, letters: Letters) -> tuple[int, Shape]:
    """Return the first call in which a claim doesn't hold, and the shape there."""
    for place, call in enumerate(one.demand.measured):
        for options in call:
            if not any(fits(g.tokens, shape, letters.chosen, place) for g in one.demand.groups for shape in options):
                ranks = {len(group.tokens) for group in one.demand.groups}
                alike = [shape for shape in options if len(shape) in ranks]
                return place, (alike or list(options))[0]
    raise AssertionError("the claim holds")


def _closest(one: Written, shape: Shape) -> Group:
    """Return which of the shapes that were written was meant: one of as many axes, where there is any."""
    groups = one.demand.groups
    return next((group for group in groups if len(group.tokens) == len(shape)), groups[0])


def _code(group: Group, shape: Shape, letters: Letters, place: int) -> str:
    rigid = all(token.kind != "variadic" for token in group.tokens)
    if rigid and len(group.tokens) != len(shape):
        return RANK
    written = [size(token, letters.chosen, place) for token in group.tokens]
    if rigid and None not in written and sorted(written) == sorted(shape):  # type: ignore[type-var]  # none is None
        return ORDER
    return SIZE


def _of_types(written: Sequence[Written], measured: Measured, file: source.File) -> Iterator[Finding]:
    """Yield the annotations whose tensors are of another type: `Float` of what is boolean."""
    for one in written:
        if one.annotation is None:
            continue
        wrong = [dtype for dtype in measured.dtypes(one.annotation) if not allows(one.annotation.kind, dtype)]
        if wrong:
            yield Finding(
                code=TYPE,
                message=f"{one.text} is written of {one.said_of}, measured {wrong[0]}",
                source=_source(one, measured, file),
                expression=one.written,
                hint=f"write {kind_of(wrong[0])}[…]",
                shown="measured",
                evidence=f"its dtype is torch.{wrong[0]}",
            )
