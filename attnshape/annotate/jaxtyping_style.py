"""`--style jaxtyping`: annotations of arguments, results and local variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from attnshape.annotate.changes import Change, Made, Place, Wanted, matching, place_in
from attnshape.annotate.existing import Written, filled, surely_bound, written
from attnshape.annotate.functions import annotated, not_its_own, unfit, unpacked_names
from attnshape.annotate.names import Names
from attnshape.annotate.source import Edit
from attnshape.annotate.tree import Block, Definition, Tree, blocks, stored_name
from attnshape.annotate.types import Spelling, Typed, typed
from attnshape.variables.forms import Form, FunctionForms


def annotate(tree: Tree, names: Names, spelling: Spelling, forms: Sequence[FunctionForms], wanted: Wanted) -> Made:
    """Return the annotations of the functions that ran."""
    made = Made()
    for definition, known in matching(tree, forms, wanted):
        if unfit(definition, names) is None:
            _Annotator(tree, names, spelling, wanted, made, definition, known).annotate()
    return made


class _Annotator:
    """Annotates one function."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        spelling: Spelling,
        wanted: Wanted,
        made: Made,
        definition: Definition,
        known: FunctionForms,
    ) -> None:
        self._tree, self._names, self._spelling, self._wanted = tree, names, spelling, wanted
        self._made, self._definition, self._known = made, definition, known
        self._has_shapes = False
        self._not_its_own = not_its_own(definition.node)
        self._own_types = {
            name
            for name, given in annotated(definition.node).items()
            if any(written(one, names).sort == "other" for one in given)
        }

    def annotate(self) -> None:
        """Annotate the arguments, the result and the local variables."""
        bound: set[str] = set()
        for parameter in self._definition.parameters:
            bound |= self._argument(parameter, bound)
        self._result(bound)
        if self._definition.name in self._wanted.unchecked:
            bound = set()
        self._block(self._definition.node.body.body, bound)
        if self._has_shapes:
            self._made.functions.append(self._definition)

    def _argument(self, parameter: cst.Param, bound: set[str]) -> frozenset[str]:
        """Return the symbols that are sure to be bound behind it."""
        name = parameter.name.value
        place = place_in(self._definition, "argument", name, self._tree.start(parameter.name))
        form = self._known.arguments.get(name)
        none = isinstance(parameter.default, cst.Name) and parameter.default.value == "None"
        if form is not None and none:
            form = replace(form, optional=True)
        if parameter.annotation is not None:
            return self._over(parameter.annotation.annotation, form, place, bound)
        made = typed(form, self._spelling, bound, self._wanted.matched) if form is not None else None
        if made is None:
            return frozenset()
        return self._change(place, self._insertions(parameter, made), made)

    def _insertions(self, parameter: cst.Param, made: Typed) -> list[Edit]:
        """Return a new annotation of a parameter, with spaces around the sign before its default."""
        behind = self._tree.end(parameter.name)
        edits = [Edit(behind, behind, f": {made.text}")]
        if isinstance(parameter.equal, cst.AssignEqual) and parameter.default is not None:
            default = self._tree.start(parameter.default)
            if parameter.equal.whitespace_before.empty:
                edits[0] = Edit(behind, behind, f": {made.text} ")
            if parameter.equal.whitespace_after.empty:
                edits.append(Edit(default, default, " "))
        return edits

    def _result(self, bound: set[str]) -> None:
        function = self._definition.node
        place = place_in(self._definition, "result", "", self._tree.start(function.name))
        form = self._known.result
        if function.returns is not None:
            self._over(function.returns.annotation, form, place, bound)
            return
        made = typed(form, self._spelling, bound, self._wanted.matched) if form is not None else None
        if made is not None:
            at = self._tree.behind_parameters(function)
            self._change(place, [Edit(at, at, f" -> {made.text}")], made)

    def _block(self, block: Block, bound: set[str]) -> None:
        """Annotate the variables of a block, at whose start some symbols are bound; what it binds is added to them."""
        for statement in block:
            if isinstance(statement, cst.SimpleStatementLine):
                self._block(statement.body, bound)
            elif isinstance(statement, cst.BaseSmallStatement):
                bound |= self._local(statement, bound)
            else:
                for inner in blocks(statement):  # which may be passed over, or left by an exception
                    self._block(inner, set(bound))

    def _local(self, statement: cst.CSTNode, bound: set[str]) -> frozenset[str]:
        for name in unpacked_names(statement):
            form = self._tree.held(self._known, name)
            if (
                form is not None
                and name.value != "_"
                and typed(form, self._spelling, bound, self._wanted.matched) is not None
            ):
                self._made.unpacked.append(place_in(self._definition, "local", name.value, self._tree.start(name)))
        name_node = stored_name(statement)
        if name_node is None or name_node.value in self._not_its_own or name_node.value in self._own_types:
            return frozenset()
        form = self._tree.held(self._known, name_node)
        place = place_in(self._definition, "local", name_node.value, self._tree.start(name_node))
        if isinstance(statement, cst.AnnAssign):
            return self._over(statement.annotation.annotation, form, place, bound)
        made = typed(form, self._spelling, bound, self._wanted.matched) if form is not None else None
        if made is None:
            return frozenset()
        behind = self._tree.end(name_node)
        return self._change(place, [Edit(behind, behind, f": {made.text}")], made)

    def _over(self, node: cst.BaseExpression, form: Form | None, place: Place, bound: set[str]) -> frozenset[str]:
        """Treat an annotation that is there; return the symbols that are sure to be bound behind it."""
        given = written(node, self._names)
        if given.sort == "other":
            return frozenset()
        if given.sort == "plain":
            made = (
                filled(given, form, self._names, self._spelling, bound, self._wanted.matched)
                if form is not None
                else None
            )
            if made is None:
                return frozenset()
            return self._change(place, [self._over_with(node, made)], made)
        self._has_shapes = True
        return self._signature(node, given, form, place, bound)

    def _signature(
        self, node: cst.BaseExpression, given: Written, form: Form | None, place: Place, bound: set[str]
    ) -> frozenset[str]:
        before = surely_bound(given, self._names)
        made = typed(form, self._spelling, bound, self._wanted.matched) if form is not None else None
        if form is None or made is None or self._wanted.existing != "replace":
            return before
        if made.text == self._tree.code(node):
            return before
        return self._change(place, [self._over_with(node, made)], made)

    def _over_with(self, node: cst.BaseExpression, made: Typed) -> Edit:
        return Edit(self._tree.start(node), self._tree.end(node), made.text)

    def _change(self, place: Place, edits: Sequence[Edit], made: Typed) -> frozenset[str]:
        if place in self._wanted.without:
            return frozenset()
        self._has_shapes = True
        self._made.changes.append(Change(place, tuple(edits), made.kinds))
        return made.binds
