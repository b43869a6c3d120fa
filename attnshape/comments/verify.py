"""Verifies documented shapes against those observed, and reports the wrong ones: AS001 to AS004."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attnshape.comments.annotations import allows_dtype, find_annotations, kind_of_dtype
from attnshape.comments.documented import docstring_entries, documented_shapes
from attnshape.comments.functions import comments_in, find_function
from attnshape.comments.grammar import parse_comment
from attnshape.comments.notation import ShapeText, find_bare_shapes, find_shapes
from attnshape.comments.observed_shapes import FunctionCall, ObservedShapes, Shape
from attnshape.comments.unification import (
    PROSE,
    DocumentedShape,
    NameAssignment,
    Vector,
    axis_size,
    fits,
    holds,
    unify,
    without_remainders,
)
from attnshape.model.report import Finding, NotChecked
from attnshape.model.trace import Source
from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import ObservedRun
from attnshape.runtime.files import display_path, source_lines

RANK, ORDER, SIZE, TYPE = "AS001", "AS002", "AS003", "AS004"
CODES = (RANK, ORDER, SIZE, TYPE)
_LEAST_IN_PROSE = 3
"""Axes that a shape within prose must have: pairs stand for many things there."""
_ANY_WIDTH = frozenset("CDEFcdef")
"""Letters that stand for one width in one comment and for another in the next."""
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
        words = "documented shape holds" if self.holding == 1 else "documented shapes hold"
        return (f"{self.holding} {words}",) if self.holding else ()


def verify_shape_comments(
    runs: Sequence[ObservedRun], functions: Iterable[FunctionId], proposed: Collection[str] = ()
) -> CommentVerification:
    """Return which shapes that the functions' source documents hold in all runs of one target at several sizes.

    `proposed` names the arguments whose shapes attnshape chose itself, so that nobody's code gives them these shapes.
    """
    holding = 0
    findings: list[Finding] = []
    left_open: dict[str, NotChecked] = {}
    for function in functions:
        source = find_function(function)
        if source is None:
            continue
        observed = ObservedShapes(function, runs)
        documented = [
            replace(shape, constraint=without_remainders(shape.constraint, observed.calls))
            for shape in documented_shapes(*source, observed)
        ]
        assignment = unify([shape.constraint for shape in documented], observed.calls)
        for shape in documented:
            if holds(shape.constraint, assignment.chosen):
                holding += 1
            elif any(holds(constraint, assignment.chosen) for constraint in shape.elsewhere):
                continue
            elif (name := shape.subject.strip("`")) in proposed:
                why = "attnshape chose its shape itself, and not this one; --input says which it has"
                left_open[name] = NotChecked(what=f"the documented shape of {name}, {shape.text}", why=why)
            elif _is_certain(shape, assignment, observed.calls):
                findings.append(_finding(shape, assignment, observed))
        findings += _wrong_dtypes(documented, observed)
    findings.sort(key=lambda finding: (finding.source.file, finding.source.line) if finding.source else ("", 0))
    unique = {(finding.source, finding.message): finding for finding in findings}
    return CommentVerification(holding, tuple(unique.values()), len(runs), tuple(left_open.values()))


def may_document_shapes(functions: Iterable[FunctionId]) -> bool:
    """Return whether the functions' source may document any shape, which takes no run to find out."""
    for file, node, owner in filter(None, map(find_function, functions)):
        lines = [entry.text for entry in docstring_entries(node, owner)]
        if any(any(find_shapes(line)) or find_bare_shapes(line) for line in lines) or any(find_annotations(node)):
            return True
        if any(parse_comment(comment.text) for comment in comments_in(file, node)):
            return True
    return False


def _is_certain(documented: DocumentedShape, assignment: NameAssignment, calls: Sequence[FunctionCall]) -> bool:
    """Return whether a shape that doesn't hold was meant as one: more than itself must speak for its names."""
    if documented.annotation is not None:
        return True
    if holds(documented.constraint, assignment.without_doubt):
        return False
    shapes = documented.constraint.shapes
    if documented.constraint.weight <= PROSE:
        loose = _ANY_WIDTH - assignment.from_code
        values = {name: vector for name, vector in assignment.chosen.items() if name not in loose}
        if holds(documented.constraint, values) or all(len(shape.axes) < _LEAST_IN_PROSE for shape in shapes):
            return False
    names = {name for shape in shapes for name in shape.names}
    tensors = {name for call in calls for name in call.tensors}
    known = [name for name in names if assignment.is_known(name)]
    return not names <= tensors - assignment.from_code and 2 * len(known) >= len(names) and bool(known)


def _finding(documented: DocumentedShape, assignment: NameAssignment, observed: ObservedShapes) -> Finding:
    texts = documented.constraint.shapes
    place, shape, others = _first_mismatch(documented, assignment)
    meant = next((text for text in texts if len(text.axes) == len(shape)), texts[0])
    axes = _name_axes(shape, place, documented, meant, assignment, observed.calls)
    at = ", ".join(f"{symbol}={size}" for symbol, size in observed.calls[place].numbers.items())
    unnamed = [axis for axis in axes if axis.isdecimal() and int(axis) > _LARGEST_CONSTANT]
    if unnamed:
        hint = f"no name in the function stands for the axis of size {unnamed[0]} in this run: give it one"
    else:
        hint = f"write {_format_like(axes, meant, is_dims=documented.annotation is not None)}"
    code, evidence = _code(meant, shape, assignment, place), f"at {at} it is {' '.join(map(str, shape))}"
    difference = f"has shape {format_tuple(axes)}"
    if others:
        difference = f"no tensor there has this shape; the closest is {format_tuple(axes)}"
        hint += ", if that tensor is meant"
    return _report(documented, observed, code, difference, hint, evidence)


