"""How what is added to the scores of an attention reaches its softmax, entry by entry."""

from __future__ import annotations

from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.elementwise import ElementwiseMap, map_to_softmax
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef, Producer
from attnshape.inference.dataflow import numbers_read


def term_map(
    subject: Subject, visible: VisibleKeys, start: OutputRef, added: Tensor | float = 0.0
) -> ElementwiseMap | None:
    """Return how the scores depend on an earlier result, laid out as (B, H, queries, keys); None if that is unknown.

    `added` is what the call that returns the result adds by itself.
    """
    contexts = [core.context for core in subject.attentions]
    measured = map_to_softmax(subject.experiment, subject.graph, visible.core, contexts, start, added)
    return _laid_out(visible, measured) if measured is not None and measured.elementwise else None


def _laid_out(visible: VisibleKeys, measured: ElementwiseMap) -> ElementwiseMap | None:
    parts = [visible.laid_out(part) for part in (measured.factor, measured.added, measured.source)]
    factor, added, source = parts
    if factor is None or added is None or source is None:
        return None
    return ElementwiseMap(factor, added, source, measured.elementwise)


def product_map(subject: Subject, visible: VisibleKeys) -> ElementwiseMap | None:
    """Return how the scores depend on the product of queries and keys, laid out in the same way."""
    maps = (measured.scores_map for measured in subject.measured if measured.core is visible.core)
    measured = next(maps, None)
    return _laid_out(visible, measured) if measured is not None and measured.elementwise else None


def added_sources(visible: VisibleKeys) -> tuple[Producer, ...]:
    """Return the producers of the scores at the softmax, or of a fused attention's mask."""
    core = visible.core
    return core.sources("attn_mask") if isinstance(core, FusedCore) else core.softmax.sources


def behind(subject: Subject, sources: tuple[Producer, ...]) -> set[Producer]:
    """Return all results, inputs and parameters on whose numbers a tensor depends, with its own producers."""
    read = (own for event in subject.graph.upstream(sources) for own in numbers_read(event))
    return {*sources, *(producer for own in read for producer in own)}
