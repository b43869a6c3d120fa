"""Fused attention: one call that never shows its scores, and what it saves."""

from __future__ import annotations

from msgspec import UNSET

from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.formatting import format_bytes


def fused(attention: Attention) -> Section | None:
    """Explain a call that computes scores, weights and context at once."""
    if not attention.traced.is_fused:
        return None
    step = attention.context
    text = SectionWriter("fused", "Attend, in one fused call", (step,))
    text.what(
        f"{code_of(step)} computes the scores, their softmax and the weighted sum of the values in one call, and gives "
        f"`{step.outputs[0].tensor.signature}`."
    )
    if step.avoided is not UNSET:
        size = text.computed(
            "bytes of the scores",
            step.avoided.bytes,
            "bytes of one number times the number of scores",
            format_bytes(step.avoided.bytes),
        )
        text.why(
            f"Its scores would be `{step.avoided.signature}`, {size}. They are never a tensor that the code could "
            "see: a fused kernel works on a block of queries and keys at a time."
        )
    return text.section()
