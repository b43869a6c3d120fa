"""Does a softmax over several axes that are flattened for it run over those of the keys alone, and not over the heads?

The attention maps of DETR's segmentation head (Carion et al. 2020, https://arxiv.org/abs/2005.12872, appendix) have two
axes of keys, rows and columns: `flatten(2)` of (B, queries, H, rows, columns) takes the heads along.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.cores import Softmax, softmaxes
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops


def check_flattened_heads(subject: Subject) -> Iterator[Violation]:
    """Yield a violation where the flattened axis of a softmax has an axis of heads in it."""
    for softmax in softmaxes(subject.graph):
        axes = _flattened(subject, softmax)
        heads = [size for size in axes if size in subject.head_sizes and size != subject.batch_size]
        if heads and len(axes) > 1:
            message = "the softmax runs over heads and keys together: the weights of each head don't sum to one"
            hint = "flatten the axes of the keys alone before the softmax"
            evidence = "followed the axis of the softmax to the axes that are flattened into it"
            yield Violation("AS301", message, softmax.ref, hint, evidence, "measured")
            return


def _flattened(subject: Subject, softmax: Softmax) -> list[int]:
    """Return the sizes of the axes that are flattened into the one of a softmax, and split again behind it."""
    if len(softmax.axes) != 1:
        return []
    (axis,) = softmax.axes
    shape = softmax.event.values[0].shape
    source = softmax.sources[-1] if softmax.sources else None
    if not isinstance(source, OutputRef) or subject.base.event(source).name not in ops.RESHAPES:
        return []
    before = subject.base.event(source).operand_values[0].shape
    readers = (event for event, _ in subject.graph.consumers.get(softmax.ref, ()))
    is_split_again = any(event.name in ops.RESHAPES and event.values[0].shape == before for event in readers)
    behind = len(shape) - axis - 1
    if not is_split_again or before[:axis] != shape[:axis] or before[len(before) - behind :] != shape[axis + 1 :]:
        return []
    return list(before[axis : len(before) - behind])
