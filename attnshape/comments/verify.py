"""Verifies documented shapes against those observed, and reports the wrong ones: AS001 to AS004."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnshape.comments.annotations import allows_dtype, find_annotations, kind_of_dtype
from attnshape.comments.documented import docstring_entries, documented_shapes
from attnshape.comments.functions import FunctionNode, SourceFile, comments_in, find_function, read_source_file
from attnshape.comments.grammar import parse_comment
from attnshape.comments.notation import ShapeText, find_bare_shapes, find_shapes
from attnshape.comments.observed_shapes import FunctionCall, ObservedShapes, Shape
from attnshape.comments.unification import (
    PROSE,
    DocumentedShape,
    NameAssignment,
    ShapeConstraint,
    Vector,
    axis_size,
    fits,
    holds,
    unify,
)
from attnshape.model.report import Finding, NotChecked
from attnshape.model.trace import Source
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import ObservedRun
from attnshape.runtime.files import display_path

RANK, ORDER, SIZE, TYPE = "AS001", "AS002", "AS003", "AS004"
CODES = (RANK, ORDER, SIZE, TYPE)
_LEAST_IN_PROSE = 3
"""Axes that a shape within prose must have: pairs stand for many things there."""
_LARGEST_CONSTANT = 4
"""Larger axes have a size that varies; small runs have sizes from 5 on."""
_LARGEST_FACTOR = 4


@dataclass(frozen=True)
class CommentVerification:
    """How many documented shapes hold, and which don't."""

    holding: int = 0
    findings: tuple[Finding, ...] = ()
    runs: int = 0
    not_checked: tuple[NotChecked, ...] = ()
    """Why the shapes weren't checked."""

    @property
    def summary(self) -> tuple[str, ...]:
        """What was verified, in a few words; nothing if no shape holds."""
        if not self.holding:
            return ()
        return ("1 documented shape holds" if self.holding == 1 else f"{self.holding} documented shapes hold",)


def verify_shape_comments(runs: Sequence[ObservedRun], functions: Iterable[FunctionId]) -> CommentVerification:
    """Return which shapes that the functions' source documents hold in every run.

    Args:
        runs: runs of one target at several sizes.
        functions: the functions whose comments, docstrings and annotations are verified.
    """
    holding = 0
    findings: list[Finding] = []
    for function in functions:
        file = read_source_file(function.file)
        found = find_function(file, function) if file is not None else None
        if file is None or found is None:
            continue
        observed = ObservedShapes(function, runs)
        documented = documented_shapes(file, *found, observed)
        assignment = unify([one.constraint for one in documented], observed.calls)
        for one in documented:
            if holds(one.constraint, assignment.chosen):
                holding += 1
            elif _is_certain(one, assignment, observed.calls):
                findings.append(_finding(one, assignment, observed, file))
        findings += _wrong_dtypes(documented, observed, file)
    findings.sort(key=lambda one: (one.source.file, one.source.line) if one.source is not None else ("", 0))
    unique = {(one.source, one.message): one for one in findings}
    return CommentVerification(holding, tuple(unique.values()), len(runs))


def may_document_shapes(functions: Iterable[FunctionId]) -> bool:
    """Return whether the functions' source may document any shape, which takes no run to find out."""
    for function in functions:
        file = read_source_file(function.file)
        found = find_function(file, function) if file is not None else None
        if file is not None and found is not None and _mentions_shapes(file, *found):
            return True
    return False


def _mentions_shapes(file: SourceFile, node: FunctionNode, owner: ast.ClassDef | None) -> bool:
    return (
        any(parse_comment(one.text) for one in comments_in(file, node))
        or any(True for _ in find_annotations(node))
        or any(any(find_shapes(one.text)) or find_bare_shapes(one.text) for one in docstring_entries(node, owner))
    )


def _is_certain(one: DocumentedShape, assignment: NameAssignment, calls: Sequence[FunctionCall]) -> bool:
    """Return whether a shape that doesn't hold was meant as one: more than itself must speak for its names."""
    if one.annotation is not None:
        return True
    names = [name for shape in one.constraint.shapes for name in shape.names]
    if one.constraint.weight <= PROSE and all(len(shape.axes) < _LEAST_IN_PROSE for shape in one.constraint.shapes):
        return False
    known = [name for name in dict.fromkeys(names) if assignment.is_known(name)]
    tensors = {name for call in calls for name in call.tensors}
    if all(name in tensors and name not in assignment.from_code for name in names):
        return False
    return 2 * len(known) >= len(set(names)) and bool(known)


def _finding(one: DocumentedShape, assignment: NameAssignment, observed: ObservedShapes, file: SourceFile) -> Finding:
    place, shape = _first_mismatch(one, assignment)
    meant = next((text for text in one.constraint.shapes if len(text.axes) == len(shape)), one.constraint.shapes[0])
    axes = _name_axes(shape, place, one.constraint, meant, assignment, observed.calls)
    at = ", ".join(f"{symbol}={size}" for symbol, size in observed.calls[place].numbers.items())
    unnamed = [axis for axis in axes if axis.isdecimal() and int(axis) > _LARGEST_CONSTANT]
    if unnamed:
        hint = f"no name in the function stands for the axis of size {unnamed[0]} in this run: give it one"
    else:
        hint = f"write {_format_like(axes, meant, is_dims=one.annotation is not None)}"
    return Finding(
        code=_code(meant, shape, assignment, place),
        message=f"{one.subject} is documented as {one.text}, but has shape {format_tuple(axes)}",
        source=_source(one, observed, file),
        expression=one.on_line,
        hint=hint,
        shown="measured",
        evidence=f"at {at} it is {' '.join(map(str, shape))}",
    )


