"""The difference of two traces, or of two folders of traces: immutable data that every reporter reads."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from attnshape.model.behaviour import Topic
from attnshape.model.trace import Argument, Displayed, Reference, Saved, StorageKind

SCHEMA: Literal["attnshape/diff/1"] = "attnshape/diff/1"
FOLDERS_SCHEMA: Literal["attnshape/diffs/1"] = "attnshape/diffs/1"

Kind = Literal["size", "signature", "stride", "storage", "dtype", "steps", "behaviour"]
"""The kinds of difference that `--fail-on` names.

`steps` covers steps that were added, removed or moved, or that do something else, and a change of what is returned.
`behaviour` is what small runs show of who sees whom, of scales, and so on.
"""
KINDS: tuple[Kind, ...] = ("size", "signature", "stride", "storage", "dtype", "steps", "behaviour")
Fact = Literal["signature", "shape", "stride", "storage", "dtype", "bytes"]
"""A property of a tensor that can change; a shape that only follows from other sizes counts as kind `size`."""
StepFact = Literal["operation", "expression", "numbers", "arguments", "uses", "operands", "loops", "moved", "outputs"]
"""A property of a step that can change.

`uses`: it reads other tensors. `operands`: it reads the result of a step that was inserted before it, or no longer
reads one that was removed; this is shown, and the inserted step counts. `expression`: the same operation in other
words. `numbers`: the same call with other numbers in its text, such as softmax over another axis. `arguments`: an
argument that is no tensor has another value, whatever the text.
"""


class OutlineTensor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of an input or of a step's output that is compared; strides count elements."""

    name: str | None = None
    by_use: bool = False
    """Whether the name is a later consumer's variable rather than the one that the expression is assigned to."""
    dtype: str
    signature: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    stride_formulas: tuple[str, ...] = ()
    """Empty if the tensor is contiguous, since its strides follow from its shape."""
    contiguous: bool
    layout: str | UnsetType = UNSET
    kind: StorageKind
    of: Reference | None = None
    """The tensor that it is a view of, the same as, or a write to."""
    bytes: int = 0
    """New memory; 0 for an input and for a tensor that lies in another tensor's memory."""


class OutlineLoop(Struct, frozen=True):
    """A loop around a step: its number of iterations as an expression and in this run."""

    expression: str
    count: int


class OutlineStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a step that is compared. An input is a step with the number 0."""

    index: int
    parent: int | None = None
    expression: str
    """On one line, without `self.`."""
    operation: str
    """Its short name, the same for a function and for the method of that name."""
    uses: tuple[Reference, ...] = ()
    """Its operands that are inputs or outputs of steps."""
    arguments: tuple[Argument, ...] = ()
    """Its arguments that are no tensors."""
    loops: tuple[OutlineLoop, ...] = ()
    """The loops around it, the outermost first."""
    outputs: tuple[OutlineTensor, ...]


class OutlineResult(Struct, frozen=True):
    """A tensor that the code returned: `output`, or a path such as `output[0]`."""

    name: str
    of: Reference


class Totals(Struct, frozen=True):
    """The totals of a trace: steps, new memory in bytes, and views."""

    steps: int
    new_bytes: int
    views: int


class SizeChange(Struct, frozen=True):
    """A size symbol with different numbers on the two sides; None if one side doesn't have it."""

    symbol: str
    old: int | None
    new: int | None


class Rename(Struct, frozen=True):
    """A variable or an attribute, and its new name."""

    old: str
    new: str


class OutputChange(Struct, frozen=True, omit_defaults=True):
    """An output on both sides and what changed; None if one side doesn't have it."""

    old: OutlineTensor | None
    new: OutlineTensor | None
    changed: tuple[Fact, ...] = ()


class ArgumentChange(Struct, frozen=True):
    """An argument of a call with its value on both sides; None where it isn't given and has its default."""

    name: str
    old: str | None
    new: str | None


class StepChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step or an input on both sides; None on the side that doesn't have it."""

    old: OutlineStep | None
    new: OutlineStep | None
    changed: tuple[StepFact, ...] = ()
    arguments: tuple[ArgumentChange, ...] = ()
    """The arguments that differ."""
    outputs: tuple[OutputChange, ...] = ()
    kinds: tuple[Kind, ...] = ()

    @property
    def shown(self) -> bool:
        """Whether there is anything to show; a step that was only renamed isn't shown."""
        return bool(self.kinds or self.changed or any(output.changed for output in self.outputs))


class ResultChange(Struct, frozen=True):
    """A returned tensor that changed or moved to another place; None on the side that doesn't return it."""

    old: OutlineResult | None
    new: OutlineResult | None


class BehaviourChange(Struct, frozen=True, kw_only=True):
    """A topic on which two versions behave otherwise, with what holds on each side only."""

    topic: Topic
    old: tuple[str, ...]
    new: tuple[str, ...]


class BehaviourUnknown(Struct, frozen=True, kw_only=True):
    """A topic that could not be compared, with the reasons on each side."""

    topic: Topic
    old: tuple[str, ...]
    new: tuple[str, ...]


class BehaviourDifference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the behaviour of two versions differs, as small runs of both at the same sizes show."""

    sizes: dict[str, int] = {}
    changed: tuple[BehaviourChange, ...] = ()
    same: tuple[Topic, ...] = ()
    """The topics on which both versions say the same."""
    unknown: tuple[BehaviourUnknown, ...] = ()
    not_compared: str | None = None
    """Why nothing was compared."""


class Side(Struct, frozen=True):
    """One of the two traces: its target, totals and sizes, and the expression at which it failed."""

    target: str
    totals: Totals
    sizes: dict[str, int]
    failure: str | None = None


class Difference(Displayed, frozen=True, kw_only=True):
    """The difference of two traces, step by step. It is immutable, and its text is a table.

    >>> import attnshape
    >>> old = attnshape.trace("scaled-dot-product", Lk=10)
    >>> new = attnshape.trace("scaled-dot-product", Lk=20)
    >>> difference = attnshape.diff(old, new)
    >>> difference.kinds, difference.sizes[0]
    (('size',), SizeChange(symbol='Lk', old=10, new=20))
    """

    schema: Literal["attnshape/diff/1"] = SCHEMA
    old: Side
    new: Side
    kinds: tuple[Kind, ...] = ()
    """Every kind of difference that was found."""
    sizes: tuple[SizeChange, ...] = ()
    renamed: tuple[Rename, ...] = ()
    """Names that changed, which is not a difference."""
    inputs: tuple[StepChange, ...] = ()
    steps: tuple[StepChange, ...] = ()
    results: tuple[ResultChange, ...] = ()
    behaviour: BehaviourDifference = BehaviourDifference()

    def __bool__(self) -> bool:
        return bool(self.kinds)


class FileDifference(Struct, frozen=True):
    """The difference of the files of one name."""

    name: str
    difference: Difference


class NotCompared(Struct, frozen=True):
    """Files of one name that can't be compared, and why."""

    name: str
    reason: str


class FolderDifference(Saved, frozen=True, kw_only=True):
    """The difference of two folders of saved traces, file by file."""

    schema: Literal["attnshape/diffs/1"] = FOLDERS_SCHEMA
    old: str
    new: str
    files: tuple[FileDifference, ...] = ()
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind of difference in some file; a file that only one folder has counts as `steps`."""
        kinds: set[Kind] = {kind for file in self.files for kind in file.difference.kinds}
        if self.only_old or self.only_new:
            kinds.add("steps")
        return tuple(kind for kind in KINDS if kind in kinds)
