"""The shapes that a function's comments, docstring and annotations document, each with what was observed there."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnshape.comments.annotations import find_annotations
from attnshape.comments.functions import CommentedSource, FunctionNode, LocatedComment, comments_in, parameter_names
from attnshape.comments.grammar import CommentClaim, means_the_input, means_the_line, parse_comment
from attnshape.comments.notation import AxisToken, ShapeText, find_bare_shapes, find_shapes, parse_axis
from attnshape.comments.observed_shapes import ObservedShapes, Occurrences, combine
from attnshape.comments.unification import LOOSE, PROSE, DocumentedShape, constrain

_LEAST_STYLE = 3
_SHORT = 5
"""Labels of up to this many characters more likely name another function's variable: `mask`, `value`."""


def documented_shapes(
    file: CommentedSource, node: FunctionNode, owner: ast.ClassDef | None, observed: ObservedShapes
) -> list[DocumentedShape]:
    """Return the shapes that a function documents, where anything was observed at their places."""
    documented = list(_from_annotations(node, observed))
    reader = _CommentReader(node, observed)
    for comment in comments_in(file, node):
        for claim in parse_comment(comment.text):
            documented += reader.read(comment, claim)
    documented += reader.above_in_one_style()
    by_item = itertools.groupby(docstring_entries(node, owner), key=lambda line: (line.item, line.of, line.parameter))
    items = [list(lines) for _, lines in by_item]
    results = [item for item in items if item[0].of == "result" and item[0].listed]
    places = {id(item): place for place, item in enumerate(results)} if len(results) == observed.returned else {}
    for item in items:
        documented += _from_docstring(item, observed, places.get(id(item)))
    return [shape for shape in documented if any(shape.constraint.observed)]