def _source(one: DocumentedShape, observed: ObservedShapes, file: SourceFile) -> Source:
    column = max(file.lines[one.line - 1].find(one.on_line, one.column), one.column)
    return Source(display_path(observed.function.file), one.line, column + 1, observed.function.name)


def _first_mismatch(one: DocumentedShape, assignment: NameAssignment) -> tuple[int, Shape]:
    """Return the first call in which a documented shape doesn't hold, and the shape observed there."""
    texts = one.constraint.shapes
    for place, call in enumerate(one.constraint.observed):
        for options in call:
            if not any(fits(text.axes, shape, assignment.chosen, place) for text in texts for shape in options):
                ranks = {len(text.axes) for text in texts}
                same_rank = [shape for shape in options if len(shape) in ranks]
                return place, (same_rank or list(options))[0]
    raise AssertionError("the documented shape holds")


def _code(documented: ShapeText, shape: Shape, assignment: NameAssignment, place: int) -> str:
    fixed_rank = all(axis.kind != "variadic" for axis in documented.axes)
    if fixed_rank and len(documented.axes) != len(shape):
        return RANK
    sizes = [axis_size(axis, assignment.chosen, place) for axis in documented.axes]
    if fixed_rank and None not in sizes and sorted(sizes) == sorted(shape):  # type: ignore[type-var]  # none is None
        return ORDER
    return SIZE


def _wrong_dtypes(
    documented: Sequence[DocumentedShape], observed: ObservedShapes, file: SourceFile
) -> Iterator[Finding]:
    """Yield the annotations whose tensors have another dtype: `Float` where the tensor is boolean."""
    for one in documented:
        if one.annotation is None:
            continue
        kind = one.annotation.kind
        wrong = [dtype for dtype in observed.dtypes(one.annotation) if not allows_dtype(kind, dtype)]
        if wrong:
            yield Finding(
                code=TYPE,
                message=f"{one.subject} is documented as {one.text}, but has dtype {wrong[0]}",
                source=_source(one, observed, file),
                expression=one.on_line,
                hint=f"write {kind_of_dtype(wrong[0])}[…]",
                shown="measured",
                evidence=f"its dtype is torch.{wrong[0]}",
            )


def format_tuple(axes: Sequence[str]) -> str:
    """Return the axes as Python writes a shape.

    >>> format_tuple(["B", "T"]), format_tuple(["T"]), format_tuple([])
    ('(B, T)', '(T,)', '()')
    """
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


def _format_like(axes: Sequence[str], documented: ShapeText, is_dims: bool) -> str:
    """Return the axes in the notation of a documented shape; `is_dims` says that this is a jaxtyping dims string."""
    text = documented.text
    if is_dims:
        return f'"{" ".join(axes)}"'
    if text.startswith("["):
        return f"[{', '.join(axes)}]"
    if documented.bracketed:
        return format_tuple(axes)
    if " x " in text:
        return " x ".join(axes)
    return ", ".join(axes) if "," in text else " ".join(axes)


def _name_axes(
    shape: Shape,
    place: int,
    constraint: ShapeConstraint,
    documented: ShapeText,
    assignment: NameAssignment,
    calls: Sequence[FunctionCall],
) -> tuple[str, ...]:
    """Return a shape, observed in the call at a place, in the author's dimension names, else in size symbols.

    A name is used where it gives the size in every call that had a single shape there. Where there is none, the number
    is returned.
    """
    order = sorted(
        assignment.chosen, key=lambda name: (name not in documented.names, -assignment.supported.get(name, 0))
    )
    names: dict[str, Vector] = {name: assignment.chosen[name] for name in order}
    for symbol in dict.fromkeys(symbol for call in calls for symbol in call.numbers):
        names.setdefault(symbol, tuple(call.numbers.get(symbol) for call in calls))
    found = []
    for axis, number in enumerate(shape):
        sizes = _sizes_of_axis(constraint, axis, len(shape))
        if sizes[place] != number:
            sizes = tuple(number if at == place else None for at in range(len(calls)))
        found.append(_name_axis(number, sizes, names))
    return tuple(found)


def _sizes_of_axis(constraint: ShapeConstraint, axis: int, rank: int) -> Vector:
    """Return an axis's size in each call that had a single shape of that rank there."""
    found: list[int | None] = []
    for call in constraint.observed:
        shapes = {shape for options in call for shape in options}
        sizes = {shape[axis] for shape in shapes if len(shape) == rank} if len(shapes) == 1 else set()
        found.append(sizes.pop() if sizes else None)
    return tuple(found)


def _name_axis(number: int, sizes: Vector, names: Mapping[str, Vector]) -> str:
    if number == 1:
        return "1"
    for name, vector in names.items():
        if _explains(sizes, vector, 1):
            return name
    for (one, first), (other, second) in itertools.combinations(names.items(), 2):
        product = tuple(a * b if a and b and a > 1 < b else None for a, b in zip(first, second, strict=True))
        if _explains(sizes, product, 1):
            return f"{one}*{other}"
    for factor, (name, vector) in itertools.product(range(2, _LARGEST_FACTOR + 1), names.items()):
        if _explains(sizes, vector, factor):
            return f"{factor}*{name}"
    return str(number)


def _explains(sizes: Vector, vector: Vector, factor: int) -> bool:
    """Return whether a name's values times a factor are the axis's sizes wherever these are known."""
    return all(
        size is None or (number is not None and size == factor * number)
        for size, number in zip(sizes, vector, strict=True)
    )
