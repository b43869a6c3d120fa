"""Which functions, axes and annotations are left out, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from attnshape.annotate.changes import Change, Omission, functions_that_ran
from attnshape.annotate.syntax import (
    Definition,
    Tree,
    dotted_name,
    parse_annotation,
    small_statements,
    stored_name,
)
from attnshape.annotate.types import dims_in, read_annotation, symbols_in, type_arguments
from attnshape.observation.forms import (
    ANY_NUMBER,
    AxisForm,
    Form,
    FunctionForms,
    FunctionId,
    ItemsForm,
    TensorForm,
    tensors_in,
)

_SCRIPTED = ("torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.script_method")
_WITH_NONE = ("None", "object", "typing.Any", "typing_extensions.Any")
_TRANSPARENT = ("typing.Union", "typing.Annotated", "typing_extensions.Annotated")
_OVERLOAD = ("typing.overload", "typing_extensions.overload")
_NUMBER = re.compile(r"(?<![\w*/+-])\d+(?![\w*/+-])")
_LARGEST_CONSTANT = 4
"""Larger numbers are sizes of something, as a rule; small ones, such as 4 gates, are part of the method."""


def why_not_annotated(definition: Definition, tree: Tree) -> str | None:
    """Return why a function can't be annotated, None if it can."""
    decorators = [tree.origin(one) for one in definition.decorators]
    if any(one in _SCRIPTED for one in decorators):
        return "TorchScript compiles it and rejects such annotations"
    if "functools.wraps" in decorators:
        return "it wraps another function, whose types it has"
    if any(one in _OVERLOAD for one in decorators):
        return "it is an overload"
    if definition.node.asynchronous is not None or _is_generator(definition.node):
        return "it is a generator or a coroutine"
    if _has_type_comment(definition.node):
        return "its types are in a comment"
    return None


def functions_not_annotated(tree: Tree, forms: Sequence[FunctionForms]) -> Iterator[Omission]:
    """Yield the functions that ran and can't be annotated."""
    for one, _ in functions_that_ran(tree, forms):
        why = why_not_annotated(one, tree)
        if why is not None:
            yield Omission(one.name, why)


def annotations_not_recognized(tree: Tree, forms: Sequence[FunctionForms]) -> Iterator[Omission]:
    """Yield the functions in which tensors have annotations that the file's imports don't identify as tensors'."""
    for one, known in functions_that_ran(tree, forms):
        named = {"result": "the result"}
        found = [
            named.get(kind, name)
            for kind, name, node, form in _own_annotations(tree, one, known)
            if form is not None and any(tensors_in(form)) and read_annotation(node, tree).content == "other"
        ]
        if found and why_not_annotated(one, tree) is None:
            why = "the file's imports don't tell that their annotations are tensors'"
            yield Omission(f"{', '.join(dict.fromkeys(found))} in {one.name}", why)


def notes_on_constants(changes: Sequence[Change]) -> Iterator[str]:
    """Yield a note on each number in the annotations that stands for a size: it may differ elsewhere."""
    places: dict[int, list[str]] = {}
    for change in changes:
        for text in (edit.text for edit in change.edits):
            for number in map(int, _NUMBER.findall(text)):
                if number > _LARGEST_CONSTANT:
                    places.setdefault(number, []).append(change.place.name or "the result")
    for number, found in places.items():
        listed = ", ".join(dict.fromkeys(found))
        yield f"no size determines the {number} in {listed}: other arguments may need another number"


def parameters_refusing_none(function: cst.FunctionDef, tree: Tree) -> list[str]:
    """Return the parameters that are None by default although their annotation doesn't allow it."""
    given = function.params
    return [
        one.name.value
        for one in (*given.posonly_params, *given.params, *given.kwonly_params)
        if one.annotation is not None
        and isinstance(one.default, cst.Name)
        and one.default.value == "None"
        and not _allows_none(one.annotation.annotation, tree)
    ]


def _allows_none(node: cst.BaseExpression, tree: Tree) -> bool:
    match _unquote(node):
        case cst.SimpleString():
            return False
        case cst.BinaryOperation(left=left, operator=cst.BitOr(), right=right):
            return _allows_none(left, tree) or _allows_none(right, tree)
        case cst.Subscript(value=value) as subscript:
            origin = tree.origin(dotted_name(value))
            if origin in _TRANSPARENT:
                return any(_allows_none(part, tree) for part in type_arguments(subscript))
            return origin == "typing.Optional"
        case plain:
            return tree.origin(dotted_name(plain)) in _WITH_NONE


