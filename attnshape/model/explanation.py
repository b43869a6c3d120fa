"""The explanation of attention code: an immutable article in sections, with every number that it states, and its trace.

Field by field this is the saved form, schema `attnshape/explanation/1`. Texts are plain; what stands between backticks
in them is code.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from attnshape.errors import ExitStatus
from attnshape.model.trace import Displayed, Trace

SCHEMA: Literal["attnshape/explanation/1"] = "attnshape/explanation/1"

Purpose = Literal["what", "why", "without", "note"]
"""What a paragraph says: what the code does, why, what would go wrong without it, or anything else."""
Basis = Literal["observed", "shape", "formula", "argument"]
"""What a number rests on: a run of the code, the shapes of its tensors, a formula in the sizes, or an argument."""


class Measurement(Struct, frozen=True, kw_only=True):
    """A number that the text states."""

    name: str
    """What is measured; a section has each name once."""
    value: float | None
    """None if it is infinite, which JSON can't express."""
    text: str
    """The number as the text has it."""
    basis: Basis
    how: str
    """How it is defined: in words, or as a formula in the sizes."""


class Paragraph(Struct, frozen=True, tag="paragraph", tag_field="kind"):
    """A paragraph of the article."""

    purpose: Purpose
    text: str


class ArticleTable(Struct, frozen=True, tag="table", tag_field="kind"):
    """A small table of the article; its cells are texts like those of paragraphs."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Grid(Struct, frozen=True, tag="grid", tag_field="kind"):
    """A picture of pairs of positions: which keys each query sees."""

    caption: str
    rows: tuple[str, ...]
    """A character for each key: `#` where the query at the row sees it, else `.`."""


class Section(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the article says about one stage of the code."""

    topic: str
    """The name of the topic that wrote it, such as `scale`."""
    title: str
    steps: tuple[int, ...] = ()
    """The indices of the trace's steps that it is about, in order."""
    blocks: tuple[Paragraph | ArticleTable | Grid, ...] = ()
    measurements: tuple[Measurement, ...] = ()


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sections about one attention, or about everything else."""

    title: str
    modules: tuple[str, ...] = ()
    """The paths of the modules that run these lines; of a loop the first and the last, as `layers.0 … layers.5`."""
    paragraphs: tuple[Paragraph, ...] = ()
    sections: tuple[Section, ...] = ()


class Explanation(Displayed, frozen=True, kw_only=True):
    """An article about attention code, made from one trace and from what was observed in runs of the code.

    It shows itself as Markdown, in a console, in `print` and in a notebook.
    """

    schema: Literal["attnshape/explanation/1"] = SCHEMA
    trace: Trace
    call: str
    """The call of the Python API that makes the trace."""
    observed_at: dict[str, int]
    """The sizes of the run in which numbers were observed; empty where none was."""
    introduction: Part
    parts: tuple[Part, ...]
    summary: Part
    """Parameters, operations, memory, and what of it grows with the length."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections, in order."""
        return tuple(section for part in (self.introduction, *self.parts, self.summary) for section in part.sections)

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a command with this explanation alone."""
        return self.trace.exit_status
