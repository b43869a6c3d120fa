"""The registry of topics, in the order of the article: one line a topic."""

from __future__ import annotations

from collections.abc import Callable

from attnshape.explanation.attention import Attention
from attnshape.explanation.topics.bias import bias
from attnshape.explanation.topics.cache import cache
from attnshape.explanation.topics.cap import cap
from attnshape.explanation.topics.context import context
from attnshape.explanation.topics.difference import difference
from attnshape.explanation.topics.dropout import dropout
from attnshape.explanation.topics.fused import fused
from attnshape.explanation.topics.grouped import grouped
from attnshape.explanation.topics.heads import heads
from attnshape.explanation.topics.mask import mask
from attnshape.explanation.topics.merge import merge
from attnshape.explanation.topics.operands import operands
from attnshape.explanation.topics.output import output
from attnshape.explanation.topics.positions import positions
from attnshape.explanation.topics.projections import projections
from attnshape.explanation.topics.scale import scale
from attnshape.explanation.topics.scores import scores
from attnshape.explanation.topics.sink import sink
from attnshape.explanation.topics.softmax import softmax
from attnshape.model.explanation import Section

Topic = Callable[[Attention], Section | None]
"""Says what it knows about one attention; None if it has nothing to say about this one."""

TOPICS: tuple[Topic, ...] = (
    projections,
    heads,
    grouped,
    positions,
    cache,
    operands,
    fused,
    scores,
    scale,
    cap,
    bias,
    mask,
    sink,
    softmax,
    difference,
    dropout,
    context,
    merge,
    output,
)
