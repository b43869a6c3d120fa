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
    """Whether a number isn't known to be a constant: it moved with the sizes, or some size didn't vary."""
    where: str | None = None
    """The comparison under which the expression holds, such as `W <= L` or `D >= 128`; None where it always does."""


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
    inner: Reference | None = None
    """For a composite's result, the inner step's output that it is."""


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
    opaque: str | UnsetType = UNSET
    """Why what happened inside couldn't be seen; present where it couldn't."""


class Loop(Struct, frozen=True):
    """A loop that turns as often as a size says: one turn of it is in the trace, from the first step to the last."""

    first: int
    last: int
    count: int
    expression: str
    known: Known


class Size(Struct, frozen=True, omit_defaults=True):
    """One size symbol's number, and where it is from."""

    size: int
    origin: Literal["given", "default", "derived"] = field(name="from")
    expression: str | None = None


class TargetOutput(Struct, frozen=True):
    """One tensor that the target returned: `output`, or a path such as `output[0]`."""

    name: str
    of: Reference


class Operand(Struct, frozen=True, omit_defaults=True):
    """One operand of the step that failed."""

    name: str
    tensor: TensorRecord
    disagree: tuple[int, ...] = ()
    """Its axes that don't fit those of the others, from 0."""


class Failure(Struct, frozen=True, kw_only=True):
    """The step at which the traced code failed."""

    expression: str | None
    source: Source | None
    operation: str | None
    error: str
    operands: tuple[Operand, ...] = ()
    explanation: str | None = None
    """Which axes disagree, in words; None where no more is known than the error says."""
    hint: str | None = None
    """A change that was tried on stand-ins of the operands, and works."""


class Expectation(Struct, frozen=True):
    """One `--expect`, and whether it holds."""

    name: str
    signature: str
    holds: bool
    why: str | None = None
    """Where it doesn't hold: what differs. Where it does: what the verdict is limited to."""


class Peak(Struct, frozen=True, kw_only=True):
    """The most memory that a run on a real device holds at one time, foretold from small runs."""

    bytes: int
    known: Literal["proved", "estimate"]
    """Proved where every block that is held has a formula, and the run took the steps of the small ones."""
    expression: str | None = None
    """The bytes as a sum over the sizes, where it is short."""
    step: int | None = None
    """The step during which it is reached; None while the target is being built."""
    parameters: int
    """The bytes of it that parameters, buffers and constants take."""
    inputs: int


class Trace(Struct, frozen=True, kw_only=True):
    """The ordered steps of one run, with what was inferred and checked.

    It is immutable, and shows itself: as a table in a console and in `print`, as HTML in a notebook.

    >>> import attnshape
    >>> trace = attnshape.trace("scaled-dot-product", B=3, Lk=7)
    >>> weights = next(step for step in trace.steps if step.role == "softmax").outputs[0]
    >>> weights.name, weights.tensor.signature, weights.tensor.shape, weights.tensor.stride
    ('weights', 'B Lq Lk', (3, 10, 7), (70, 7, 1))
    """

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
    loops: tuple[Loop, ...] = ()
    outputs: tuple[TargetOutput, ...] = ()
    failure: Failure | None = None
    expectations: tuple[Expectation, ...] = ()
    grad: bool | UnsetType = UNSET
    """Present where the run kept what gradients need."""
    peak: Peak | UnsetType = UNSET
    """Present where the run's memory was foretold: at large sizes, and with gradients."""

    @property
    def found_something(self) -> bool:
        """Whether the code failed, an expectation doesn't hold, or one of the source's own annotations is wrong."""
        wrong = any(
            output.tensor.declared and not output.tensor.checked for step in self.steps for output in step.outputs
        )
        return self.failure is not None or wrong or not all(e.holds for e in self.expectations)

    def step(self, index: int) -> Step:
        """Return the step of that index, counted from 1.

        >>> import attnshape
        >>> attnshape.trace("scaled-dot-product").step(1).expression
        'key.transpose(-2, -1)'
        """
        return self.steps[index - 1]

    @property
    def composites(self) -> frozenset[int]:
        """The indices of the steps that have inner steps."""
        return frozenset(step.parent for step in self.steps if step.parent is not None)

    def to_json(self) -> str:
        """Return the trace as JSON, which `attnshape show` and `from_json` read.

        >>> import attnshape
        >>> print(attnshape.trace("scaled-dot-product").to_json().splitlines()[1])
         "schema": "attnshape/trace/1",
        """
        from attnshape import schema

        return schema.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """Return the trace that `to_json` wrote. Raises AttnshapeError where the text is something else.

        >>> import attnshape
        >>> trace = attnshape.trace("scaled-dot-product")
        >>> attnshape.Trace.from_json(trace.to_json()) == trace
        True
        """
        from attnshape import schema

        return schema.from_json(text)

    # whoever looks at a trace, a console or a notebook, asks the trace itself; drawing is imported only then

    def __str__(self) -> str:
        from attnshape.render import display

        return display.text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from attnshape.render import display

        return display.page(self)

    def _repr_markdown_(self) -> str:
        from attnshape.render import display

        return display.document(self)
