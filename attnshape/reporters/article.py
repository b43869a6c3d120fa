"""What every format shows of an explanation: numbered sections, their lines of source, and the rows of their steps.

The texts have no control characters left; what stands between backticks in them is code, and a format escapes only its
own syntax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnshape.model.explanation import ArticleTable, Explanation, Grid, Paragraph, Part, Purpose, Section
from attnshape.model.trace import Step, TensorRecord, Trace, loops_by_step
from attnshape.reporters.escaping import visible, visible_characters
from attnshape.reporters.labels import shape_label, step_label, storage_label
from attnshape.runtime.files import ReadLines

_LABELS: Mapping[Purpose, str] = {"what": "", "why": "Why.", "without": "Without it.", "note": ""}
"""The words before a paragraph that say what it is for."""
_WIDEST = 200
"""How many characters of a line of source are shown."""
_MOST_LINES = 60
"""How many lines of source a section shows."""


@dataclass(frozen=True)
class ArticleLines:
    """Lines of source in a row, without the indentation that they share."""

    place: str
    """The file and its lines: `model.py:31-33`."""
    lines: tuple[str, ...]


@dataclass(frozen=True)
class StepRow:
    """A row of a section's table: a step, or one result of a step that has several."""

    number: str
    step: str
    signature: str
    shape: str
    storage: str


@dataclass(frozen=True)
class LabelledText:
    """A paragraph, and the words before it that say what it is for; none where the paragraph before has the same."""

    label: str
    text: str


ROW_NAMES = ("#", "step", "signature", "shape", "storage")


@dataclass(frozen=True)
class ArticleSection:
    """A section as formats show it."""

    number: str
    title: str
    source: tuple[ArticleLines, ...]
    rows: tuple[StepRow, ...]
    blocks: tuple[LabelledText | ArticleTable | Grid, ...]


@dataclass(frozen=True)
class ArticlePart:
    """A part as formats show it: its own paragraphs, then its sections."""

    title: str
    paragraphs: tuple[str, ...]
    sections: tuple[ArticleSection, ...]


@dataclass(frozen=True)
class Article:
    """An explanation as formats show it."""

    title: str
    command: str
    parts: tuple[ArticlePart, ...]


def article(explanation: Explanation, read_lines: ReadLines) -> Article:
    """Return what formats show of an explanation, with the lines of source that `read_lines` returns."""
    trace = explanation.trace
    read = functools.cache(read_lines)
    parts = (explanation.introduction, *explanation.parts, explanation.summary)
    return Article(
        title=visible(f"{trace.target}, explained step by step"),
        command=visible(trace.command),
        parts=tuple(_part(explanation, number, part, read) for number, part in enumerate(parts, 1)),
    )


def _rows(explanation: Explanation, steps: Sequence[Step]) -> Iterator[StepRow]:
    """Yield the row of each step, and one for each result of a step that has several."""
    trace = explanation.trace
    shown, loops = {step.index for step in steps}, loops_by_step(trace.loops)
    for step in steps:
        label = step_label(trace, step, shown, loops.get(step.index, ()))
        if len(step.outputs) == 1:
            yield StepRow(str(step.index), label, *_cells(trace, step.outputs[0].tensor))
            continue
        yield StepRow(str(step.index), label, "", "", "")
        for output in step.outputs:
            yield StepRow("", visible(output.name or "a result"), *_cells(trace, output.tensor))


def _cells(trace: Trace, tensor: TensorRecord) -> tuple[str, str, str]:
    storage = storage_label(tensor.storage.kind, tensor.storage.of, tensor.bytes, trace.steps)
    return visible(tensor.signature) or "scalar", shape_label(tensor), storage


def _part(explanation: Explanation, number: int, part: Part, read: ReadLines) -> ArticlePart:
    sections = tuple(
        _section(explanation, f"{number}.{place}", section, read) for place, section in enumerate(part.sections, 1)
    )
    return ArticlePart(f"{number} {visible(part.title)}", tuple(visible(one.text) for one in part.paragraphs), sections)


def _section(explanation: Explanation, number: str, section: Section, read: ReadLines) -> ArticleSection:
    steps = [explanation.trace.step(index) for index in section.steps if 0 < index <= len(explanation.trace.steps)]
    return ArticleSection(
        number=number,
        title=visible(section.title),
        source=tuple(_source(steps, read)),
        rows=tuple(_rows(explanation, steps)),
        blocks=tuple(_blocks(section)),
    )


def _blocks(section: Section) -> Iterator[LabelledText | ArticleTable | Grid]:
    before: Purpose = "note"
    for block in section.blocks:
        if isinstance(block, Paragraph):
            yield LabelledText(_LABELS[block.purpose] if block.purpose != before else "", visible(block.text))
            before = block.purpose
        elif isinstance(block, Grid):
            yield Grid(visible(block.caption), tuple(map(visible, block.rows)))
        else:
            yield ArticleTable(
                tuple(map(visible, block.columns)), tuple(tuple(map(visible, row)) for row in block.rows)
            )
            before = "note"


def _source(steps: Sequence[Step], read: ReadLines) -> Iterator[ArticleLines]:
    """Yield the lines of steps, those next to each other together; nothing of a file that has changed since the run."""
    by_file: dict[str, set[int]] = {}
    for step in steps:
        source = step.source
        lines = read(source.file) if source is not None else ()
        if source is None or not 0 < source.line <= len(lines):
            continue
        parts = step.expression.splitlines() or [""]
        if lines[source.line - 1].startswith(parts[0].rstrip(), source.column - 1):
            by_file.setdefault(source.file, set()).update(range(source.line, source.line + len(parts)))
    for file, numbers in by_file.items():
        yield from _runs(file, sorted(numbers)[:_MOST_LINES], read(file))


def _runs(file: str, numbers: Sequence[int], lines: Sequence[str]) -> Iterator[ArticleLines]:
    start = 0
    for place in range(1, len(numbers) + 1):
        if place < len(numbers) and numbers[place] == numbers[place - 1] + 1:
            continue
        first, last = numbers[start], numbers[place - 1]
        raw = [line.rstrip().expandtabs(4)[:_WIDEST] for line in lines[first - 1 : last]]
        indent = min((len(line) - len(line.lstrip()) for line in raw if line.strip()), default=0)
        shown = tuple("".join(visible_characters(line[indent:])) for line in raw)
        yield ArticleLines(visible(f"{file}:{first}" + (f"-{last}" if last > first else "")), shown)
        start = place
