"""The recording of one run: raw facts, from which nothing has been inferred yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from attnshape.model.trace import Reference, StorageKind
from attnshape.tracing.arguments import Place, Plain

Composite = Literal["function", "module", "call"]
"""What a composite is: a torch function that was entered, a library's module, or another call of a library."""


@dataclass(slots=True)
class RawTensor:
    """The facts of one tensor; strides and offset count elements, and an axis may have the size `NO_SIZE`."""

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
    bytes: int
    """The bytes of its elements, or of the tensors of which it consists; 0 if they can't be counted."""
    layout: str | None = None
    """How it is laid out, if it has no strides or no memory of its own: `sparse_csr`, `jagged`, `wrapper`."""
    symbols: dict[int, str] = field(default_factory=dict)
    """The symbol of each axis that has no single size, such as `j1` for a ragged one; `?` if it has no symbol."""

    @property
    def elements(self) -> int:
        """The number of elements; 0 if an axis has no single size."""
        return 0 if self.symbols else math.prod(self.shape)


@dataclass(slots=True)
class RawOutput:
    """One tensor that a step returned, and its name."""

    tensor: RawTensor
    name: str | None = None
    named_by_use: bool = False
    """Whether the name is the variable of a later call or of a caller, not the target of the step's own assignment."""
    local_name: str | None = None
    """The name inside the function that returned it, where its caller gives it another."""
    outside_name: str | None = None
    """For a tensor that a library made, the traced code's variable for it."""
    inner: Reference | None = None
    """For a composite's output, the inner step's output that it is."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """An expression in the source, and the names to which it is assigned."""

    file: str
    line: int
    column: int
    function: str
    expression: str
    """Empty if the source can't be read, as in a console."""
    targets: tuple[str | None, ...] = ()
    """The names to which the expression is assigned: one, or one for each element where it is unpacked."""
    unpacked: bool = False
    targets_per_iteration: tuple[str | None, ...] = ()
    """The names into which a comprehension's elements are unpacked, one for each iteration."""
    loop_variables: frozenset[str] = frozenset()
    """The variables of the loops around it, which hold another tensor in each iteration."""
    declared: str | None = None
    """The dims string of the assignment's own jaxtyping annotation."""
    declared_kind: str | None = None
    """The annotation's `Float`, `Bool`, …"""
    statement: tuple[int, int] | None = None
    """The first and last line of an augmented assignment to an element, which becomes one step."""


@dataclass(frozen=True, slots=True)
class RawCost:
    """What a step computed and moved, as terms: each is a product of sizes, so that it has a formula of its own."""

    flops: tuple[int, ...] | None = ()
    """Floating-point operations; None if those of some operation aren't known."""
    products: tuple[int, ...] = ()
    """Those of them in products of matrices, and in convolutions."""
    moved: tuple[int, ...] | None = ()
    """Bytes of each operand read and of each result written; None if they aren't known."""
    temporary: tuple[int, ...] | None = ()
    """Bytes of each tensor that was made inside and isn't a result; None if they aren't known."""
    saved: tuple[int, ...] | None = ()
    """Bytes of each storage that is kept for the backward pass, parameters apart; None if they aren't known."""
    unknown: tuple[str, ...] = ()
    """The operations whose floating-point operations aren't known."""
    weights: int = 0
    """How many weights of attention were made whose numbers could be seen."""
    needless: int = 0
    """How many of them are exactly 0."""


@dataclass(slots=True)
class RawStep:
    """One call that returned or changed tensors."""

    operation: str
    location: SourceLocation | None
    operands: list[Reference]
    outputs: list[RawOutput]
    module: str | None
    parent: int | None = None
    """The position, from 0, of the composite to which this step belongs."""
    order: int | None = None
    """The call's number, counted from 1; None for a composite."""
    library: bool = False
    """Whether its location is in a library's source."""
    composite: Composite | None = None
    """What kind of composite the step is, if it is one."""
    passes_through: bool = False
    """Whether a composite only returns what its one inner step returns."""
    bound_names: tuple[str | None, ...] = ()
    """The names to which a library call's results are assigned; the results are found only after the run."""
    opaque: str | None = None
    """Why nothing inside could be seen, if nothing could."""
    mapped: bool = False
    """Whether it ran under `torch.func.vmap`, which hides an axis."""
    function: Callable[..., Any] | None = None
    """What was called; None for a module and for a composite without a function."""
    arguments: tuple[tuple[Place, Plain], ...] = ()
    """Its arguments that are no tensors."""
    cost: RawCost | None = None
    """What it cost, if that was counted; None for a composite."""

    @property
    def key(self) -> tuple[str, str, int, int, str | None]:
        """What identifies the step in another run of the same code."""
        at = (self.location.file, self.location.line, self.location.column) if self.location else ("", 0, 0)
        return (self.operation, *at, self.module)


@dataclass(frozen=True, slots=True)
class RawLoop:
    """A loop of which one iteration is left: the steps at the positions `begin` to `end - 1`, and how often it ran."""

    begin: int
    end: int
    count: int
    modules: tuple[str, str] | None = None
    """The modules of the first and the last iteration, where each iteration is in another one of a list."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Stands for one of a call's tensors: the operand at that position."""

    operand: int


@dataclass(frozen=True, slots=True)
class OpaqueArgument:
    """Stands for an argument that isn't kept: an object that may hold tensors."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call without its tensors, which `TensorSlot` and `OpaqueArgument` replace."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(slots=True)
class RawOperand:
    """One operand of the call that failed."""

    name: str | None
    """The variable, parameter or input that it is."""
    tensor: RawTensor
    parameter: str | None = None
    """The called function's parameter to which it was passed."""
    min_and_max: tuple[float, float] | None = None
    """Its smallest and largest number."""


@dataclass(slots=True)
class RawFailure:
    """The exception that ended a run, and the call that raised it where one did."""

    error: BaseException
    operation: str | None = None
    location: SourceLocation | None = None
    operands: list[RawOperand] = field(default_factory=list)
    call: RawCall | None = None
    own: bool = True
    """Whether the traced code makes the call itself, or calls a module that only makes this call."""
    values: dict[str, int] = field(default_factory=dict)
    """The integers that the failing line reads, by expression, where no call raised the exception."""


@dataclass(slots=True)
class RawTrace:
    """The raw facts of one run."""

    inputs: list[tuple[str, RawTensor]]
    steps: list[RawStep]
    returned: list[tuple[str, Reference]]
    failure: RawFailure | None = None
    broken: str | None = None
    """Why the recording itself is incomplete, if it is."""
    loops: list[RawLoop] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else to tell the reader about the run."""
    cost: RawCost | None = None
    """What the whole run cost, those of every iteration of a loop included."""
    trained: tuple[int, ...] = ()
    """The number of elements of each parameter, without buffers, where costs were counted."""
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of the parameters and buffers, which make building the target expensive."""