class _CommentReader:
    def __init__(self, node: FunctionNode, observed: ObservedShapes) -> None:
        self._observed = observed
        stores = {store.name for call in observed.calls for store in call.invocation.bindings}
        self._variables = {*parameter_names(node), *stores}
        self._above: list[tuple[DocumentedShape | None, DocumentedShape]] = []
        """Comments above statements: as describing what the statement makes, and as describing anything nearby."""

    def read(self, comment: LocatedComment, claim: CommentClaim) -> Iterator[DocumentedShape]:
        """Yield the shapes that a comment documents; those above statements wait for `above_in_one_style`."""
        observed = self._observed
        names = [name for name in claim.label.names if name in self._variables]
        unknown = [name for name in claim.label.names if not means_the_line(name)]
        above = comment.where == "above"
        if above and not claim.chained and not names and not unknown and claim.of == 1:
            self._above += self._around(comment, claim) if claim.strict else ()
        elif names:
            for name in names:
                yield _document(comment, claim, f"`{name}`", self._variable(comment, name), 1.0)
        elif above and unknown and all(map(means_the_input, unknown)):
            nearby = [statement for statement in (comment.before, comment.statement) if statement is not None]
            inputs = combine(self._all(nearby), observed.arguments())
            yield _document(comment, claim, "the input", inputs, PROSE)
        elif above and unknown and all(map(self._is_word, unknown)):
            yield from (loose for _, loose in self._around(comment, claim)) if claim.label.firm else ()
        elif any(map(_is_attribute, unknown)) or (unknown and (above or not claim.strict)):
            return  # something that isn't a variable here: `self.W_O: (H, Dk, D)`, `mask: (B, 1, L, L) broadcasts`
        elif comment.where == "signature":
            if (parameter := comment.parameter) is not None:
                yield _document(comment, claim, f"`{parameter}`", observed.argument(parameter), 1.0)
        elif above:
            yield from self._chain(comment, claim)
        elif comment.statement is not None:
            yield from self._line(comment, replace(claim, strict=claim.strict and not unknown), comment.statement)

    def _is_word(self, label: str) -> bool:
        """Return whether a label is a word for what stands there, `normalizer:`, and not part of a variable's name."""
        word = len(label) > _SHORT and label.isalpha() and label.islower()
        return word and not any(label in name.lower() for name in self._variables)

    def _line(self, comment: LocatedComment, claim: CommentClaim, statement: ast.stmt) -> Iterator[DocumentedShape]:
        """Yield what a comment on a statement's own lines documents."""
        observed = self._observed
        if claim.role == "operand":
            exact = self._operand(claim, [statement])
            operand = exact or ("an operand", observed.read([statement]))
            yield _document(comment, claim, *operand, 1.0 if exact is not None else LOOSE)
        elif claim.role == "state" or not claim.strict:
            weight = LOOSE if claim.strict else PROSE
            yield _document(comment, claim, "a tensor on the line", observed.touched(statement), weight)
        elif comment.where == "within":
            ending = observed.ended(statement, comment.line)
            yield _document(comment, claim, "the expression that ends on the line", ending, LOOSE)
        else:
            made = observed.made(statement, claim.place, claim.of if claim.place is not None else 1)
            if not any(made) and isinstance(statement, ast.Expr):
                made = observed.touched(statement)
            if statement.lineno != statement.end_lineno:
                # what ends on the comment's line matches as well each time
                ended = [list(itertools.chain(*options)) for options in observed.ended(statement, comment.line)]
                made = [[[*options, *others] for options in call] for call, others in zip(made, ended, strict=True)]
            yield _document(comment, claim, _what_is_made(statement), made, 1.0)

    def _chain(self, comment: LocatedComment, claim: CommentClaim) -> Iterator[DocumentedShape]:
        """Yield what an arrow or a product above statements documents: any statement up to the next gap may do it."""
        nearby = (comment.before, comment.statement)
        block = comment.block or tuple(statement for statement in nearby if statement is not None)
        if not block:
            return
        exact = self._operand(claim, block) if claim.role == "operand" else None
        if exact is not None:
            yield _document(comment, claim, *exact, LOOSE)
        elif claim.strict and claim.role == "operand":
            yield _document(comment, claim, "an operand", self._observed.read(block), PROSE)
        elif claim.strict:
            around = block if comment.before is None or comment.before in block else (comment.before, *block)
            computed = self._observed.computed(around) if claim.role == "result" else []
            occurrences = computed if any(computed) else self._all(block)
            yield _document(comment, claim, "a tensor on the surrounding lines", occurrences, PROSE)

    def _operand(self, claim: CommentClaim, statements: Sequence[ast.stmt]) -> tuple[str, Occurrences] | None:
        """Return what was observed of one of a product's operands, in the first statement with a product."""
        if not claim.product:
            return None
        place = next(place for place, shape in enumerate(claim.product) if shape is claim.shapes[0])
        products = (self._observed.products(statement, place) for statement in statements)
        first = next(filter(any, products), None)
        return (f"operand {place + 1} of the product", first) if first is not None else None

    def _all(self, statements: Sequence[ast.stmt]) -> Occurrences:
        """Return everything that statements read, compute and bind, as options."""
        return combine([[] for _ in self._observed.calls], *map(self._observed.touched, statements))

    def _variable(self, comment: LocatedComment, name: str) -> Occurrences:
        if comment.where == "signature":
            return self._observed.argument(name)
        if comment.where != "above":
            return self._observed.variable(name, comment.line, comment.statement)
        following = comment.block[0] if comment.block else None
        occurrences = self._observed.variable(name, comment.line, following)
        if following is None or comment.before is None:
            return occurrences
        return combine(self._observed.variable(name, comment.line, None), occurrences)

    def _around(
        self, comment: LocatedComment, claim: CommentClaim
    ) -> Iterator[tuple[DocumentedShape | None, DocumentedShape]]:
        """Yield a comment on a line of its own: it may describe what the next line makes or takes, or the last line."""
        has_axes = (statement for statement in comment.block if _has_axes(self._observed.touched(statement)))
        following = next(has_axes, comment.statement)
        nearby = [statement for statement in (following, comment.before) if statement is not None]
        if not nearby:
            return
        made = self._observed.made(nearby[0])
        exact = None
        if any(made) and claim.strict:
            exact = _document(comment, claim, _what_is_made(nearby[0]), made, LOOSE)
        if comment.before is None or comment.statement is not None:
            yield exact, _document(comment, claim, "a tensor on the surrounding lines", self._all(nearby), PROSE)
        elif exact is not None:  # below its line, with a gap behind it
            yield exact, exact

    def above_in_one_style(self) -> Iterator[DocumentedShape]:
        """Yield the comments above statements, as describing what these make if the author always does so."""
        constraints = [exact.constraint for exact, _ in self._above if exact is not None]
        ranks = [
            all(len(constraint.shapes[0].axes) in map(len, options) for call in constraint.observed for options in call)
            for constraint in constraints
        ]
        of_results = len(ranks) >= _LEAST_STYLE and sum(ranks) >= 0.7 * len(ranks)
        for exact, loose in self._above:
            yield exact if of_results and exact is not None else loose


