"""What holds of a variable in every run and every call: its kind, and each axis as a formula. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnshape.model.trace import Known

ANY_NUMBER = "..."
"""Stands for any number of axes, where calls differ in it."""


@dataclass(frozen=True, slots=True)
class FunctionId:
    """A function: its file, its qualified name, and its first line, a decorator's where it has one."""

    file: str
    name: str
    line: int


@dataclass(frozen=True)
class AxisForm:
    """One axis: its expression and how it is known; no expression where none holds in every call."""

    text: str | None
    known: Known = "literal"


@dataclass(frozen=True)
class TensorForm:
    """A tensor: the dtypes that it had, and its axes, with `...` among them where calls differ in their number."""

    dtypes: frozenset[str]
    axes: tuple[AxisForm, ...]


@dataclass(frozen=True)
class ItemsForm:
    """A tuple or list of a fixed length."""

    kind: str
    items: tuple[Form, ...]


@dataclass(frozen=True)
class OtherForm:
    """Anything else, or always None."""


@dataclass(frozen=True)
class Form:
    """What a variable held, and whether it was ever None."""

    of: TensorForm | ItemsForm | OtherForm
    optional: bool = False


@dataclass(frozen=True)
class FunctionForms:
    """What holds in every call of one function."""

    function: FunctionId
    arguments: dict[str, Form]
    bindings: dict[tuple[int, int, str], Form]
    """Each store to a variable, by line, column in UTF-8 bytes from 0, and name."""
    results: dict[int, Form]
    """What each return statement returned, by its line."""
    result: Form | None
    """What holds of all results; None if the function never returned."""
    unwatched_from: int | None = None
    """The line from which on stores to variables weren't watched; None if all were."""


def tensors_in(form: Form) -> Iterator[TensorForm]:
    """Yield the tensors of a form, in order."""
    match form.of:
        case TensorForm():
            yield form.of
        case ItemsForm(items=items):
            for item in items:
                yield from tensors_in(item)
