"""`--style jaxtyping`: annotations of arguments, results and local variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from attnshape.annotate.changes import AnnotateContext, Annotations, Change, Place, functions_that_ran
from attnshape.annotate.exclusions import local_annotations, names_of_outer_scopes, unpacked_names, why_not_annotated
from attnshape.annotate.source import Edit
from attnshape.annotate.syntax import Block, Definition, Tree, inner_blocks, stored_name
from attnshape.annotate.types import TypeText, fill_in, format_type, read_annotation, symbols_bound_by
from attnshape.observation.forms import Form, FunctionForms


def annotate_types(tree: Tree, forms: Sequence[FunctionForms], context: AnnotateContext) -> Annotations:
    """Return the annotations of the functions that ran."""
    annotations = Annotations()
    for definition, known in functions_that_ran(tree, forms, context.untouched):
        if why_not_annotated(definition, tree) is None:
            _FunctionAnnotator(tree, context, annotations, definition, known).annotate()
    return annotations


class _FunctionAnnotator:
    """Annotates one function.

    The sets called `bound` hold the size symbols that are certain to have values where an annotation is checked.
    """

    def __init__(
        self, tree: Tree, context: AnnotateContext, into: Annotations, definition: Definition, known: FunctionForms
    ) -> None:
        self._tree, self._context, self._annotations = tree, context, into
        self._definition, self._known = definition, known
        self._has_shapes = False
        self._left_alone = names_of_outer_scopes(definition.node) | {
            name.value
            for name, annotation in local_annotations(definition.node)
            if read_annotation(annotation, tree).content == "other"
        }

    def annotate(self) -> None:
        """Annotate the arguments, the result and the local variables."""
        bound: set[str] = set()
        for parameter in self._definition.parameters:
            bound |= self._argument(parameter, bound)
        self._result(bound)
        if self._definition.name in self._context.unchecked:
            bound = set()
        self._block(self._definition.node.body.body, bound)
        if self._has_shapes:
            self._annotations.functions.append(self._definition)

    def _argument(self, parameter: cst.Param, bound: set[str]) -> frozenset[str]:
        """Return the size symbols that the parameter's annotation binds."""
        name, behind = parameter.name.value, self._tree.end(parameter.name)
        place = Place.within(self._definition, "argument", name, self._tree.start(parameter.name))
        form = self._known.arguments.get(name)
        if form is not None and isinstance(parameter.default, cst.Name) and parameter.default.value == "None":
            form = replace(form, optional=True)
        if parameter.annotation is not None:
            return self._existing(parameter.annotation.annotation, form, place, bound)
        type_ = self._type(form, bound)
        if type_ is None:
            return frozenset()
        edits = [Edit(behind, behind, f": {type_.text}")]
        # with spaces around the equals sign before its default
        if isinstance(parameter.equal, cst.AssignEqual) and parameter.default is not None:
            default = self._tree.start(parameter.default)
            if parameter.equal.whitespace_before.empty:
                edits = [Edit(behind, behind, f": {type_.text} ")]
            if parameter.equal.whitespace_after.empty:
                edits.append(Edit(default, default, " "))
        return self._change(place, edits, type_)

    def _result(self, bound: set[str]) -> None:
        function = self._definition.node
        place = Place.within(self._definition, "result", "", self._tree.start(function.name))
        if function.returns is not None:
            self._existing(function.returns.annotation, self._known.result, place, bound)
        elif (type_ := self._type(self._known.result, bound)) is not None:
            at = self._tree.behind_parameters(function)
            self._change(place, [Edit(at, at, f" -> {type_.text}")], type_)

    def _block(self, block: Block, bound: set[str]) -> None:
        """Annotate the variables of a block, and add the symbols that it binds to `bound`."""
        for statement in block:
            if isinstance(statement, cst.SimpleStatementLine):
                self._block(statement.body, bound)
            elif isinstance(statement, cst.BaseSmallStatement):
                bound |= self._local(statement, bound)
            else:
                for inner in inner_blocks(statement):  # which may be skipped, or left by an exception
                    self._block(inner, set(bound))

    def _local(self, statement: cst.CSTNode, bound: set[str]) -> frozenset[str]:
        for name in unpacked_names(statement):
            if name.value != "_" and self._type(self._tree.form_of(self._known, name), bound) is not None:
                place = Place.within(self._definition, "local", name.value, self._tree.start(name))
                self._annotations.unpacked.append(place)
        stored = stored_name(statement)
        if stored is None or stored.value in self._left_alone:
            return frozenset()
        form = self._tree.form_of(self._known, stored)
        place = Place.within(self._definition, "local", stored.value, self._tree.start(stored))
        if isinstance(statement, cst.AnnAssign):
            return self._existing(statement.annotation.annotation, form, place, bound)
        type_, behind = self._type(form, bound), self._tree.end(stored)
        return self._change(place, [Edit(behind, behind, f": {type_.text}")], type_) if type_ else frozenset()

    def _existing(self, node: cst.BaseExpression, form: Form | None, place: Place, bound: set[str]) -> frozenset[str]:
        """Fill in or replace an existing annotation, and return the size symbols that it binds."""
        existing = read_annotation(node, self._tree)
        type_: TypeText | None = None
        if existing.content == "signature":
            self._has_shapes = True
            if self._context.existing == "replace":
                type_ = self._type(form, bound)
            if type_ is None or type_.text == self._tree.code(node):
                return symbols_bound_by(existing, self._tree)
        elif existing.content == "plain" and form is not None:
            type_ = fill_in(existing, form, self._tree, bound, self._context.include_matched)
        if type_ is None:
            return frozenset()
        return self._change(place, [Edit(self._tree.start(node), self._tree.end(node), type_.text)], type_)

    def _type(self, form: Form | None, bound: set[str]) -> TypeText | None:
        return format_type(form, self._tree, bound, self._context.include_matched)

    def _change(self, place: Place, edits: Sequence[Edit], type_: TypeText) -> frozenset[str]:
        if place in self._context.without:
            return frozenset()
        self._has_shapes = True
        self._annotations.changes.append(Change(place, tuple(edits), type_.kinds))
        return type_.binds
