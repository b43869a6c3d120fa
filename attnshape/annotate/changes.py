"""The changes that a style makes to a file, and the context that it needs to make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnshape.annotate.source import Edit
from attnshape.annotate.syntax import Definition, Tree
from attnshape.observation.forms import FunctionForms
from attnshape.options.spec import Existing

AnnotatedKind = Literal["argument", "result", "local"]


@dataclass(frozen=True)
class Place:
    """What an annotation belongs to: an argument, a result, or one store to a local variable of a function."""

    function: str
    line: int
    """The function's first line."""
    kind: AnnotatedKind
    name: str
    """Empty for a result."""
    offset: int
    """Of the variable or the parameter; of the function's name for a result."""

    def __str__(self) -> str:
        return f"{self.name or 'the result'} {'in' if self.kind == 'local' else 'of'} {self.function}"

    @classmethod
    def within(cls, definition: Definition, kind: AnnotatedKind, name: str, offset: int) -> Place:
        """Return a place of a function in the source."""
        return cls(definition.name, definition.line, kind, name, offset)


@dataclass(frozen=True)
class Change:
    """The edits at one place."""

    place: Place
    edits: tuple[Edit, ...]
    kinds: frozenset[str] = frozenset()
    """The jaxtyping types that they use."""


@dataclass(frozen=True)
class Omission:
    """An annotation that isn't written, or a function that isn't checked, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class AnnotateContext:
    """What a style takes into account besides what is known of the variables."""

    existing: Existing = "keep"
    include_matched: bool = False
    """Whether to write axes that only match a size."""
    without: frozenset[Place] = frozenset()
    """Places to leave as they are."""
    unchecked: frozenset[str] = frozenset()
    """Functions whose arguments and results can't be checked at calls, so that these bind no size symbols."""
    untouched: frozenset[str] = frozenset()
    """Functions to leave as they are."""
    hook: bool = True
    """Whether beartype's import hook can check local annotations."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """The sizes of the runs."""


@dataclass
class Annotations:
    """The changes that a style made to a file."""

    changes: list[Change] = field(default_factory=list)
    unpacked: list[Place] = field(default_factory=list)
    """Tensors without an annotation because one assignment binds them together with others."""
    functions: list[Definition] = field(default_factory=list)
    """Functions that have shape annotations, new ones or their own."""


def functions_that_ran(
    tree: Tree, forms: Sequence[FunctionForms], untouched: frozenset[str] = frozenset()
) -> list[tuple[Definition, FunctionForms]]:
    """Return the functions that ran and may be changed, with what is known of each, in the order of the source."""
    by_place = {(known.function.name, known.function.line): known for known in forms}
    pairs = [(one, by_place.get((one.name, one.line))) for one in tree.definitions if one.name not in untouched]
    return [(definition, known) for definition, known in pairs if known is not None]
