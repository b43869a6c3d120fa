"""Explanations built by hand: one with every field that can hold a text."""

from __future__ import annotations

from attnshape.model.explanation import ArticleTable, Explanation, Grid, Measurement, Paragraph, Part, Section
from attnshape.model.trace import Trace
from tests.reporters import sample_traces


def every_text() -> Explanation:
    """Return an explanation that has every field that can hold a text."""
    trace = sample_traces.every_text()
    return explanation_of(trace, tuple(step.index for step in trace.steps))


def explanation_of(trace: Trace, steps: tuple[int, ...]) -> Explanation:
    """Return an explanation of a trace with one section, which is about these steps."""
    text = "x"
    paragraphs = (Paragraph("what", text), Paragraph("why", text), Paragraph("without", text), Paragraph("note", text))
    section = Section(
        topic=text,
        title=text,
        steps=steps,
        blocks=(*paragraphs, ArticleTable((text, text), ((text, text), (text, text))), Grid(text, (text, text))),
        measurements=(Measurement(name=text, value=1.0, text=text, basis="observed", how=text),),
    )
    part = Part(title=text, modules=(text,), paragraphs=(Paragraph("note", text),), sections=(section,))
    return Explanation(trace=trace, call=text, observed_at={text: 2}, introduction=part, parts=(part,), summary=part)
