"""What annotating a file came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnshape.annotate.changes import Change, LeftOut, Place
from attnshape.annotate.passed_over import numbers
from attnshape.annotate.source import Source
from attnshape.annotate.styles import Rewritten
from attnshape.report import Finding


@dataclass(frozen=True)
class Annotated:
    """A file with what is written into it."""

    source: Source
    style: str
    rewritten: Rewritten
    left_out: tuple[LeftOut, ...] = ()
    proved_at: tuple[str, ...] = ()
    """The sizes at which what is written was run and checked; none where nothing is written."""
    same_bits: bool = True
    """Whether the results could be compared; those of some code differ from run to run by themselves."""
    findings: tuple[Finding, ...] = ()
    """What the source says of shapes already, and isn't what was measured."""

    @property
    def changes(self) -> Sequence[Change]:
        """What is written, place by place."""
        return self.rewritten.made.changes

    @property
    def unpacked(self) -> Sequence[Place]:
        """Tensors that get no annotation, since they are bound together with others; comments have room for them."""
        return () if self.style == "comment" else self.rewritten.made.unpacked

    @property
    def numbers(self) -> Sequence[str]:
        """What is to be said of the numbers that are written."""
        return list(numbers(self.changes))

    @property
    def files(self) -> list[tuple[Source, bytes]]:
        """Each file that changes, with its new contents."""
        return [(source, source.edited(edits)) for source, edits in self.rewritten.files]
