"""Parses the forms of variables from strings such as `"B L D"`, `"int64 B L"`, `"B L D | None"`, `"(B L, B)"`."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnshape.annotate.changes import AnnotateContext
from attnshape.annotate.source import Edit, PythonSource, decode_source
from attnshape.annotate.styles import Rewrite, rewrite_jaxtyping, rewrite_with_comments
from attnshape.observation.forms import AxisForm, Form, FunctionForms, FunctionId, ItemsForm, OtherForm, TensorForm

STYLES = {"jaxtyping": rewrite_jaxtyping, "comment": rewrite_with_comments}
SIZES = ({"B": 2, "L": 5, "D": 12, "H": 3, "Dk": 4, "Lk": 7},)


def form(text: str) -> Form:
    """Return a form: an axis that ends in `?` is only matched, and `_` is unknown."""
    optional = text.endswith(" | None")
    text = text.removesuffix(" | None")
    if text == "None":
        return Form(OtherForm())
    if text.startswith("("):
        return Form(ItemsForm("tuple", tuple(form(part.strip()) for part in text[1:-1].split(","))), optional)
    words = text.split()
    dtype = words.pop(0) if words and words[0][:3] in ("flo", "int", "boo", "uin", "com") else "float32"
    axes = [AxisForm(None if word == "_" else word.rstrip("?"), _known(word)) for word in words]
    return Form(TensorForm(frozenset([dtype]), tuple(axes)), optional)


def _known(word: str) -> str:
    return "matched" if word.endswith("?") else "literal" if word.isdecimal() else "verified"


def forms_of(
    data: bytes,
    name: str,
    arguments: Mapping[str, str] | None = None,
    stores: Mapping[str, str] | None = None,
    result: str | None = None,
) -> FunctionForms:
    """Return the forms of a function in a source; each store to a name has the form given for that name."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    tree = ast.parse(data.decode(encoding))  # from text, as Python counts columns in UTF-8
    node = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name.split(".")[-1]
    )
    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    bindings = {
        (child.lineno, child.col_offset, child.id): form(stores[child.id])
        for child in ast.walk(node)
        if stores and isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and child.id in stores
    }
    returned = form(result) if result is not None else None
    returns = [child.lineno for child in ast.walk(node) if isinstance(child, ast.Return)]
    return FunctionForms(
        FunctionId("m.py", name, line),
        {child: form(text) for child, text in (arguments or {}).items()},
        bindings,
        {number: returned for number in returns if returned is not None},
        returned,
    )


def source(data: bytes) -> PythonSource:
    return decode_source(Path("m.py"), data)


def rewritten(
    data: bytes, *forms: FunctionForms, style: str = "jaxtyping", context: AnnotateContext | None = None
) -> Rewrite:
    return STYLES[style](source(data), forms, context or AnnotateContext(sizes=SIZES))


def rewritten_text(
    data: bytes, *forms: FunctionForms, style: str = "jaxtyping", context: AnnotateContext | None = None
) -> bytes:
    """Return the rewritten file."""
    rewrite = rewritten(data, *forms, style=style, context=context)
    return rewrite.files[0][0].apply(rewrite.files[0][1]) if rewrite.files else data


def only_insert(edits: Iterable[Edit]) -> bool:
    """Return whether edits only insert text."""
    return all(edit.start == edit.end for edit in edits)


def overlap(edits: Iterable[Edit]) -> bool:
    """Return whether any two edits overlap."""
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    return any(edit.end > other.start for edit, other in itertools.pairwise(ordered))
