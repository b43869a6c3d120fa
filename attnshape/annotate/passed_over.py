"""What is passed over though it ran, and what is written but may hold of these runs alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnshape.annotate.changes import Change, LeftOut, Wanted, matching
from attnshape.annotate.existing import written
from attnshape.annotate.functions import annotated, unfit
from attnshape.annotate.names import Names
from attnshape.annotate.shapes import tensors_in
from attnshape.annotate.tree import Tree
from attnshape.variables.forms import Form, FunctionForms

_NUMBER = re.compile(r"(?<![\w*/+-])\d+(?![\w*/+-])")
_LARGEST_CONSTANT = 4
"""Larger numbers are sizes of something, as a rule; small ones, such as 4 gates, are parts of the method."""


def unfit_functions(tree: Tree, names: Names, forms: Sequence[FunctionForms]) -> Iterator[LeftOut]:
    """Yield the functions that ran and into which nothing can be written."""
    for one, _ in matching(tree, forms, Wanted()):
        why = unfit(one, names)
        if why is not None:
            yield LeftOut(one.name, why)


def not_understood(tree: Tree, names: Names, forms: Sequence[FunctionForms]) -> Iterator[LeftOut]:
    """Yield the functions in which tensors have annotations that aren't known to be of tensors."""
    for one, known in matching(tree, forms, Wanted()):
        own = [
            (each.name.value, each.annotation.annotation, known.arguments.get(each.name.value))
            for each in one.parameters
            if each.annotation is not None
        ]
        if one.node.returns is not None:
            own.append(("the result", one.node.returns.annotation, known.result))
        for name, nodes in annotated(one.node).items():
            held = [form for (_, _, bound), form in known.bindings.items() if bound == name]
            own += [(name, node, held[0] if held else None) for node in nodes]
        found = [name for name, node, form in own if _is_tensor(form) and written(node, names).sort == "other"]
        if found and unfit(one, names) is None:
            why = "their annotations aren't known as tensors' by the file's imports"
            yield LeftOut(f"{', '.join(dict.fromkeys(found))} in {one.name}", why)


def _is_tensor(form: Form | None) -> bool:
    return form is not None and any(True for _ in tensors_in(form))


def numbers(changes: Sequence[Change]) -> Iterator[str]:
    """Yield what is to be said of numbers that stand for a size: it may be another one elsewhere."""
    places: dict[int, list[str]] = {}
    for change in changes:
        for text in (edit.text for edit in change.edits):
            for number in map(int, _NUMBER.findall(text)):
                if number > _LARGEST_CONSTANT:
                    places.setdefault(number, []).append(change.place.name or "the result")
    for number, found in places.items():
        listed = ", ".join(dict.fromkeys(found))
        yield f"{number} in {listed} is a number that no size varies: other arguments may need another one"
