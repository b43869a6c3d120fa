"""The shapes that a function's comments, docstring and annotations document, each with what was observed there."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnshape.comments.annotations import find_annotations
from attnshape.comments.functions import (
    CommentedSource,
    FunctionNode,
    LocatedComment,
    comments_in,
    parameter_names,
    targets_of,
)
from attnshape.comments.grammar import CommentClaim, means_the_input, means_the_line, parse_comment, parse_comment_lines
from attnshape.comments.notation import AxisToken, ShapeText, find_bare_shapes, find_shapes, parse_axis
from attnshape.comments.observed_shapes import ObservedShapes, Occurrences, combine
from attnshape.comments.unification import LOOSE, PROSE, DocumentedShape, ShapeConstraint, constrain

_LEAST_STYLE = 3
_SHORT = 5
"""Labels of up to this many characters more likely name another function's variable: `mask`, `value`."""


def documented_shapes(
    file: CommentedSource, node: FunctionNode, owner: ast.ClassDef | None, observed: ObservedShapes
) -> list[DocumentedShape]:
    """Return the shapes that a function documents, where anything was observed at their places."""
    documented = list(_from_annotations(node, observed))
    reader = _CommentReader(node, observed)
    for comments in _successive(comments_in(file, node)):
        for place, claim in parse_comment_lines([comment.text for comment in comments]):
            documented += reader.read(comments[place], claim)
    documented += reader.above_in_one_style()
    by_item = itertools.groupby(docstring_entries(node, owner), key=lambda line: (line.item, line.of, line.parameter))
    items = [list(lines) for _, lines in by_item]
    documented += _of_results([item for item in items if item[0].of == "result"], observed)
    documented += _from_arrows([item[0] for item in items if item[0].of == "anything"], observed)
    for item in items:
        documented += _from_docstring(item, observed) if item[0].of in ("parameter", "argument") else ()
    if _accepts_any_rank(node):
        documented = [_or_elsewhere(shape, *_with_more_axes(shape)) for shape in documented]
    ambiguous = _heads_and_heights(documented)
    documented = [_or_elsewhere(shape, *_with_any_size(shape, ambiguous)) for shape in documented]
    unreached = _unpacked_in_other_branches(node, observed)
    return [
        shape
        for shape in documented
        if any(shape.constraint.observed) and tuple(a.text for a in shape.constraint.shapes[0].axes) not in unreached
    ]


def _successive(comments: Iterable[LocatedComment]) -> Iterator[list[LocatedComment]]:
    """Yield the comments that stand on successive lines of their own together, and all others alone."""
    group: list[LocatedComment] = []
    for comment in comments:
        if group and not (comment.where == group[-1].where == "above" and comment.line == group[-1].line + 1):
            yield group
            group = []
        group.append(comment)
    if group:
        yield group


def _accepts_any_rank(node: FunctionNode) -> bool:
    """Return whether a function reads how many axes a tensor has, other than to assert it."""
    asserted = {
        inner for statement in ast.walk(node) if isinstance(statement, ast.Assert) for inner in ast.walk(statement)
    }
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(attr="ndim") | ast.Call(func=ast.Attribute(attr="dim" | "ndimension"), args=[]):
                if inner not in asserted:
                    return True
    return False


def _with_more_axes(shape: DocumentedShape) -> Iterator[ShapeConstraint]:
    """Yield a documented shape as the first axes, and as the last axes, of what was observed."""
    constraint, more = shape.constraint, AxisToken("...", "variadic")
    if shape.annotation is None and not any(a.kind == "variadic" for text in constraint.shapes for a in text.axes):
        yield replace(constraint, shapes=tuple(replace(text, axes=(*text.axes, more)) for text in constraint.shapes))
        yield replace(constraint, shapes=tuple(replace(text, axes=(more, *text.axes)) for text in constraint.shapes))


def _heads_and_heights(documented: Iterable[DocumentedShape]) -> set[str]:
    """Return the names that stand for a height in `(b, c, h, w)`, and for something else in `(b, h, n, d)`."""
    heights, others = set[str](), set[str]()
    for shape in documented:
        for text in shape.constraint.shapes:
            names = [axis.text for axis in text.axes]
            beside_width = {
                name
                for pair in itertools.pairwise(names)
                for name, other in (pair, pair[::-1])
                if (name, other) in (("h", "w"), ("H", "W"))
            }
            heights |= beside_width
            others |= {*names} - beside_width
    return heights & others


