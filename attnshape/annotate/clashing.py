"""Letters that an author's function has for another size: in its own annotations, or as the name of a number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import libcst as cst

from attnshape.annotate.changes import LeftOut
from attnshape.annotate.existing import dims
from attnshape.annotate.functions import statements
from attnshape.annotate.names import Names
from attnshape.annotate.shapes import tensors_in
from attnshape.annotate.tree import Definition, Tree
from attnshape.annotate.words import symbols
from attnshape.variables.forms import ANY_NUMBER, AxisForm, Form, FunctionForms, ItemsForm, TensorForm
from attnshape.variables.observe import Run


def without_clashes(
    tree: Tree, names: Names, forms: Sequence[FunctionForms]
) -> tuple[list[FunctionForms], list[LeftOut]]:
    """Return the forms without axes in letters by which their function's own annotations mean another size.

    In one function a letter is one number, so that both could never hold together.
    """
    definitions = {(one.name, one.line): one for one in tree.definitions}

    def clashing(known: FunctionForms) -> set[str]:
        function = definitions.get((known.function.name, known.function.line))
        return _clashing(tree, names, function, known) if function is not None else set()

    own = "in its own annotations"
    return _cleared(forms, clashing, f"means another size {own}", f"mean another size {own}")


def without_taken(forms: Sequence[FunctionForms], runs: Sequence[Run]) -> tuple[list[FunctionForms], list[LeftOut]]:
    """Return the forms without axes in letters that are names of their function's variables for other numbers.

    With `def forward(self, x, H, W)` of an image, `H` in an annotation would be read as its height.
    """
    return _cleared(
        forms, lambda known: _taken(known, runs), "is another number in its code", "are other numbers in its code"
    )


def _cleared(
    forms: Sequence[FunctionForms], letters_of: Callable[[FunctionForms], set[str]], why_one: str, why_many: str
) -> tuple[list[FunctionForms], list[LeftOut]]:
    """Return the forms without axes in some letters of each function, and what is said of one letter or of many."""
    made, left_out = [], []
    for known in forms:
        letters = letters_of(known)
        made.append(_without(known, letters))
        listed = sorted(letters & {symbol for one in _all(known) for symbol in _symbols(one)})
        if listed:
            said = ", ".join(listed)
            why = why_one if len(listed) == 1 else why_many
            left_out.append(LeftOut(f"axes of {said} in {known.function.name}", f"{said} {why}"))
    return made, left_out


def _taken(known: FunctionForms, runs: Sequence[Run]) -> set[str]:
    """Return the sizes' letters that a function has bound to other numbers, in some run."""
    found = set()
    for run in runs:
        for call in (one for one in run.invocations if one.function == known.function):
            held = [*call.arguments.items(), *((one.name, one.value) for one in call.bindings)]
            found |= {name for name, value in held if type(value) is int and run.numbers.get(name, value) != value}
    return found


def _clashing(tree: Tree, names: Names, function: Definition, known: FunctionForms) -> set[str]:
    found = set()
    for node, form in _own(tree, function, known):
        tensors = list(tensors_in(form)) if form is not None else []
        said = [text.split() for _, text in dims(node, names)]
        for place, words in enumerate(said):
            tensor = tensors[place] if len(tensors) == len(said) else None
            found |= _other(words, tensor)
    return found


def _own(tree: Tree, function: Definition, known: FunctionForms) -> Iterator[tuple[cst.CSTNode, Form | None]]:
    """Yield a function's own annotations, each with what is known of what it is of."""
    for parameter in function.parameters:
        if parameter.annotation is not None:
            yield _unquoted(parameter.annotation.annotation), known.arguments.get(parameter.name.value)
    if function.node.returns is not None:
        yield _unquoted(function.node.returns.annotation), known.result
    for statement in statements(function.node):
        if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
            yield _unquoted(statement.annotation.annotation), tree.held(known, statement.target)


def _unquoted(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        try:
            return cst.parse_expression(node.evaluated_value)
        except (cst.ParserSyntaxError, ValueError):
            return node
    return node


def _other(words: Sequence[str], tensor: TensorForm | None) -> set[str]:
    """Return the letters in an annotation that aren't sure to be what they are in a tensor's axes."""
    plain = [word.lstrip("#?").rpartition("=")[2] for word in words]
    texts = [axis.text.replace(" ", "") if axis.text is not None else None for axis in tensor.axes] if tensor else []
    open_at = next((place for place, word in enumerate(plain) if word.startswith(("*", ANY_NUMBER))), None)
    if open_at is not None and ANY_NUMBER not in texts and len(plain) - 1 <= len(texts):
        behind = len(plain) - 1 - open_at
        texts = [*texts[:open_at], None, *(texts[-behind:] if behind else ())]
    same = len(texts) == len(plain)
    return {
        letter
        for place, word in enumerate(plain)
        if not word.startswith(("*", "_", ANY_NUMBER)) and (not same or texts[place] != word)
        for letter in symbols(word)
    }


def _without(known: FunctionForms, letters: Collection[str]) -> FunctionForms:
    return replace(
        known,
        arguments={name: _form(one, letters) for name, one in known.arguments.items()},
        bindings={place: _form(one, letters) for place, one in known.bindings.items()},
        results={line: _form(one, letters) for line, one in known.results.items()},
        result=_form(known.result, letters) if known.result is not None else None,
    )


def _form(form: Form, letters: Collection[str]) -> Form:
    match form.of:
        case TensorForm(dtypes=dtypes, axes=axes):
            cleared = (AxisForm(None) if set(symbols(axis.text or "")) & set(letters) else axis for axis in axes)
            return replace(form, of=TensorForm(dtypes, tuple(cleared)))
        case ItemsForm(kind=kind, items=items):
            return replace(form, of=ItemsForm(kind, tuple(_form(one, letters) for one in items)))
    return form


def _all(known: FunctionForms) -> list[Form]:
    every = [*known.arguments.values(), *known.bindings.values(), *known.results.values()]
    return every if known.result is None else [*every, known.result]


def _symbols(form: Form) -> Iterator[str]:
    for tensor in tensors_in(form):
        for axis in tensor.axes:
            yield from symbols(axis.text or "")
