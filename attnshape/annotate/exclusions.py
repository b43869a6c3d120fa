"""Which functions, axes and annotations are left out, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from attnshape.annotate.changes import Change, Omission, functions_that_ran
from attnshape.annotate.syntax import Definition, Tree, dotted_name, parse_annotation, small_statements, stored_name
from attnshape.annotate.types import dims_in, read_annotation, symbols_in, type_arguments
from attnshape.observation.forms import ANY_NUMBER, AxisForm, Form, FunctionForms, ItemsForm, TensorForm, tensors_in
from attnshape.observation.watch import ObservedRun, OtherValue, TargetObservation

_SCRIPTED = {"torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.script_method"}
_WITH_NONE = ("None", "object", "typing.Any", "typing_extensions.Any")
_TRANSPARENT = ("typing.Union", "typing.Annotated", "typing_extensions.Annotated")
_OVERLOAD = {"typing.overload", "typing_extensions.overload"}
_NUMBER = re.compile(r"(?<![\w*/+-])\d+(?![\w*/+-])")
_LARGEST_CONSTANT = 4
"""Larger numbers are sizes of something, as a rule; small ones, such as 4 gates, are part of the method."""


def why_not_annotated(definition: Definition, tree: Tree) -> str | None:
    """Return why a function can't be annotated, None if it can."""
    decorators = {tree.origin(decorator) for decorator in definition.decorators}
    if decorators & _SCRIPTED:
        return "TorchScript compiles it and rejects such annotations"
    if "functools.wraps" in decorators:
        return "it wraps another function, whose types it has"
    if decorators & _OVERLOAD:
        return "it is an overload"
    if definition.node.asynchronous is not None or _is_generator(definition.node):
        return "it is a generator or a coroutine"
    if _has_type_comment(definition.node):
        return "its types are in a comment"
    return None


def functions_not_annotated(tree: Tree, forms: Sequence[FunctionForms]) -> Iterator[Omission]:
    """Yield the functions that ran and can't be annotated."""
    for definition, _ in functions_that_ran(tree, forms):
        if (why := why_not_annotated(definition, tree)) is not None:
            yield Omission(definition.name, why)


def variables_not_watched(forms: Sequence[FunctionForms]) -> Iterator[Omission]:
    """Yield the functions with more variables than can be read."""
    why = "Python 3.11 takes too long to read so many variables, unlike Python 3.12"
    for known in forms:
        if known.unwatched_from is not None:
            yield Omission(f"variables in {known.function.name} from line {known.unwatched_from} on", why)


def axes_not_varied(observations: Sequence[TargetObservation]) -> Iterator[Omission]:
    """Yield the size symbols that no target ran with at another size, if there are any."""
    plans = [observation.variation.plan for observation in observations]
    fixed = [f"{name}={plans[0].sizes.numbers[name]}" for name in plans[0].fixed if all(name in p.fixed for p in plans)]
    if fixed:
        why = "at other sizes the code takes a different path, fails or takes too long; --include matched writes them"
        yield Omission(f"the symbols of {', '.join(fixed)}", why)


def annotations_not_recognized(tree: Tree, forms: Sequence[FunctionForms]) -> Iterator[Omission]:
    """Yield the functions in which tensors have annotations that the file's imports don't identify as tensors'."""
    why = "the file's imports don't tell that their annotations are tensors'"
    for definition, known in functions_that_ran(tree, forms):
        names = dict.fromkeys(
            name or "the result"
            for name, node, form in _own_annotations(tree, definition, known)
            if form is not None and any(tensors_in(form)) and read_annotation(node, tree).content == "other"
        )
        if names and why_not_annotated(definition, tree) is None:
            yield Omission(f"{', '.join(names)} in {definition.name}", why)


def tensors_without_shape(forms: Sequence[FunctionForms], runs: Sequence[ObservedRun]) -> Iterator[Omission]:
    """Yield the variables and results that held tensors without a single shape, which no annotation can state."""
    for function in (form.function for form in forms):
        calls = [call for run in runs for call in run.invocations if call.function == function]
        results = [("the result", value) for call in calls for _, value in call.results]
        held = [*(item for call in calls for item in call.bound), *results]
        names = dict.fromkeys(name for name, value in held if isinstance(value, OtherValue) and value.is_shapeless)
        if names:
            yield Omission(f"{', '.join(names)} in {function.name}", "the tensor has no single shape")


def notes_on_constants(changes: Sequence[Change]) -> Iterator[str]:
    """Yield a note on each number in the annotations that stands for a size: it may differ elsewhere."""
    places: dict[int, dict[str, None]] = {}
    for change in changes:
        for number in (int(number) for edit in change.edits for number in _NUMBER.findall(edit.text)):
            if number > _LARGEST_CONSTANT:
                places.setdefault(number, {})[change.place.name or "the result"] = None
    for number, names in places.items():
        yield f"no size determines the {number} in {', '.join(names)}: other arguments may need another number"


