"""The raw facts of one run, before anything is inferred from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnshape.model import Reference, StorageKind


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


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the source: the expression that stands there, and what it is assigned to."""

    file: str
    line: int
    column: int
    function: str
    expression: str
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

    @property
    def key(self) -> tuple[str, str, int, int, str | None]:
        """What identifies the step in another run of the same code."""
        place = self.place
        if place is None:
            return (self.operation, "", 0, 0, self.module)
        return (self.operation, place.file, place.line, place.column, self.module)


@dataclass(slots=True)
class RawFailure:
    """The exception that ended a run, and the call that raised it where one did."""

    error: BaseException
    operation: str | None = None
    place: Place | None = None
    operands: list[tuple[str, RawTensor]] = field(default_factory=list)


@dataclass(slots=True)
class RawTrace:
    """The raw facts of one run."""

    inputs: list[tuple[str, RawTensor]]
    steps: list[RawStep]
    returned: list[tuple[str, Reference]]
    failure: RawFailure | None = None
    broken: str | None = None
    """Why the recording itself is incomplete, where it is."""
