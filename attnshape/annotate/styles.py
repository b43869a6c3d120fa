"""The styles by name, and the files that one makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnshape.annotate import comment_style, jaxtyping_style
from attnshape.annotate.changes import Made, Wanted, edits_of
from attnshape.annotate.enforcing import Hook, decorated, hook, hooked
from attnshape.annotate.functions import unfit
from attnshape.annotate.imports import Needed, import_edits, needed, spelling
from attnshape.annotate.names import names
from attnshape.annotate.source import Edit, Source
from attnshape.annotate.tree import Tree, parse
from attnshape.variables.forms import FunctionForms


@dataclass(frozen=True)
class Rewritten:
    """Files with what was written into them."""

    made: Made
    files: tuple[tuple[Source, tuple[Edit, ...]], ...]
    """Each file that changes, the target's first, with its edits."""
    hook: Hook | None = None
    """The hook that is needed, with `--enforce`."""


def jaxtyping(source: Source, forms: Sequence[FunctionForms], wanted: Wanted) -> Rewritten:
    """Write annotations, with the imports that they need."""
    tree = parse(source)
    known = names(tree)
    made = jaxtyping_style.annotate(tree, known, spelling(known), forms, wanted)
    return _files(tree, made, [*import_edits(tree, known, _kinds(tree, made)), *edits_of(made.changes)])


def enforced(source: Source, forms: Sequence[FunctionForms], wanted: Wanted) -> Rewritten:
    """Write annotations, the decorators that have them checked, and the hook that has local ones checked."""
    tree = parse(source)
    known = names(tree)
    made = jaxtyping_style.annotate(tree, known, spelling(known), forms, wanted)
    only_variables = wanted.unchecked - wanted.untouched
    functions = [
        one
        for one in tree.definitions
        if one in made.functions or (one.name in only_variables and unfit(one, known) is None)
    ]
    with_decorators = decorated(tree, known, functions, wanted.unchecked)
    needs = {*_kinds(tree, made), *with_decorators.needed}
    rewritten = _files(tree, made, [*import_edits(tree, known, needs), *with_decorators.edits, *edits_of(made.changes)])
    if not functions or not wanted.hook:
        return rewritten
    place = hook(source.path)
    package = hooked(place)
    files = (*rewritten.files, *(((package[0], tuple(package[1])),) if package is not None else ()))
    return Rewritten(made, files, place)


def comment(source: Source, forms: Sequence[FunctionForms], wanted: Wanted) -> Rewritten:
    """Write comments at the ends of lines."""
    tree = parse(source)
    made = comment_style.annotate(tree, names(tree), forms, wanted)
    return _files(tree, made, edits_of(made.changes))


def _kinds(tree: Tree, made: Made) -> set[Needed]:
    known = names(tree)
    kinds = {kind for change in made.changes for kind in change.kinds}
    wanted = [needed(known, "jaxtyping", kind) for kind in kinds] + (
        [needed(known, "torch", "Tensor")] if kinds else []
    )
    return {one for one in wanted if one is not None}


def _files(tree: Tree, made: Made, edits: Sequence[Edit]) -> Rewritten:
    return Rewritten(made, ((tree.source, tuple(edits)),) if edits else ())


STYLES: Mapping[str, Callable[[Source, Sequence[FunctionForms], Wanted], Rewritten]] = {
    "jaxtyping": jaxtyping,
    "comment": comment,
}