def _report(
    documented: DocumentedShape, observed: ObservedShapes, code: str, difference: str, hint: str, evidence: str
) -> Finding:
    line, function = documented.line, observed.function
    column = max(source_lines(function.file)[line - 1].find(documented.on_line, documented.column), documented.column)
    return Finding(
        code=code,
        level="warning",
        message=f"{documented.subject} is documented as {documented.text}, but {difference}",
        source=Source(display_path(function.file), line, column + 1, function.name),
        expression=documented.on_line,
        hint=hint,
        shown="measured",
        evidence=evidence,
    )


def _first_mismatch(documented: DocumentedShape, assignment: NameAssignment) -> tuple[int, Shape, bool]:
    """Return the first call in which a shape doesn't hold, the closest shape there, and whether there are others."""
    texts = documented.constraint.shapes
    for place, call in enumerate(documented.constraint.observed):
        for options in call:
            if not any(fits(text.axes, shape, assignment.chosen, place) for text in texts for shape in options):
                ranks = {len(text.axes) for text in texts}
                same_rank = [shape for shape in options if len(shape) in ranks]
                closest = max(same_rank or options, key=lambda shape: _likeness(texts, shape, assignment, place))
                return place, closest, len(options) > 1
    raise AssertionError("the documented shape holds")


def _likeness(texts: Sequence[ShapeText], shape: Shape, assignment: NameAssignment, place: int) -> tuple[bool, int]:
    """Return whether an observed shape has the documented axes in another order, and how many are in their place."""
    in_place = (
        sum(one == axis_size(axis, assignment.chosen, place) for one, axis in zip(shape, text.axes, strict=False))
        for text in texts
    )
    return any(_code(text, shape, assignment, place) == ORDER for text in texts), max(in_place)


def _code(documented: ShapeText, shape: Shape, assignment: NameAssignment, place: int) -> str:
    fixed_rank = all(axis.kind != "variadic" for axis in documented.axes)
    if fixed_rank and len(documented.axes) != len(shape):
        return RANK
    sizes = [axis_size(axis, assignment.chosen, place) for axis in documented.axes]
    if fixed_rank and None not in sizes and sorted(sizes) == sorted(shape):  # type: ignore[type-var]  # none is None
        return ORDER
    return SIZE


def _wrong_dtypes(documented: Sequence[DocumentedShape], observed: ObservedShapes) -> Iterator[Finding]:
    """Yield the annotations whose tensors have another dtype: `Float` where the tensor is boolean."""
    for shape in documented:
        if shape.annotation is not None:
            kind = shape.annotation.kind
            wrong = next((dtype for dtype in observed.dtypes(shape.annotation) if not allows_dtype(kind, dtype)), None)
            if wrong is not None:
                hint = f"write {kind_of_dtype(wrong)}[…]"
                yield _report(shape, observed, TYPE, f"has dtype {wrong}", hint, f"its dtype is torch.{wrong}")


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
    return (" x " if " x " in text else ", " if "," in text else " ").join(axes)


def _name_axes(
    shape: Shape,
    place: int,
    documented: DocumentedShape,
    meant: ShapeText,
    assignment: NameAssignment,
    calls: Sequence[FunctionCall],
) -> tuple[str, ...]:
    """Return a shape, observed in the call at a place, in the author's dimension names, else in size symbols.

    A name is used where it gives the size in every call that had a single shape there. Where there is none, the number
    is returned.
    """
    symbols: dict[str, Vector] = {
        symbol: tuple(call.numbers.get(symbol) for call in calls) for call in calls for symbol in call.numbers
    }
    order = sorted(assignment.chosen, key=lambda name: (name not in meant.names, -assignment.supported.get(name, 0)))
    names = {name: assignment.chosen[name] for name in order}
    names |= {symbol: vector for symbol, vector in symbols.items() if symbol not in names}
    by_call = [{shape for options in call for shape in options} for call in documented.constraint.observed]
    sole = [next(iter(shapes)) if len(shapes) == 1 else () for shapes in by_call]
    axes = []
    for axis, number in enumerate(shape):
        sizes: Vector = tuple(other[axis] if len(other) == len(shape) else None for other in sole)
        if sizes[place] != number:
            sizes = tuple(number if at == place else None for at in range(len(calls)))
        axes.append(_name_axis(number, sizes, names))
    return tuple(axes)


def _name_axis(number: int, sizes: Vector, names: Mapping[str, Vector]) -> str:
    """Return a name, a product of two, or a multiple of one that gives the axis's size wherever that is known."""

    def candidates() -> Iterator[tuple[str, Vector]]:
        yield from names.items()
        for (name, first), (other, second) in itertools.combinations(names.items(), 2):
            pairs = zip(first, second, strict=True)
            yield f"{name}*{other}", tuple(a * b if a and b and a > 1 < b else None for a, b in pairs)
        for factor, (name, vector) in itertools.product(range(2, _LARGEST_FACTOR + 1), names.items()):
            yield f"{factor}*{name}", tuple(factor * value if value is not None else None for value in vector)

    if number == 1:
        return "1"
    for text, vector in candidates():
        if all(size is None or size == value for size, value in zip(sizes, vector, strict=True)):
            return text
    return str(number)