def _unquote(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the expression of an annotation in quotes; the string itself if it is none."""
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return parse_annotation(node.evaluated_value) or node
    return node


def names_of_outer_scopes(function: cst.FunctionDef) -> frozenset[str]:
    """Return the names that a function declares global or nonlocal."""
    declared = [one for one in own_statements(function) if isinstance(one, (cst.Global, cst.Nonlocal))]
    return frozenset(item.name.value for one in declared for item in one.names)


def local_annotations(function: cst.FunctionDef) -> dict[str, list[cst.BaseExpression]]:
    """Return the annotations of a function's local variables, by name."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for statement in own_statements(function):
        if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
            found.setdefault(statement.target.value, []).append(statement.annotation.annotation)
    return found


def own_statements(function: cst.FunctionDef) -> list[cst.CSTNode]:
    """Return a function's own small statements, in order."""
    return list(small_statements(function.body.body))


def unpacked_names(statement: cst.CSTNode) -> list[cst.Name]:
    """Return the names that an assignment binds together with others: `q, k = …`, `a = b = …`."""
    if stored_name(statement) is not None or not isinstance(statement, cst.Assign):
        return []
    return [name for target in statement.targets for name in _names(target.target)]


def _names(node: cst.CSTNode) -> list[cst.Name]:
    match node:
        case cst.Name():
            return [node]
        case cst.Tuple() | cst.List() | cst.Element() | cst.StarredElement():
            return [name for child in node.children for name in _names(child)]
    return []


def _has_type_comment(function: cst.FunctionDef) -> bool:
    body = function.body
    if not isinstance(body, cst.IndentedBlock):
        return False
    comments = [body.header.comment] + [
        line.comment for one in body.body[:1] for line in getattr(one, "leading_lines", ())
    ]
    return any(one is not None and one.value.replace(" ", "").startswith("#type:(") for one in comments)


def _is_generator(node: cst.CSTNode) -> bool:
    """Return whether there is a `yield` in a function's own body."""
    inner = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
    parts = node.body.children if isinstance(node, cst.FunctionDef) else node.children
    return any(isinstance(one, cst.Yield) or (not isinstance(one, inner) and _is_generator(one)) for one in parts)


def without_conflicting_symbols(
    tree: Tree, forms: Sequence[FunctionForms]
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without axes in size symbols by which the function's own annotations mean another size.

    In one function a symbol stands for one number, so both annotations could never hold together.
    """
    definitions = {(one.name, one.line): one for one in tree.definitions}

    def conflicting(known: FunctionForms) -> set[str]:
        function = definitions.get((known.function.name, known.function.line))
        return _conflicting(tree, function, known) if function is not None else set()

    own = "in its own annotations"
    return _without_symbols(forms, conflicting, f"means another size {own}", f"mean another size {own}")


def without_taken_symbols(
    forms: Sequence[FunctionForms], taken: Mapping[FunctionId, set[str]]
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without axes in size symbols that name another number in the function's code.

    With `def forward(self, x, H, W)` of an image, a reader would take `H` in an annotation for its height.
    """
    one, many = "is another number in its code", "are other numbers in its code"
    return _without_symbols(forms, lambda known: taken[known.function], one, many)


def _without_symbols(
    forms: Sequence[FunctionForms], find: Callable[[FunctionForms], set[str]], why_one: str, why_many: str
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without the symbols found in each function, and why they are left out."""
    made, omissions = [], []
    for known in forms:
        symbols = find(known)
        made.append(
            replace(
                known,
                arguments={name: _clear(one, symbols) for name, one in known.arguments.items()},
                bindings={place: _clear(one, symbols) for place, one in known.bindings.items()},
                results={line: _clear(one, symbols) for line, one in known.results.items()},
                result=_clear(known.result, symbols) if known.result is not None else None,
            )
        )
        used = {
            symbol
            for form in (*known.arguments.values(), *known.bindings.values(), *known.results.values(), known.result)
            for tensor in (tensors_in(form) if form is not None else ())
            for axis in tensor.axes
            for symbol in symbols_in(axis.text or "")
        }
        if listed := ", ".join(sorted(symbols & used)):
            why = why_many if "," in listed else why_one
            omissions.append(Omission(f"axes of {listed} in {known.function.name}", f"{listed} {why}"))
    return made, omissions


def _clear(form: Form, symbols: Collection[str]) -> Form:
    """Return a form in which the axes with any of these symbols are unknown."""
    match form.of:
        case TensorForm(dtypes=dtypes, axes=axes):
            kept = (AxisForm(None) if set(symbols_in(axis.text or "")) & set(symbols) else axis for axis in axes)
            return replace(form, of=TensorForm(dtypes, tuple(kept)))
        case ItemsForm(kind=kind, items=items):
            return replace(form, of=ItemsForm(kind, tuple(_clear(one, symbols) for one in items)))
    return form


def _conflicting(tree: Tree, function: Definition, known: FunctionForms) -> set[str]:
    found = set()
    for _, _, node, form in _own_annotations(tree, function, known):
        tensors = list(tensors_in(form)) if form is not None else []
        given = [text.split() for text in dims_in(_unquote(node), tree)]
        for place, words in enumerate(given):
            found |= _symbols_that_differ(words, tensors[place] if len(tensors) == len(given) else None)
    return found


def _own_annotations(
    tree: Tree, function: Definition, known: FunctionForms
) -> Iterator[tuple[str, str, cst.BaseExpression, Form | None]]:
    """Yield a function's own annotations: kind, name, annotation, and what is known of the annotated variable."""
    for parameter in function.parameters:
        if parameter.annotation is not None:
            name = parameter.name.value
            yield "argument", name, parameter.annotation.annotation, known.arguments.get(name)
    if function.node.returns is not None:
        yield "result", "", function.node.returns.annotation, known.result
    for statement in own_statements(function.node):
        if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
            form = tree.form_of(known, statement.target)
            yield "local", statement.target.value, statement.annotation.annotation, form


def _symbols_that_differ(words: Sequence[str], tensor: TensorForm | None) -> set[str]:
    """Return the symbols in an annotation that may mean another size than they do in a tensor's axes."""
    plain = [word.lstrip("#?").rpartition("=")[2] for word in words]
    texts = [axis.text.replace(" ", "") if axis.text is not None else None for axis in tensor.axes] if tensor else []
    open_at = next((place for place, word in enumerate(plain) if word.startswith(("*", ANY_NUMBER))), None)
    if open_at is not None and ANY_NUMBER not in texts and len(plain) - 1 <= len(texts):
        behind = len(plain) - 1 - open_at
        texts = [*texts[:open_at], None, *(texts[-behind:] if behind else ())]
    same_rank = len(texts) == len(plain)
    return {
        symbol
        for place, word in enumerate(plain)
        if not word.startswith(("*", "_", ANY_NUMBER)) and (not same_rank or texts[place] != word)
        for symbol in symbols_in(word)
    }