def _is_attribute(label: str) -> bool:
    """Return whether a label looks like neither a local variable nor a word: `self.mask`, `W_O`."""
    return "." in label or (len(label) > 1 and not label[1:].islower())


def _has_axes(occurrences: Occurrences) -> bool:
    """Return whether there is more than numbers and vectors."""
    return any(len(shape) > 1 for call in occurrences for options in call for shape in options)


def _document(
    comment: LocatedComment, claim: CommentClaim, subject: str, occurrences: Occurrences, weight: float
) -> DocumentedShape:
    return _documented((comment.line, comment.column), claim.shapes, subject, occurrences, weight)


def _documented(
    place: tuple[int, int], shapes: Sequence[ShapeText], subject: str, occurrences: Occurrences, weight: float = LOOSE
) -> DocumentedShape:
    text = " or ".join(shape.text for shape in shapes)
    return DocumentedShape(*place, text, subject, shapes[0].text, constrain(shapes, occurrences, weight))


def _what_is_made(statement: ast.stmt) -> str:
    match statement:
        case ast.Return():
            return "the returned value"
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return f"`{ast.unparse(target).strip('()')}`"
    return "the result of the line"


@dataclass(frozen=True)
class DocstringEntry:
    """A line of a docstring, and what it describes."""

    line: int
    text: str
    of: Literal["parameter", "argument", "result", "anything"]
    """`argument` is any of them; `anything` means that nothing says what it is, so only arrows count."""
    parameter: str | None = None
    item: int = 0
    """The docstring's item that it belongs to: shapes on several lines of one item are alternatives."""
    listed: bool = False
    """Whether it is an item of a list, or has a name of its own."""


_ARGUMENTS = re.compile(r"^\s*:?(?:args?|arguments?|params?|parameters?|keyword arguments)\b\s*:?\s*$", re.I)
_SHAPES = re.compile(r"^\s*shapes?\b\s*:?\s*$", re.I)
_RESULT = re.compile(
    r"^\s*(?:[-*]\s*)?"
    r"(?::(?:returns?|rtype)\b|(?i:returns?|outputs?|yields?|return value)\s*(?::|$)|(?:Returns?|Outputs?)\b)"
)
_ANY_INPUT = re.compile(r"^\s*(?:[-*]\s*)?inputs?\s*:", re.I)
_UNDERLINE = re.compile(r"^\s*[-=~]{3,}\s*$")
_HEADING = re.compile(r"^[^:]*:\s*$")
_BULLET = re.compile(r"^\s*[-*•]\s")
_ITEM = re.compile(r"^\s*(?:[-*•]\s+|[`*]*\w+[`*]*(?:\s*\(.*?\))?\s?:(?=\s|$))")


def docstring_entries(node: FunctionNode, owner: ast.ClassDef | None) -> Iterator[DocstringEntry]:
    """Yield the lines of a function's docstring, and of its class's docstring for `forward` and `__call__`."""
    yield from _entries(node, parameter_names(node))
    if owner is not None and node.name in ("forward", "__call__"):
        yield from (entry for entry in _entries(owner, parameter_names(node)) if entry.of != "anything")


def _entries(node: FunctionNode | ast.ClassDef, names: Sequence[str]) -> Iterator[DocstringEntry]:
    first, docstring = node.body[0], ast.get_docstring(node, clean=False)
    if docstring is None:
        return
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
    field, quoted = r"(?::param\s+(?:[\w.\[\], ]+\s+)?|:type\s+)?", "[`*'\"]*"
    subject = re.compile(
        rf"^\s*(?:[-*+•]\s*)?{field}{quoted}(?P<name>{known}){quoted}\s*(?:\(.*?\)\s*)?(?::|--?\s|—|=|is\b)"
    )
    lines = docstring.split("\n")
    section: Literal["arguments", "shapes", "result"] | None = None
    about: DocstringEntry | None = None
    heading: DocstringEntry | None = None
    indent, underlined, item = 0, False, 0
    for offset, text in enumerate(lines):
        # an escaped \n is a line of the text, but not of the file
        line = min(first.lineno + offset, first.end_lineno or first.lineno)
        width = len(text) - len(text.lstrip())
        heads = offset + 1 < len(lines) and _UNDERLINE.match(lines[offset + 1]) is not None
        named = subject.match(text)
        if not text.strip() or _UNDERLINE.match(text):
            continue
        if _RESULT.match(text):
            section, about, indent, underlined = "result", DocstringEntry(line, text, "result"), width, heads
            heading = about if _HEADING.match(text) else None
        elif _ARGUMENTS.match(text) or _SHAPES.match(text) or heads:
            section, about, underlined = ("shapes" if _SHAPES.match(text) else "arguments"), None, False
        elif named is not None and not (section == "result" and underlined):
            about, indent = DocstringEntry(line, text, "parameter", named["name"]), width
        elif _ANY_INPUT.match(text) or (section == "shapes" and _ITEM.match(text)):
            about, indent = DocstringEntry(line, text, "argument" if _ANY_INPUT.match(text) else "result"), width
        elif heading is not None and about is heading and _BULLET.match(text):
            pass  # bullets may be indented no further than the heading above them
        elif about is not None and offset > 0 and width <= indent and not (section == "result" and underlined):
            about = None
        listed = _ITEM.match(text) is not None and not _RESULT.match(text)
        item += about is None or about.line == line or (about.of == "result" and listed)
        of, name = (about.of, about.parameter) if about is not None else ("anything", None)
        yield DocstringEntry(line, text, of, name, item, listed)


