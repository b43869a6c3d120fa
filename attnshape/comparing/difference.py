"""The difference of two traces: an immutable value that every format of `attnshape diff` reads."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from attnshape.comparing.kinds import Kind
from attnshape.comparing.outline import OutlineStep, Result, Tensor, Totals

SCHEMA: Literal["attnshape/diff/1"] = "attnshape/diff/1"

Fact = Literal["signature", "shape", "stride", "storage", "dtype", "bytes"]
"""What can differ of a tensor; a shape that only follows from its signature and the sizes is of the kind `size`."""
StepFact = Literal["operation", "expression", "numbers", "uses", "operands", "turns", "moved", "outputs"]
"""What can differ of a step: `uses` are other operands, `expression` the same operation written differently,
`numbers` its call with other ones, such as softmax over another axis.

`operands` are ones that a step came in front of, or went from: that step counts, and this one is shown.
"""


class SizeChange(Struct, frozen=True):
    """A size that isn't the same on both sides; None where one side doesn't have it."""

    letter: str
    old: int | None
    new: int | None


class Rename(Struct, frozen=True):
    """A variable or an attribute, and what it is called now."""

    old: str
    new: str


class OutputChange(Struct, frozen=True, omit_defaults=True):
    """One output on both sides, and what differs; None where one side doesn't have it."""

    old: Tensor | None
    new: Tensor | None
    changed: tuple[Fact, ...] = ()


class StepChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step, or an input, on both sides; None on the side that doesn't have it."""

    old: OutlineStep | None
    new: OutlineStep | None
    changed: tuple[StepFact, ...] = ()
    outputs: tuple[OutputChange, ...] = ()
    kinds: tuple[Kind, ...] = ()

    @property
    def shown(self) -> bool:
        """Whether there is anything to show; what was only renamed isn't."""
        return bool(self.kinds or self.changed or any(one.changed for one in self.outputs))


class ResultChange(Struct, frozen=True):
    """What is returned in one place on both sides, where that is another tensor or another place.

    None on the side that returns nothing there.
    """

    old: Result | None
    new: Result | None


class Side(Struct, frozen=True):
    """One of the two traces: what was run, what it adds up to, and the expression at which it failed."""

    target: str
    totals: Totals
    sizes: dict[str, int]
    failure: str | None = None


class Difference(Struct, frozen=True, kw_only=True):
    """What differs between two traces, step by step.

    It is immutable, and shows itself as a table.

    >>> import attnshape
    >>> old = attnshape.trace("scaled-dot-product", Lk=10)
    >>> new = attnshape.trace("scaled-dot-product", Lk=20)
    >>> difference = attnshape.diff(old, new)
    >>> difference.kinds, difference.sizes[0]
    (('size',), SizeChange(letter='Lk', old=10, new=20))
    """

    schema: Literal["attnshape/diff/1"] = SCHEMA
    old: Side
    new: Side
    kinds: tuple[Kind, ...] = ()
    """Every kind that differs somewhere."""
    sizes: tuple[SizeChange, ...] = ()
    renamed: tuple[Rename, ...] = ()
    """What has only another name now, which is no difference."""
    inputs: tuple[StepChange, ...] = ()
    steps: tuple[StepChange, ...] = ()
    results: tuple[ResultChange, ...] = ()
    """What is returned otherwise than before."""

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def to_json(self) -> str:
        """Return the difference as indented JSON, schema `attnshape/diff/1`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    # as a trace does, a difference shows itself where it is looked at; drawing is imported only then

    def __str__(self) -> str:
        from attnshape.render import diff_display

        return diff_display.text(self)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        from attnshape.render import diff_display

        return diff_display.document(self)
