"""What holds of a variable in every run and every call: its type, and each axis as a formula."""

from __future__ import annotations

from dataclasses import dataclass

from attnshape.model import Known
from attnshape.variables.function import Function

ANY_NUMBER = "..."
"""Stands for any number of axes, where calls differ in it."""


@dataclass(frozen=True)
class AxisForm:
    """One axis: its expression and how it is known; no expression where nothing holds in every call."""

    text: str | None
    known: Known = "literal"


@dataclass(frozen=True)
class TensorForm:
    """A tensor: the types that it had, and its axes, `...` among them where calls differ in how many there are."""

    dtypes: frozenset[str]
    axes: tuple[AxisForm, ...]


@dataclass(frozen=True)
class ItemsForm:
    """A tuple or list of so many items."""

    kind: str
    items: tuple[Form, ...]


@dataclass(frozen=True)
class OtherForm:
    """Anything else, by the names of its types; `NoneType` alone where there was never anything."""

    types: frozenset[str]


@dataclass(frozen=True)
class Form:
    """What a variable held, and whether it was None at times."""

    of: TensorForm | ItemsForm | OtherForm
    optional: bool = False


@dataclass(frozen=True)
class FunctionForms:
    """What holds in every call of one function."""

    function: Function
    arguments: dict[str, Form]
    bindings: dict[tuple[int, int, str], Form]
    """Each store to a variable, by line, column in UTF-8 bytes from 0, and name."""
    results: dict[int, Form]
    """What each return statement returned, by the line at which it returns."""
    result: Form | None
    """What holds of all results; None where it never returned."""