def _from_docstring(
    lines: Sequence[DocstringEntry], observed: ObservedShapes, result: int | None
) -> Iterator[DocumentedShape]:
    """Yield what one item of a docstring documents; `result` is its place among several results."""
    entry = lines[0]
    if entry.of == "anything":
        for claim in parse_comment(entry.text):
            if claim.chained and claim.role == "result":
                yield _documented((entry.line, 0), claim.shapes, "the result", observed.result())
            elif claim.chained and claim.role == "operand":
                yield _documented((entry.line, 0), claim.shapes, "an argument", observed.arguments())
        return
    shapes = [(line.line, shape) for line in lines for shape in _shapes_in(line.text)]
    if entry.of == "argument":
        arguments = observed.arguments()
        yield from (_documented((line, 0), [shape], "an argument", arguments) for line, shape in shapes)
    elif shapes:
        occurrences, subject = observed.result(result), "the result"
        if entry.parameter is not None:
            occurrences, subject = observed.argument(entry.parameter), f"`{entry.parameter}`"
        yield _documented((shapes[0][0], 0), [shape for _, shape in shapes], subject, occurrences)


def _shapes_in(text: str) -> list[ShapeText]:
    """Return the shapes in a line of a docstring, with `\\text{num\\_heads}` as `num_heads`."""
    plain = re.sub(r"\\(?:text|mathrm|mathit|textit)\{([^{}]*)\}", r"\1", text)
    plain = plain.replace("\\_", "_").replace("\\times", "×").replace("\\cdot", "*")
    bracketed = [shape for shape in find_shapes(plain) if len(shape.axes) > 1 or shape.text.endswith(",)")]
    named = [shape for shape in bracketed if not all(axis.kind == "number" for axis in shape.axes)]
    return [*named, *find_bare_shapes(plain)]


def _from_annotations(node: FunctionNode, observed: ObservedShapes) -> Iterator[DocumentedShape]:
    for annotation in find_annotations(node):
        axes = _parse_dims(annotation.dims)
        if axes is None:
            continue
        statement = annotation.statement
        if annotation.parameter is not None:
            occurrences, subject = observed.argument(annotation.parameter), f"`{annotation.parameter}`"
        elif statement is not None:
            occurrences, subject = observed.made(statement), f"`{ast.unparse(statement.target)}`"
        else:
            occurrences, subject = observed.result(annotation.item), "the result"
        dims = annotation.dims
        constraint = constrain([ShapeText(axes, dims, 0, len(dims), bracketed=True)], occurrences)
        text = f'{annotation.kind}[…, "{dims}"]'
        yield DocumentedShape(annotation.line, annotation.column, text, subject, dims, constraint, annotation)


def _parse_dims(text: str) -> tuple[AxisToken, ...] | None:
    """Return the axes of a jaxtyping dims string, None if one of them can't be parsed."""
    axes = []
    for word in text.split():
        broadcast = "#" in word.rpartition("=")[2]
        plain = re.sub("[?#]", "", word.rpartition("=")[2])
        if plain.startswith("_") or not plain:
            axes.append(AxisToken(word, "any"))
            continue
        axis = AxisToken(plain, "name") if re.fullmatch(r"[^\W\d]\w*", plain) else parse_axis(plain)
        if axis is None:
            return None
        axes.append(replace(axis, broadcast=broadcast))
    return tuple(axes)
