"""`--style comment`: shapes such as `(B, H, Lq, Lk)` after assignments, parameters and return statements."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst

from attnshape.annotate.changes import AnnotateContext, AnnotatedKind, Annotations, Change, Place, functions_that_ran
from attnshape.annotate.exclusions import own_statements, unpacked_names, why_not_annotated
from attnshape.annotate.source import Edit
from attnshape.annotate.syntax import Definition, Tree, stored_name
from attnshape.annotate.types import UNKNOWN, axis_text
from attnshape.comments.grammar import parse_comment
from attnshape.comments.verify import format_tuple
from attnshape.observation.forms import ANY_NUMBER, Form, FunctionForms, ItemsForm, OtherForm, TensorForm, tensors_in

_WORD = r"(?:\.\.\.|[\w+\-*/ ()]+)"
_SHAPE = rf"(?:\(\s*(?:{_WORD}(?:\s*,\s*{_WORD})*\s*,?)?\s*\)|\[\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?\s*\])"
_NAMED = rf"(?:(?:[\w.]+\s*,\s*)*[\w.]+\s*:\s*)?{_SHAPE}(?:\s+or\s+None)?"
_SHAPES = re.compile(rf"#\s*{_NAMED}(?:\s*,\s*{_NAMED})*(?:\s+each)?\s*")
_PROSE = re.compile(r"(?!\b(?:x|to|is|now|each|both|all|shapes?|or|None)\b)\b\w+")
"""A word that says something besides the shapes in a comment."""


def annotate_with_comments(tree: Tree, forms: Sequence[FunctionForms], context: AnnotateContext) -> Annotations:
    """Return the comments in the functions that ran."""
    annotations = Annotations()
    for definition, known in functions_that_ran(tree, forms, context.untouched):
        if why_not_annotated(definition, tree) is None:
            _FunctionCommenter(tree, context, annotations, definition, known).annotate()
    return annotations


@dataclass(frozen=True)
class _Remark:
    """What a comment can say about one variable."""

    place: Place
    form: Form
    text: str


class _FunctionCommenter:
    def __init__(
        self, tree: Tree, context: AnnotateContext, into: Annotations, definition: Definition, known: FunctionForms
    ) -> None:
        self._tree, self._context, self._annotations = tree, context, into
        self._definition, self._known = definition, known
        self._symbols = {symbol for sizes in context.sizes for symbol in sizes}

    def annotate(self) -> None:
        """Comment on the arguments, and on each line that assigns or returns."""
        self._arguments()
        ends = [(self._tree.end(statement), statement) for statement in own_statements(self._definition.node)]
        for _, line in itertools.groupby(ends, key=lambda pair: self._tree.source.line(pair[0])):
            on_line = list(line)
            remarks = [remark for _, statement in on_line for remark in self._remarks(statement)]
            unnamed = len(on_line) == len(remarks) == 1 and remarks[0].place not in self._annotations.unpacked
            if remarks:
                self._write(on_line[-1][0], remarks, remarks[0].text if unnamed else _with_names(remarks))

    def _remark(self, kind: AnnotatedKind, name: str, offset: int, form: Form | None) -> list[_Remark]:
        text = format_shape(form, self._context.include_matched) if form is not None else None
        if form is None or text is None:
            return []
        return [_Remark(Place.within(self._definition, kind, name, offset), form, text)]

    def _arguments(self) -> None:
        parameters = {parameter.name.value: parameter for parameter in self._definition.parameters}
        remarks: list[_Remark] = []
        for name, parameter in parameters.items():
            form = self._known.arguments.get(name)
            remarks += self._remark("argument", name, self._tree.start(parameter.name), form)
        if self._has_a_line_for_each_parameter():
            for remark in remarks:
                self._write(self._behind(parameters[remark.place.name]), [remark], remark.text)
        elif remarks:
            self._write(self._tree.colon(self._definition.node) + 1, remarks, _with_names(remarks))

    def _has_a_line_for_each_parameter(self) -> bool:
        """Return whether every parameter has a line of its own, apart from that of the `def`."""
        source, parameters = self._tree.source, self._definition.parameters
        lines = {source.line(self._tree.start(node)) for node in (self._definition.node.name, *parameters)}
        ends = [source.end_of_line(self._behind(parameter)) for parameter in parameters]
        return len(lines) == len(parameters) + 1 and None not in ends

    def _behind(self, parameter: cst.Param) -> int:
        """Return the offset after a parameter, without the white space that follows the last one."""
        return self._tree.end(parameter.default or parameter.annotation or parameter.name)

    def _remarks(self, statement: cst.CSTNode) -> list[_Remark]:
        """Return what a comment can say about the variables that a statement binds, or about what it returns."""
        if isinstance(statement, cst.Return):
            start = self._tree.start(statement)
            return self._remark("result", "return", start, self._known.results.get(self._tree.source.line(start)))
        stored = stored_name(statement)
        remarks = []
        for name in [stored] if stored is not None else unpacked_names(statement):
            form = self._tree.form_of(self._known, name)
            remarks += self._remark("local", name.value, self._tree.start(name), form)
        if stored is None:
            self._annotations.unpacked += [remark.place for remark in remarks]
        return remarks

    def _write(self, behind: int, remarks: Sequence[_Remark], text: str) -> None:
        """Put a comment at the end of a line, or treat the one that is there as the options say."""
        place = remarks[0].place
        comment = self._tree.source.end_of_line(behind)
        if comment is None or place in self._context.without:
            return
        ranks = {len(tensor.axes) for remark in remarks for tensor in tensors_in(remark.form)}
        start = find_shapes_only(comment.text, self._symbols, ranks) if comment.text else None
        if start is not None:
            if self._context.existing != "replace" or comment.text[start:] == f"# {text}":
                return
            edit = Edit(comment.start + len(comment.text[:start].encode()), comment.at, f"# {text}")
        elif self._documents_shapes(comment.text):
            return
        else:
            edit = Edit(comment.at, comment.at, f"  # {text}")
        self._annotations.changes.append(Change(place, (edit,)))

    def _documents_shapes(self, comment: str) -> bool:
        """Return whether a comment documents a shape, among other things; `(q, k)` of two variables is none."""
        variables = {*self._known.arguments, *(name for _, _, name in self._known.bindings)}
        claims = [{name for shape in claim.shapes for name in shape.names} for claim in parse_comment(comment[1:])]
        return any(not names or not names <= variables for names in claims)


def format_shape(form: Form, include_matched: bool) -> str | None:
    """Return a shape as a comment says it, without the `#`; None if too little of it is known.

    >>> from attnshape.observation.forms import AxisForm
    >>> axes = (AxisForm("B", "verified"), AxisForm("H*Dk", "verified"), AxisForm(None))
    >>> format_shape(Form(TensorForm(frozenset(["float32"]), axes), optional=True), False)
    '(B, H*Dk, _) or None'
    """
    match form.of:
        case TensorForm(axes=axes):
            words = [axis_text(axis, include_matched) or UNKNOWN for axis in axes]
            if words and all(word in (UNKNOWN, ANY_NUMBER) for word in words):
                return None
            text = format_tuple(words)
        case ItemsForm(items=items) if items:
            parts = [format_shape(item, include_matched) for item in items]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            text = f"{known[0]} each" if len(set(known)) == 1 and len(known) > 1 else ", ".join(known)
        case OtherForm() | ItemsForm():
            return None
    return f"{text} or None" if form.optional else text


def _with_names(remarks: Sequence[_Remark]) -> str:
    """Return the shapes of several names in one comment: `q, k: (B, L), mask: (L, L)`."""
    groups = itertools.groupby(remarks, key=lambda remark: remark.text)
    return ", ".join(f"{', '.join(remark.place.name for remark in group)}: {text}" for text, group in groups)


def find_shapes_only(comment: str, symbols: Collection[str], ranks: Collection[int]) -> int | None:
    """Return where the part of a comment after its last `#` begins, None if that part isn't only shapes.

    What could be prose, such as `(q, k, v)`, counts only if a word in it is a size symbol, or it has as many words
    as one of the `ranks`.

    >>> find_shapes_only("# project  # (B, L, D)", {"B"}, ()), find_shapes_only("# (B, T) x (B, T, C)", {"B"}, ())
    (11, 0)
    >>> find_shapes_only("# (see Vaswani et al., 2017)", {"B"}, {4}), find_shapes_only("# (q, k)", {"B"}, {3})
    (None, None)
    """
    start = comment.rfind("#")
    text = comment[start:].rstrip()
    if _SHAPES.fullmatch(text):
        shapes = [_words(shape) for shape in re.findall(_SHAPE, text)]
    else:
        claimed = [shape for claim in parse_comment(text[1:]) for shape in claim.shapes]
        rest = text
        for shape in claimed:
            rest = rest.replace(shape.text, " ", 1)
        if not claimed or _PROSE.search(rest):
            return None
        shapes = [tuple(axis.text for axis in shape.axes) for shape in claimed]
    words = {name for shape in shapes for word in shape for name in re.findall(r"[^\W\d]\w*", word)}
    return start if words & set(symbols) or any(len(shape) in ranks for shape in shapes) else None


def _words(shape: str) -> tuple[str, ...]:
    inside = shape[1:-1].strip().removesuffix(",")
    return tuple("".join(word.split()) for word in inside.split(",")) if inside else ()
