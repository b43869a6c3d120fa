"""What else is done to queries, keys and values before their products, step by step as the trace knows it."""

from __future__ import annotations

from attnshape.explanation.attention import Attention
from attnshape.explanation.sentences import explain
from attnshape.explanation.topics.cache import cache
from attnshape.explanation.topics.grouped import grouped
from attnshape.explanation.topics.positions import positions
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section

_MOST = 40
"""How many steps are explained one by one."""


def operands(attention: Attention) -> Section | None:
    """List the steps between the projections and the products that belong to no other stage."""
    explained = [section for topic in (positions, grouped, cache) if (section := topic(attention)) is not None]
    steps = [step for step in attention.of("operands") if all(step.index not in one.steps for one in explained)]
    if not steps:
        return None
    text = SectionWriter("operands", "What else is done before the products", steps)
    text.table(("step", "what it does"), [(str(step.index), explain(attention.trace, step)) for step in steps[:_MOST]])
    return text.section()
