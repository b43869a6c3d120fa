"""Writes a section of the article: sentences, tables, and each number that they state with where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attnshape.model.explanation import ArticleTable, Basis, Grid, Measurement, Paragraph, Purpose, Section
from attnshape.model.trace import Step

_LARGE = 1e7
"""Observed numbers from here on are shown in three digits, counts in full."""


def number_text(value: float) -> str:
    """Return a number in three digits, a whole one in full unless it is very large.

    >>> number_text(0.123456), number_text(1600.0), number_text(-1e9), number_text(-math.inf)
    ('0.123', '1,600', '-1e+09', '-inf')
    """
    if math.isfinite(value) and value == int(value) and abs(value) < _LARGE:
        return f"{int(value):,}"
    return f"{value:.3g}"


def equals(value: float) -> str:
    """Return the sign between a number as text and a formula that gives it: rounded numbers are only near it.

    >>> equals(0.125), equals(1 / 9)
    ('=', '≈')
    """
    return "=" if float(number_text(value).replace(",", "")) == value else "≈"


def percent_text(share: float) -> str:
    """Return a share in percent; one that is small, but not zero, isn't shown as zero.

    >>> percent_text(0.4512), percent_text(1.0), percent_text(0.0004), percent_text(0.9996)
    ('45%', '100%', 'less than 1%', 'more than 99%')
    """
    if 0 < share < 0.005:
        return "less than 1%"
    return "more than 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def quoted(text: str) -> str:
    """Return source text as code in a sentence.

    >>> quoted("self.Wq(x)")
    '`self.Wq(x)`'
    """
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


class SectionWriter:
    """Collects what a section says."""

    def __init__(self, topic: str, title: str, steps: Iterable[Step] = ()) -> None:
        """`steps` are those that the section is about."""
        self._topic, self._title = topic, title
        self._steps = tuple(step.index for step in steps)
        self._blocks: list[Paragraph | ArticleTable | Grid] = []
        self._measurements: dict[str, Measurement] = {}

    def what(self, *sentences: str) -> None:
        """Add a paragraph that says what the code does."""
        self._add("what", sentences)

    def why(self, *sentences: str) -> None:
        """Add a paragraph that says why."""
        self._add("why", sentences)

    def without(self, *sentences: str) -> None:
        """Add a paragraph that says what would go wrong without it."""
        self._add("without", sentences)

    def note(self, *sentences: str) -> None:
        """Add a paragraph that says anything else."""
        self._add("note", sentences)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table, if it has any rows."""
        table = ArticleTable(tuple(columns), tuple(tuple(row) for row in rows))
        if table.rows:
            self._blocks.append(table)

    def grid(self, caption: str, rows: Iterable[str]) -> None:
        """Add a picture of which keys each query sees, in the form of `Grid.rows`."""
        self._blocks.append(Grid(caption, tuple(rows)))

    def observed(self, name: str, value: float, how: str) -> str:
        """Return a number that a run of the code showed, as text."""
        return self._number(name, value, number_text(value), "observed", how)

    def observed_share(self, name: str, share: float, how: str) -> str:
        """Return a share that a run of the code showed, as text in percent."""
        return self._number(name, share, percent_text(share), "observed", how)

    def counted(self, name: str, value: int, how: str) -> str:
        """Return a number that follows from the shapes of this run, as text."""
        return self._number(name, value, f"{value:,}", "shape", how)

    def computed(self, name: str, value: float, formula: str, text: str = "") -> str:
        """Return a number that a formula gives at the sizes of this run, as text, by default a whole one in full."""
        shown = f"{value:,}" if isinstance(value, int) else number_text(value)
        return self._number(name, value, text or shown, "formula", formula)

    def argument(self, name: str, value: float, how: str) -> str:
        """Return a number that the code passes to a call, as text."""
        return self._number(name, value, number_text(value), "argument", how)

    def section(self) -> Section | None:
        """Return the section; None if nothing was said."""
        if not self._blocks:
            return None
        return Section(
            topic=self._topic,
            title=self._title,
            steps=self._steps,
            blocks=tuple(self._blocks),
            measurements=tuple(self._measurements.values()),
        )

    def _add(self, purpose: Purpose, sentences: Sequence[str]) -> None:
        text = " ".join(sentence for sentence in sentences if sentence)
        if text:
            self._blocks.append(Paragraph(purpose, text))

    def _number(self, name: str, value: float, text: str, basis: Basis, how: str) -> str:
        finite = value if math.isfinite(value) else None
        measurement = Measurement(name=name, value=finite, text=text, basis=basis, how=how)
        assert self._measurements.setdefault(name, measurement) == measurement  # one name means one number
        return text
