"""The trace: the immutable value that recording and inference make, and that everything after them reads.

Field by field this is the saved form, schema `attnshape/trace/1`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

SCHEMA: Literal["attnshape/trace/1"] = "attnshape/trace/1"

Known = Literal["proved", "matched", "literal"]
StorageKind = Literal["new", "view", "same", "inplace"]
Role = Literal[
    "projection",
    "split",
    "transpose",
    "scores",
    "scale",
    "mask",
    "softmax",
    "dropout",
    "context",
    "merge",
    "output",
]


class Reference(Struct, frozen=True, omit_defaults=True):
    """Where a tensor comes from: exactly one of a step's output, an input, a parameter, or a constant."""

    step: int | None = None
    output: int = 0
    """Which of the step's outputs, from 0."""
    input: str | None = None
    parameter: str | None = None
    constant: bool = False


class Axis(Struct, frozen=True, omit_defaults=True):
    """One axis: its expression, and how it is known."""

    expression: str
    known: Known
    unexplained: bool = False
    """Whether a number isn't known to be a constant: it moved with the sizes, or there was one run only."""


class Storage(Struct, frozen=True):
    """What memory a tensor lies in: new, another tensor's, the very same tensor's, or one that was written to."""

    kind: StorageKind
    of: Reference | None = None
    """The tensor that it is a view of, the same as, or a write to."""
    root: Reference | None = None
    """The tensor that allocated the memory."""


class TensorRecord(Struct, frozen=True, kw_only=True):
    """One tensor: signature, layout and storage; strides and the offset count elements."""

    signature: str
    dtype: str
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    axes: tuple[Axis, ...]
    strides: tuple[str, ...]
    contiguous: bool
    bytes: int
    checked: Literal["declared", "inferred"] | None = None
    declared: str | None = None
    """The dims string of the source's own annotation."""
    storage: Storage


class NamedTensor(Struct, frozen=True, omit_defaults=True):
    """An input, or one output of a step, under the name that the source gives it."""

    name: str | None
    tensor: TensorRecord
    by_use: bool = False
    """Whether the name is a later consumer's variable, not what the expression itself is assigned to."""


class Source(Struct, frozen=True):
    """Where in the source a step stands; line from 1, column from 1."""

    file: str
    line: int
    column: int
    function: str


class Avoided(Struct, frozen=True):
    """The scores that a fused attention step never makes."""

    signature: str
    bytes: int


class Step(Struct, frozen=True, kw_only=True):
    """One tensor-producing operation."""

    index: int
    parent: int | None = None
    expression: str
    operation: str
    role: Role | None = None
    module: str | None = None
    source: Source | None = None
    operands: tuple[Reference, ...] = ()
    outputs: tuple[NamedTensor, ...] = ()
    avoided: Avoided | UnsetType = UNSET
    """Present where the step is fused attention."""


class Size(Struct, frozen=True, omit_defaults=True):
    """One size symbol's number, and where it is from."""

    size: int
    origin: Literal["given", "default", "derived"] = field(name="from")
    expression: str | None = None


class TargetOutput(Struct, frozen=True):
    """One tensor that the target returned: `output`, or a path such as `output[0]`."""

    name: str
    of: Reference


class Operand(Struct, frozen=True):
    """One operand of the step that failed."""

    name: str
    tensor: TensorRecord


class Failure(Struct, frozen=True, kw_only=True):
    """The step at which the traced code failed."""

    expression: str | None
    source: Source | None
    operation: str | None
    error: str
    operands: tuple[Operand, ...] = ()
    explanation: str | None = None
    hint: str | None = None


class Expectation(Struct, frozen=True):
    """One `--expect`, and whether it holds."""

    name: str
    signature: str
    holds: bool
    why: str | None = None
    """Where it doesn't hold: what differs. Where it does: what the verdict is limited to."""


class Trace(Struct, frozen=True, kw_only=True):
    """The ordered steps of one run, with what was inferred and checked."""

    schema: Literal["attnshape/trace/1"] = SCHEMA
    attnshape: str
    torch: str
    python: str
    target: str
    command: str
    device: str
    dtype: str
    seed: int
    sizes: dict[str, Size]
    complete: bool
    proved_by_runs: int
    preconditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    inputs: tuple[NamedTensor, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[TargetOutput, ...] = ()
    failure: Failure | None = None
    expectations: tuple[Expectation, ...] = ()

    @property
    def found_something(self) -> bool:
        """Whether the code failed, an expectation doesn't hold, or one of the source's own annotations is wrong."""
        wrong = any(
            output.tensor.declared and not output.tensor.checked for step in self.steps for output in step.outputs
        )
        return self.failure is not None or wrong or not all(e.holds for e in self.expectations)

    def step(self, index: int) -> Step:
        """Return the step of that index, counted from 1."""
        return self.steps[index - 1]
