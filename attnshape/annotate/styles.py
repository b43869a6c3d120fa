"""The styles by name, and the result of annotating a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from libcst.codemod.visitors import ImportItem

from attnshape.annotate.changes import AnnotateContext, Annotations, Change, Omission, Place
from attnshape.annotate.comment_style import annotate_with_comments
from attnshape.annotate.enforcing import ImportHook, decorator_edits, find_hook, hook_edits
from attnshape.annotate.exclusions import notes_on_constants, why_not_annotated
from attnshape.annotate.jaxtyping_style import annotate_types
from attnshape.annotate.source import Edit, PythonSource
from attnshape.annotate.syntax import Tree, import_edits, parse
from attnshape.model.report import Finding
from attnshape.observation.forms import FunctionForms


@dataclass(frozen=True)
class Rewrite:
    """Files with the edits that annotate them."""

    annotations: Annotations
    files: tuple[tuple[PythonSource, tuple[Edit, ...]], ...]
    """Each file that changes, the target's first, with its edits."""
    hook: ImportHook | None = None
    """The import hook that `--enforce` needs."""


@dataclass(frozen=True)
class AnnotatedFile:
    """A file with its verified annotations."""

    source: PythonSource
    style: str
    rewrite: Rewrite
    omissions: tuple[Omission, ...] = ()
    verified_at: tuple[str, ...] = ()
    """The sizes at which the annotated file was run and checked; empty if no annotation is written."""
    same_bits: bool = True
    """Whether the results were compared; those of some code differ from run to run."""
    findings: tuple[Finding, ...] = ()
    """Documented shapes that differ from those observed."""
    found: tuple[str, ...] = ()
    """The flags that say what was worked out of the arguments of each target."""

    @property
    def changes(self) -> Sequence[Change]:
        """The changes, place by place."""
        return self.rewrite.annotations.changes

    @property
    def unpacked(self) -> Sequence[Place]:
        """Tensors without an annotation because they are unpacked; a comment can name them."""
        return () if self.style == "comment" else self.rewrite.annotations.unpacked

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the constants in the annotations, after what was worked out of the targets' arguments."""
        return [*(f"found: {flags}" for flags in self.found), *notes_on_constants(self.changes)]

    @property
    def files(self) -> list[tuple[PythonSource, bytes]]:
        """Each file that changes, with its new contents."""
        return [(source, source.apply(edits)) for source, edits in self.rewrite.files]


def rewrite_jaxtyping(source: PythonSource, forms: Sequence[FunctionForms], context: AnnotateContext) -> Rewrite:
    """Add annotations, with the imports that they need."""
    tree = parse(source)
    annotations = annotate_types(tree, forms, context)
    return _rewrite(tree, annotations, import_edits(tree, _needed_imports(tree, annotations)))


def rewrite_enforced(source: PythonSource, forms: Sequence[FunctionForms], context: AnnotateContext) -> Rewrite:
    """Add annotations, the decorators that check them, and the hook that checks those of local variables."""
    tree = parse(source)
    annotations = annotate_types(tree, forms, context)
    variables_only = context.unchecked - context.untouched
    functions = [
        function
        for function in tree.definitions
        if function in annotations.functions
        or (function.name in variables_only and why_not_annotated(function, tree) is None)
    ]
    decorations, needed = decorator_edits(tree, functions, context.unchecked)
    imports = import_edits(tree, {*_needed_imports(tree, annotations), *needed})
    rewrite = _rewrite(tree, annotations, [*imports, *decorations])
    if not functions or not context.hook:
        return rewrite
    hook = find_hook(source.path)
    package = hook_edits(hook)
    return replace(rewrite, files=(*rewrite.files, *([package] if package is not None else [])), hook=hook)


def rewrite_with_comments(source: PythonSource, forms: Sequence[FunctionForms], context: AnnotateContext) -> Rewrite:
    """Add comments at the ends of lines."""
    tree = parse(source)
    return _rewrite(tree, annotate_with_comments(tree, forms, context), [])


def _needed_imports(tree: Tree, annotations: Annotations) -> set[ImportItem]:
    kinds = {kind for change in annotations.changes for kind in change.kinds}
    names = {("jaxtyping", kind) for kind in kinds} | ({("torch", "Tensor")} if kinds else set())
    return {item for name in names if (item := tree.missing_import(*name)) is not None}


def _rewrite(tree: Tree, annotations: Annotations, before: Sequence[Edit]) -> Rewrite:
    """Return the file with its annotations, whose edits come after those `before` at the same place."""
    edits = (*before, *(edit for change in annotations.changes for edit in change.edits))
    return Rewrite(annotations, ((tree.source, edits),) if edits else ())
