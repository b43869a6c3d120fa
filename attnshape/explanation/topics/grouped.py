"""Grouped heads: several query heads share one head of keys and values."""

from __future__ import annotations

from math import prod

from attnshape.explanation.attention import Attention, codes_of, given_records
from attnshape.explanation.sentences import GROUPED_HEADS, HEADS, AxisSize, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.trace import Step
from attnshape.tracing import operations as ops


def grouped(attention: Attention) -> Section | None:
    """Explain axes of heads that queries have and keys lack, as their product shows."""
    repeats = [step for step in attention.of("operands", "heads") if _repeated_heads(attention, step) is not None]
    if repeats:
        return _of_repeats(attention, repeats)
    axes, scores = attention.score_axes, attention.scores
    if axes is None or scores is None or len(scores.compared) < 1 or scores.compared[0].product is None:
        return None
    compared, query = scores.compared[0].product, scores.compared[0].place
    own = [
        axis
        for place, axis in enumerate(axes)
        if place in compared.free(query) and axis[0] in GROUPED_HEADS and axis[1] > 1
    ]
    shared = [axis for place, axis in enumerate(axes) if place in compared.shared and axis[0] in GROUPED_HEADS]
    if not own:
        return None
    text = SectionWriter("grouped", "Share keys and values among heads")
    heads = prod(size for _, size in (*own, *shared))
    count = text.counted("query heads", heads, " × ".join(f"`{axis}`" for axis, _ in (*shared, *own)))
    keys = f"{' × '.join(map(axis_label, shared))} heads" if shared else "a single head"
    text.what(
        f"Keys have {keys}, and queries {count}: each head of keys and values serves "
        f"{' × '.join(map(axis_label, own))} query heads, which have scores and weights of their own."
    )
    fewer = text.counted("how many times fewer keys", prod(size for _, size in own), "query heads / key heads")
    text.why(
        "A decoder keeps the keys and values of all earlier tokens. These take "
        f"{fewer} times less memory than if each query head had keys and values of its own."
    )
    return text.section()


def _repeated_heads(attention: Attention, step: Step) -> tuple[AxisSize, AxisSize] | None:
    """Return the axis of heads before and after a step that repeats them; None if it does something else."""
    given = given_records(attention.trace, step)
    if ops.base_name(step.operation) not in ops.REPEATS or not given or given[0] is None:
        return None
    before, after = tensor_axes(given[0].tensor), tensor_axes(step.outputs[0].tensor)
    changed = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]
    if len(before) != len(after) or len(changed) != 1:
        return None
    return changed[0] if changed[0][0][0] in HEADS and changed[0][1][0] in HEADS else None


def _of_repeats(attention: Attention, repeats: list[Step]) -> Section | None:
    """Explain heads of keys and values that are copied for each query head that uses them."""
    found = _repeated_heads(attention, repeats[0])
    assert found is not None
    few, many = found
    text = SectionWriter("grouped", "Share keys and values among heads", repeats)
    count = text.counted("query heads of one key head", many[1] // few[1], f"`{many[0]}/{few[0]}`")
    text.what(
        f"{codes_of(repeats)} {'copy' if len(repeats) > 1 else 'copies'} {axis_label(few)} heads {count} times, to "
        f"{axis_label(many)}: {count} query heads use the same keys and values."
    )
    text.why(
        "A decoder keeps the keys and values of all earlier tokens. Before the copies these take "
        f"{count} times less memory than if each query head had keys and values of its own."
    )
    return text.section()