def parameters_refusing_none(definition: Definition, tree: Tree) -> list[str]:
    """Return the parameters that are None by default although their annotation doesn't allow it."""
    with_none = [p for p in definition.parameters if isinstance(p.default, cst.Name) and p.default.value == "None"]
    annotated = [(p.name.value, p.annotation.annotation) for p in with_none if p.annotation is not None]
    return [name for name, annotation in annotated if not _allows_none(annotation, tree)]


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
    declared = [node for node in own_statements(function) if isinstance(node, (cst.Global, cst.Nonlocal))]
    return frozenset(item.name.value for statement in declared for item in statement.names)


def local_annotations(function: cst.FunctionDef) -> Iterator[tuple[cst.Name, cst.BaseExpression]]:
    """Yield the annotations of a function's local variables."""
    for statement in own_statements(function):
        if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
            yield statement.target, statement.annotation.annotation


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
    lines = [body.header, *(line for statement in body.body[:1] for line in getattr(statement, "leading_lines", ()))]
    comments = [line.comment.value.replace(" ", "") for line in lines if line.comment is not None]
    return any(comment.startswith("#type:(") for comment in comments)


def _is_generator(node: cst.CSTNode) -> bool:
    """Return whether there is a `yield` in a function's own body."""
    inner = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
    parts = node.body.children if isinstance(node, cst.FunctionDef) else node.children
    return any(isinstance(part, cst.Yield) or (not isinstance(part, inner) and _is_generator(part)) for part in parts)


def without_conflicting_symbols(
    tree: Tree, forms: Sequence[FunctionForms]
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without axes in size symbols by which the function's own annotations mean another size.

    In one function a symbol stands for one number, so both annotations could never hold together.
    """
    definitions = {known.function: definition for definition, known in functions_that_ran(tree, forms)}
    own = "another size in its own annotations"
    symbols = [_conflicting(tree, definitions.get(known.function), known) for known in forms]
    return _without_symbols(forms, symbols, f"means {own}", f"mean {own}")


def without_taken_symbols(
    forms: Sequence[FunctionForms], taken: Sequence[set[str]]
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without axes in the size symbols that name another number in each function's code.

    With `def forward(self, x, H, W)` of an image, a reader would take `H` in an annotation for its height.
    """
    return _without_symbols(forms, taken, "is another number in its code", "are other numbers in its code")


def _without_symbols(
    forms: Sequence[FunctionForms], by_function: Sequence[set[str]], why_one: str, why_many: str
) -> tuple[list[FunctionForms], list[Omission]]:
    """Return the forms without some symbols of each function, and why they are left out."""
    kept, omissions = [], []
    for known, symbols in zip(forms, by_function, strict=True):
        cleared, used = _clear(known, symbols)
        kept.append(cleared)
        if listed := ", ".join(sorted(used)):
            why = why_many if "," in listed else why_one
            omissions.append(Omission(f"axes of {listed} in {known.function.name}", f"{listed} {why}"))
    return kept, omissions


def _clear(known: FunctionForms, symbols: set[str]) -> tuple[FunctionForms, set[str]]:
    """Return the forms in which the axes with any of these symbols are unknown, and the symbols that were in them."""
    used: set[str] = set()

    def clear(form: Form) -> Form:
        match form.of:
            case TensorForm(dtypes=dtypes, axes=axes):
                common = [symbols.intersection(symbols_in(axis.text or "")) for axis in axes]
                used.update(*common)
                kept = (AxisForm(None) if own else axis for own, axis in zip(common, axes, strict=True))
                return replace(form, of=TensorForm(dtypes, tuple(kept)))
            case ItemsForm(kind=kind, items=items):
                return replace(form, of=ItemsForm(kind, tuple(map(clear, items))))
        return form

    cleared = replace(
        known,
        arguments={name: clear(form) for name, form in known.arguments.items()},
        bindings={place: clear(form) for place, form in known.bindings.items()},
        results={line: clear(form) for line, form in known.results.items()},
        result=clear(known.result) if known.result is not None else None,
    )
    return cleared, used


def _conflicting(tree: Tree, function: Definition | None, known: FunctionForms) -> set[str]:
    symbols: set[str] = set()
    if function is None:
        return symbols
    for _, node, form in _own_annotations(tree, function, known):
        tensors = list(tensors_in(form)) if form is not None else []
        annotated = [text.split() for text in dims_in(_unquote(node), tree)]
        for place, words in enumerate(annotated):
            symbols |= _symbols_that_differ(words, tensors[place] if len(tensors) == len(annotated) else None)
    return symbols


def _own_annotations(
    tree: Tree, function: Definition, known: FunctionForms
) -> Iterator[tuple[str, cst.BaseExpression, Form | None]]:
    """Yield a function's own annotations: name, annotation, and what is known; the result's name is empty."""
    for parameter in function.parameters:
        if parameter.annotation is not None:
            name = parameter.name.value
            yield name, parameter.annotation.annotation, known.arguments.get(name)
    if function.node.returns is not None:
        yield "", function.node.returns.annotation, known.result
    for target, annotation in local_annotations(function.node):
        yield target.value, annotation, tree.form_of(known, target)


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
