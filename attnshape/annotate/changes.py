"""What a style makes of a file: changes, each of one place, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnshape.annotate.asked import Existing
from attnshape.annotate.source import Edit
from attnshape.annotate.tree import Definition, Tree
from attnshape.variables.forms import FunctionForms

Kind = Literal["argument", "result", "local"]


@dataclass(frozen=True)
class Place:
    """What an annotation is of: an argument, a result, or a local variable at one place, of a function."""

    function: str
    line: int
    """The function's first."""
    kind: Kind
    name: str
    """Nothing for a result."""
    offset: int
    """Where the variable or the parameter stands; the function's own for a result."""

    def __str__(self) -> str:
        what = "the result" if self.kind == "result" else self.name
        return f"{what} of {self.function}" if self.kind != "local" else f"{what} in {self.function}"


def place_in(definition: Definition, kind: Kind, name: str, offset: int) -> Place:
    """Return a place of a function of the source."""
    return Place(definition.name, definition.line, kind, name, offset)


@dataclass(frozen=True)
class Change:
    """What is written for one place."""

    place: Place
    edits: tuple[Edit, ...]
    kinds: frozenset[str] = frozenset()
    """The jaxtyping types that it needs."""


@dataclass(frozen=True)
class LeftOut:
    """An annotation that isn't written, or a function that isn't checked, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    existing: Existing = "keep"
    matched: bool = False
    """Whether axes are written that were only matched to a size."""
    without: frozenset[Place] = frozenset()
    """Places that are left as they are."""
    unchecked: frozenset[str] = frozenset()
    """Functions whose arguments and results can't be checked as they are called, so that they bind no symbols."""
    untouched: frozenset[str] = frozenset()
    """Functions that are left as they are."""
    hook: bool = True
    """Whether local annotations can be checked by beartype's import hook."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """Those of the runs."""


@dataclass
class Made:
    """What a style has made."""

    changes: list[Change] = field(default_factory=list)
    unpacked: list[Place] = field(default_factory=list)
    """Tensors that get no annotation, since they are bound together with others."""
    functions: list[Definition] = field(default_factory=list)
    """Functions that have annotations of shapes, new ones or their own."""


def matching(tree: Tree, forms: Sequence[FunctionForms], wanted: Wanted) -> list[tuple[Definition, FunctionForms]]:
    """Return the functions that ran and may be touched, each with what holds of it, in the order of the source."""
    by_place = {(one.function.name, one.function.line): one for one in forms}
    found = [(one, by_place.get((one.name, one.line))) for one in tree.definitions if one.name not in wanted.untouched]
    return [(one, known) for one, known in found if known is not None]


def edits_of(changes: Collection[Change]) -> list[Edit]:
    """Return the edits of all changes."""
    return [edit for change in changes for edit in change.edits]