def _with_any_size(shape: DocumentedShape, names: set[str]) -> Iterator[ShapeConstraint]:
    """Yield a documented shape that has any size where it has one of these names."""
    constraint = shape.constraint
    if any(axis.text in names for text in constraint.shapes for axis in text.axes):
        opened = [
            tuple(AxisToken(axis.text, "any") if axis.text in names else axis for axis in text.axes)
            for text in constraint.shapes
        ]
        shapes = tuple(replace(text, axes=axes) for text, axes in zip(constraint.shapes, opened, strict=True))
        yield replace(constraint, shapes=shapes)


def _unpacked_in_other_branches(node: FunctionNode, observed: ObservedShapes) -> set[tuple[str, ...]]:
    """Return the names to which shapes are unpacked, `B, C, H, W = x.shape`, in code that no call reached."""
    return {
        tuple(name.id for name in targets_of(statement))
        for statement in ast.walk(node)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
        if not any(call.reached(statement) for call in observed.calls)
    }


class _CommentReader:
    def __init__(self, node: FunctionNode, observed: ObservedShapes) -> None:
        self._observed, self._first_line = observed, node.lineno
        stores = {store.name for call in observed.calls for store in call.invocation.bindings}
        self._parameters = parameter_names(node)
        self._variables = {*self._parameters, *stores}
        self._above: list[tuple[DocumentedShape | None, DocumentedShape]] = []
        """Comments above statements: as describing what the statement makes, and as describing anything nearby."""

    def read(self, comment: LocatedComment, claim: CommentClaim) -> Iterator[DocumentedShape]:
        """Yield the shapes that a comment documents; those above statements wait for `above_in_one_style`."""
        observed = self._observed
        names = [name for name in claim.label.names if name in self._variables]
        unknown = [name for name in claim.label.names if not means_the_line(name)]
        above = comment.where == "above"
        if claim.about and not any(name in self._variables or self._stands_for_line(name) for name in claim.about):
            return  # a chain of something that isn't a variable here: `# frames: (B, C, T) -> (B, T, C)`
        if above and not claim.chained and not names and not unknown and claim.of == 1:
            self._above += self._around(comment, claim) if claim.strict else ()
        elif names:
            for name in names:
                shape = _document(comment, claim, f"`{name}`", self._variable(comment, name), 1.0)
                yield _or_elsewhere(shape, *self._of_variable(comment, claim, name))
        elif above and unknown and all(map(means_the_input, unknown)):
            nearby = [statement for statement in (comment.before, comment.statement) if statement is not None]
            inputs = combine(self._all(nearby), observed.arguments())
            yield _document(comment, claim, "the input", inputs, PROSE)
        elif above and unknown and all(map(self._is_word, unknown)):
            yield from (
                (loose for _, loose in self._around(comment, claim)) if claim.label.firm and not claim.among else ()
            )
        elif any(map(_is_attribute, unknown)) or (unknown and (above or not claim.strict)):
            return  # something that isn't a variable here: `self.W_O: (H, Dk, D)`, `mask: (B, 1, L, L) broadcasts`
        elif comment.where == "signature":
            yield from self._signature(comment, claim)
        elif above:
            yield from self._chain(comment, claim)
        elif comment.statement is not None:
            yield from self._line(comment, replace(claim, strict=claim.strict and not unknown), comment.statement)

    def _signature(self, comment: LocatedComment, claim: CommentClaim) -> Iterator[DocumentedShape]:
        """Yield what a comment beside a parameter documents: an arrow on the line of `def` leads to the result."""
        parameter = comment.parameter
        if parameter is not None and (not claim.chained or claim.role == "operand"):
            yield _document(comment, claim, f"`{parameter}`", self._observed.argument(parameter), 1.0)
        elif claim.chained and claim.role == "result" and comment.line == self._first_line:
            yield _document(comment, claim, "the result", self._observed.result(), 1.0)

    def _stands_for_line(self, label: str) -> bool:
        return means_the_line(label) or means_the_input(label) or self._is_word(label)

    def _is_word(self, label: str) -> bool:
        """Return whether a label is a word for what stands there, `normalizer:`, and not part of a variable's name."""
        word = len(label) > _SHORT and label.isalpha() and label.islower()
        return word and not any(label in name.lower() for name in self._variables)

    def _line(self, comment: LocatedComment, claim: CommentClaim, statement: ast.stmt) -> Iterator[DocumentedShape]:
        """Yield what a comment on a statement's own lines documents."""
        observed = self._observed
        if not self._can_compare(claim, [statement]):
            return
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
        if not block or not self._can_compare(claim, block):
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

    def _can_compare(self, claim: CommentClaim, statements: Sequence[ast.stmt]) -> bool:
        """Return whether a product's operand, or what is between operands and result, is among the steps at all."""
        if claim.product:
            return self._operand(claim, statements) is not None or self._observed.steps_shown(statements) > 0
        return claim.role != "state" or not claim.chained or self._observed.steps_shown(statements) > 1

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

    def _of_variable(self, comment: LocatedComment, claim: CommentClaim, name: str) -> Iterator[ShapeConstraint]:
        """Yield what else a shape with a variable's name may describe: what the code below binds to it, an argument."""
        if comment.where == "above":
            later = self._observed.bound(range(comment.line, comment.until), name)
            yield constrain(claim.shapes, later)
        yield constrain(_broadcast(claim.shapes), self._observed.argument(name))

    def _of_block(self, comment: LocatedComment, claim: CommentClaim) -> Iterator[ShapeConstraint]:
        """Yield what else a shape above several statements may describe: what one of them makes, or an argument.

        A shape that is said to be the result's may be that of any variable up to the next comment.
        """
        if len(comment.block) > 1:
            made = [self._observed.made(statement) for statement in comment.block[1:]]
            yield constrain(claim.shapes, combine(*made))
        if claim.label.firm:
            yield constrain(claim.shapes, self._observed.bound(range(comment.line, comment.until)))
        read = {node.id for statement in comment.block for node in ast.walk(statement) if isinstance(node, ast.Name)}
        arguments = [self._observed.argument(name) for name in self._parameters if name in read]
        if arguments:
            yield constrain(_broadcast(claim.shapes), combine(*arguments))

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
            exact = _or_elsewhere(exact, *self._of_block(comment, claim))
        if comment.before is None or comment.statement is not None:
            loose = _document(comment, claim, "a tensor on the surrounding lines", self._all(nearby), PROSE)
            yield exact, _or_elsewhere(loose, *self._of_block(comment, claim))
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
    shape = _documented((comment.line, comment.column), claim.shapes, subject, occurrences, weight)
    nearby = comment.block or ((comment.statement,) if comment.statement is not None else ())
    if claim.chained and _repeats_equation(claim, nearby):
        any_shape = replace(claim.shapes[0], axes=(AxisToken("...", "variadic"),))
        return _or_elsewhere(shape, replace(shape.constraint, shapes=(any_shape,)))
    return shape


