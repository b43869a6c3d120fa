"""`--style comment`: shapes behind assignments, parameters and return statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from attnshape.annotate.changes import Change, Made, Place, Wanted, matching, place_in
from attnshape.annotate.functions import statements, unfit, unpacked_names
from attnshape.annotate.names import Names
from attnshape.annotate.shapes import joined, shape_text, shapes_alone, tensors_in
from attnshape.annotate.source import Edit
from attnshape.annotate.tree import Definition, Tree, stored_name
from attnshape.variables.forms import Form, FunctionForms
from attnshape.written.comments import claims


@dataclass(frozen=True)
class _Said:
    """What may be said of one variable."""

    place: Place
    form: Form
    text: str


def annotate(tree: Tree, names: Names, forms: Sequence[FunctionForms], wanted: Wanted) -> Made:
    """Return the comments in the functions that ran."""
    made = Made()
    for definition, known in matching(tree, forms, wanted):
        if unfit(definition, names) is None:
            _Commenter(tree, wanted, made, definition, known).annotate()
    return made


class _Commenter:
    """Comments on one function."""

    def __init__(self, tree: Tree, wanted: Wanted, made: Made, definition: Definition, known: FunctionForms) -> None:
        self._tree, self._wanted, self._made = tree, wanted, made
        self._definition, self._known = definition, known
        self._symbols = {letter for sizes in wanted.sizes for letter in sizes}

    def annotate(self) -> None:
        """Comment on the arguments, and on each line that assigns or returns."""
        self._arguments()
        by_line: dict[int, list[_Said]] = {}
        alone: dict[int, bool] = {}
        ends: dict[int, int] = {}
        for statement in statements(self._definition.node):
            end = self._tree.end(statement)
            line = self._tree.source.line(end)
            said = self._said_of(statement)
            alone[line] = (
                line not in by_line and (stored_name(statement) or isinstance(statement, cst.Return)) is not None
            )
            by_line.setdefault(line, []).extend(said)
            ends[line] = end
        for line, saids in by_line.items():
            if saids and self._tree.source.end_of_line(ends[line]) is not None:
                single = alone[line] and len(saids) == 1 and not self._is_unpacked(saids[0])
                self._write(ends[line], saids, saids[0].text if single else joined([(_name(s), s.text) for s in saids]))

    def _is_unpacked(self, said: _Said) -> bool:
        return said.place in self._made.unpacked

    def _arguments(self) -> None:
        saids = []
        for parameter in self._definition.parameters:
            form = self._known.arguments.get(parameter.name.value)
            text = shape_text(form, self._wanted.matched) if form is not None else None
            if form is not None and text is not None:
                offset = self._tree.start(parameter.name)
                place = place_in(self._definition, "argument", parameter.name.value, offset)
                saids.append((parameter, _Said(place, form, text)))
        if self._each_on_its_line():
            for parameter, said in saids:
                self._write(self._behind(parameter), [said], said.text)
        elif saids:
            colon = self._tree.colon(self._definition.node)
            self._write(colon + 1, [said for _, said in saids], joined([(_name(s), s.text) for _, s in saids]))

    def _each_on_its_line(self) -> bool:
        """Say whether every parameter has a line of its own, apart from that of the `def`."""
        source, function = self._tree.source, self._definition.node
        lines = [source.line(self._tree.start(one)) for one in self._definition.parameters]
        first = source.line(self._tree.start(function.name))
        ends = [source.end_of_line(self._behind(one)) for one in self._definition.parameters]
        return len({first, *lines}) == len(lines) + 1 and all(one is not None for one in ends)

    def _behind(self, parameter: cst.Param) -> int:
        """Return the offset behind a parameter, without the white space that follows the last one."""
        return self._tree.end(parameter.default or parameter.annotation or parameter.name)

    def _said_of(self, statement: cst.CSTNode) -> list[_Said]:
        """Return what may be said of a statement: of what it binds, or returns."""
        if isinstance(statement, cst.Return):
            form = self._known.results.get(self._tree.source.line(self._tree.start(statement)))
            text = shape_text(form, self._wanted.matched) if form is not None else None
            if form is None or text is None:
                return []
            return [_Said(place_in(self._definition, "result", "return", self._tree.start(statement)), form, text)]
        name = stored_name(statement)
        found = []
        for one in [name] if name is not None else unpacked_names(statement):
            form = self._tree.held(self._known, one)
            text = shape_text(form, self._wanted.matched) if form is not None else None
            if form is not None and text is not None:
                said = _Said(place_in(self._definition, "local", one.value, self._tree.start(one)), form, text)
                found.append(said)
                if name is None:
                    self._made.unpacked.append(said.place)
        return found

    def _write(self, behind: int, saids: Sequence[_Said], text: str) -> None:
        """Put a comment at the end of a line, or do with the one that is there what is wanted."""
        place = saids[0].place
        comment = self._tree.source.end_of_line(behind)
        if comment is None or place in self._wanted.without:
            return
        edit = Edit(comment.at, comment.at, f"  # {text}")
        start = self._shapes_in(comment.text, saids)
        if start is not None:
            edit = Edit(comment.start + len(comment.text[:start].encode()), comment.at, f"# {text}")
        if (start is not None or self._claims(comment.text)) and (
            self._wanted.existing != "replace" or start is None or comment.text[start:] == f"# {text}"
        ):
            return
        self._made.changes.append(Change(place, (edit,)))

    def _shapes_in(self, comment: str, saids: Sequence[_Said]) -> int | None:
        """Return where the part of a comment begins that is nothing but shapes, None where there is none."""
        ranks = {len(tensor.axes) for said in saids for tensor in tensors_in(said.form)}
        return shapes_alone(comment, self._symbols, ranks) if comment else None

    def _claims(self, comment: str) -> bool:
        """Say whether a comment says a shape, among other things; `(q, k)` of variables of these names is none."""
        variables = {*self._known.arguments, *(name for _, _, name in self._known.bindings)}
        letters = [[letter for group in one.groups for letter in group.letters] for one in claims(comment[1:])]
        return any(not one or not variables.issuperset(one) for one in letters)


def _name(said: _Said) -> str:
    return said.place.name
