"""The raw facts of one run, before anything is inferred from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from attnshape.model import Reference, StorageKind

Composite = Literal["function", "module", "call"]
"""A function of torch's that was stepped into, a library's module, or another call of a library's."""


@dataclass(slots=True)
class RawTensor:
    """What was measured of one tensor; strides and offset count elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    device: str
    itemsize: int
    contiguous: bool
    kind: StorageKind
    of: Reference | None
    root: Reference | None


@dataclass(slots=True)
class RawOutput:
    """One tensor that a step returned, and the name it was found under."""

    tensor: RawTensor
    name: str | None = None
    by_use: bool = False
    """Whether the name is a later consumer's variable, not what the expression itself is assigned to."""
    outside: str | None = None
    """For what a library's source made, the name that the traced code has for it by use."""
    inner: Reference | None = None
    """For a composite's result, the inner step's output that it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the source: the expression that stands there, and what it is assigned to."""

    file: str
    line: int
    column: int
    function: str
    expression: str
    """Empty where the source can't be read, as in a console."""
    targets: tuple[str | None, ...] = ()
    """The names that the expression as a whole is assigned to: one, or one for each element where it is unpacked."""
    unpacked: bool = False
    in_turn: tuple[str | None, ...] = ()
    """The names that a comprehension's elements are unpacked into, one a turn."""
    passing: frozenset[str] = frozenset()
    """The variables of the loops around it, which stand for another tensor in each turn."""
    declared: str | None = None
    """The dims string of the assignment's own jaxtyping annotation."""
    declared_kind: str | None = None
    """That annotation's `Float`, `Bool`, …, as written."""
    statement: tuple[int, int] | None = None
    """Start and end line of an augmented assignment to an element, which is one step to a reader."""


@dataclass(slots=True)
class RawStep:
    """One call that made or changed tensors."""

    operation: str
    place: Place | None
    operands: list[Reference]
    outputs: list[RawOutput]
    module: str | None
    parent: int | None = None
    """The position, from 0, of the composite that this step is part of."""
    order: int | None = None
    """How many calls had been recorded with it, itself included; None for a composite."""
    library: bool = False
    """Whether its place is in a library's source."""
    composite: Composite | None = None
    """What kind of composite the step is, where it may have inner steps."""
    thin: bool = False
    """Whether a composite only passes on what its one inner step returns."""
    bound: tuple[str | None, ...] = ()
    """The names that a library call's results are bound to, which are found only afterwards."""
    opaque: str | None = None
    """Why what happened inside couldn't be seen, where it couldn't."""
    mapped: bool = False
    """Whether it was made in a vmap, which hides an axis."""

    @property
    def key(self) -> tuple[str, str, int, int, str | None]:
        """What identifies the step in another run of the same code."""
        place = self.place
        if place is None:
            return (self.operation, "", 0, 0, self.module)
        return (self.operation, place.file, place.line, place.column, self.module)


@dataclass(frozen=True, slots=True)
class RawLoop:
    """A loop of which one turn is left: its steps' positions, from `begin` to before `end`, and how often it ran."""

    begin: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one of a call's tensors stood: the operand of that position."""

    operand: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """Where an argument stood that isn't kept: an object that may hold tensors."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call without its tensors: `Slot` and `Opaque` stand for what is not kept."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(slots=True)
class RawOperand:
    """One operand of the call that failed."""

    name: str | None
    """Its variable, its parameter, or the input that it is."""
    tensor: RawTensor
    parameter: str | None = None
    """The called function's parameter that it was passed as."""
    extremes: tuple[float, float] | None = None
    """The smallest and the largest of its numbers."""


@dataclass(slots=True)
class RawFailure:
    """The exception that ended a run, and the call that raised it where one did."""

    error: BaseException
    operation: str | None = None
    place: Place | None = None
    operands: list[RawOperand] = field(default_factory=list)
    call: RawCall | None = None
    own: bool = True
    """Whether the traced code itself makes the call, or calls a module that does no more than this."""
    values: dict[str, int] = field(default_factory=dict)
    """Where no call raised it: the numbers that its line reads, by expression."""


@dataclass(slots=True)
class RawTrace:
    """The raw facts of one run."""

    inputs: list[tuple[str, RawTensor]]
    steps: list[RawStep]
    returned: list[tuple[str, Reference]]
    failure: RawFailure | None = None
    broken: str | None = None
    """Why the recording itself is incomplete, where it is."""
    loops: list[RawLoop] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else the reader should know about the run."""