def _documented(
    place: tuple[int, int], shapes: Sequence[ShapeText], subject: str, occurrences: Occurrences, weight: float = LOOSE
) -> DocumentedShape:
    text = " or ".join(shape.text for shape in shapes)
    return DocumentedShape(*place, text, subject, shapes[0].text, constrain(shapes, occurrences, weight))


def _repeats_equation(claim: CommentClaim, statements: Sequence[ast.stmt]) -> bool:
    """Return whether a shape only repeats letters of the statement's own einsum equation, local to it."""
    letters = "".join(axis.text for axis in claim.shapes[0].axes)
    strings = (node.value for one in statements for node in ast.walk(one) if isinstance(node, ast.Constant))
    equations = (text for text in strings if isinstance(text, str) and "->" in text)
    return any(letters in re.split(r",|->", equation.replace(" ", "")) for equation in equations)


def _or_elsewhere(shape: DocumentedShape, *elsewhere: ShapeConstraint) -> DocumentedShape:
    """Add what a shape may describe instead, where anything was observed."""
    observed = tuple(constraint for constraint in elsewhere if any(constraint.observed))
    return replace(shape, elsewhere=(*shape.elsewhere, *observed))


def _broadcast(shapes: Sequence[ShapeText]) -> list[ShapeText]:
    """Return the shapes of which a caller may pass any that broadcasts to them, or to which they broadcast."""
    return [
        replace(
            shape,
            axes=tuple(AxisToken("1", "any") if a.text == "1" else replace(a, broadcast=True) for a in shape.axes),
        )
        for shape in shapes
    ]


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


def _from_arrows(entries: Iterable[DocstringEntry], observed: ObservedShapes) -> Iterator[DocumentedShape]:
    """Yield what the arrows in a docstring document: `(B, T, C) -> (B, C)`.

    Several lines with arrows are steps from the arguments to the result, and only their two ends are either.
    """
    parsed = ((entry.line, parse_comment(_without_example(entry.text))) for entry in entries)
    steps = [(line, chained) for line, claims in parsed if (chained := [claim for claim in claims if claim.chained])]
    for place, (line, claims) in enumerate(steps):
        for claim in claims:
            if claim.role == "operand" and place == 0:
                yield _documented((line, 0), claim.shapes, "an argument", observed.arguments())
            elif claim.role == "result" and place == len(steps) - 1:
                yield _documented((line, 0), claim.shapes, "the result", observed.result())


def _from_docstring(lines: Sequence[DocstringEntry], observed: ObservedShapes) -> Iterator[DocumentedShape]:
    """Yield what one item of a docstring documents of an argument."""
    entry = lines[0]
    shapes = _lines_of_shapes(lines)
    alternatives = [shapes] if entry.parameter is not None and shapes else [[shape] for shape in shapes]
    subject = f"`{entry.parameter}`" if entry.parameter is not None else "an argument"
    arguments = observed.argument(entry.parameter) if entry.parameter is not None else observed.arguments()
    for several in alternatives:
        texts = [text for _, text in several]
        documented = _documented((several[0][0], 0), texts, subject, arguments)
        yield _or_elsewhere(documented, constrain(_of_any_length(_broadcast(texts)), arguments))


_OWN_LENGTH = re.compile(
    r"(?:seq|sequence|seq_?len|len_?seq|(?:seq|sequence)_length|len|length|num_tokens|dim|hidden_dim)", re.I
)
"""Names that stand for each argument's own length or width, as `seq_len` does for queries and for keys."""


def _of_any_length(shapes: Sequence[ShapeText]) -> list[ShapeText]:
    def opened(axis: AxisToken) -> AxisToken:
        return replace(axis, kind="any") if _OWN_LENGTH.fullmatch(axis.text) else axis

    return [replace(shape, axes=tuple(map(opened, shape.axes))) for shape in shapes]


_OPTIONAL = re.compile(r"\b(?:optional(?:ly)?|if|when|unless|only|None)\b", re.I)
_REDUCED_IF = re.compile(
    r"\b(?:averaged?|mean|summ?ed|sum|pooled|squeezed|concatenated|flattened|stacked)\b[^.;]*\b(?:if|when|unless)\b",
    re.I,
)
"""Words by which a result has another shape in some calls: `(B, H, L, L), averaged over the heads if …`."""


def _of_results(items: Sequence[Sequence[DocstringEntry]], observed: ObservedShapes) -> Iterator[DocumentedShape]:
    """Yield what the items of a docstring document of the result, each of its place in the returned tuple.

    Where the numbers differ, an item may not be returned in these calls; then one of the others must hold.
    """
    items = [item for item in items if not _REDUCED_IF.search(" ".join(line.text for line in item))]
    listed = [item for item in items if item[0].listed]
    if len(listed) == observed.returned:
        places: dict[int, int | None] = {id(item): place for place, item in enumerate(listed)}
        returned = items
    else:
        places = {}
        absent = {id(item) for item in listed[observed.returned or 1 :]}
        returned = [item for item in items if id(item) not in absent]
        returned = [item for item in returned if not any(_OPTIONAL.search(line.text) for line in item)]
    shapes = [(item, several) for item in returned if (several := _lines_of_shapes(item))]
    for item, several in shapes:
        occurrences = observed.result(places.get(id(item)))
        documented = _documented((several[0][0], 0), [text for _, text in several], "the result", occurrences)
        others = [text for other, texts in shapes if other is not item for _, text in texts]
        instead = [constrain(others, observed.result())] if others and not places else []
        yield _or_elsewhere(documented, *instead)


def _lines_of_shapes(lines: Sequence[DocstringEntry]) -> list[tuple[int, ShapeText]]:
    return [(line.line, shape) for line in lines for shape in _shapes_in(line.text)]


_ALTERNATIVE = re.compile(r"([)\]]),?\s+or\s+$")
_EXAMPLE = re.compile(r"\b(?:for (?:instance|example)\b|i\.\s?e\.|e\.\s?g\.)", re.I)
"""What follows is about an input of the author's choice: `for instance, for an input (B, C), …`, `e.g. (B, C) -> …`."""


def _without_example(text: str) -> str:
    return _EXAMPLE.split(text, maxsplit=1)[0]


def _shapes_in(text: str) -> list[ShapeText]:
    """Return the shapes in a line of a docstring, with `\\text{num\\_heads}` as `num_heads`, `L_{q}` as `L_q`."""
    plain = re.sub(r"\\(?:text|mathrm|mathit|textit)\{([^{}]*)\}", r"\1", _without_example(text))
    plain = re.sub(r"_\{(\w+)\}", r"_\1", plain.replace("\\_", "_"))
    plain = plain.replace("\\times", "×").replace("\\cdot", "*")
    bracketed = [shape for shape in find_shapes(plain) if len(shape.axes) > 1 or shape.text.endswith(",)")]
    named = [shape for shape in bracketed if not all(axis.kind == "number" for axis in shape.axes)]
    shapes = [*named, *find_bare_shapes(plain)]
    ends = {shape.end for shape in shapes}
    # what stands before the "or" in `r(D N) or (B N L)` may be a shape too
    unread = any(
        (before := _ALTERNATIVE.search(plain, 0, shape.start)) and before.end(1) not in ends for shape in shapes
    )
    return [] if unread else shapes


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
