"""The merge: how the results of the heads come together again, and why a copy is needed where there is one."""

from __future__ import annotations

from math import prod

from attnshape.explanation.attention import Attention, code_of, given_records, what_it_does
from attnshape.explanation.memory_layout import can_view, memory_table
from attnshape.explanation.sentences import axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section
from attnshape.model.formatting import format_bytes, join_words
from attnshape.model.trace import Step, TensorRecord
from attnshape.tracing import operations as ops


def merge(attention: Attention) -> Section | None:
    """Explain the steps that place the results of the heads side by side."""
    steps = attention.of("merge")
    joins = ops.RESHAPES | ops.JOINS
    joining = next((one for one in steps if one.role == "merge" and ops.base_name(one.operation) in joins), None)
    if joining is None:
        return None
    text = SectionWriter("merge", "Bring the heads together", steps)
    _transpose(attention, text, joining)
    _copy(attention, text, joining)
    _join(attention, text, joining)
    return text.section()


def _record(attention: Attention, step: Step) -> TensorRecord | None:
    given = given_records(attention.trace, step)
    return given[0].tensor if given and given[0] is not None else None


def _transpose(attention: Attention, text: SectionWriter, joining: Step) -> None:
    turned = next((step for step in attention.of("merge") if step.role == "transpose"), None)
    before = _record(attention, turned) if turned is not None else None
    if turned is None or before is None:
        return
    old, new = tensor_axes(before), tensor_axes(turned.outputs[0].tensor)
    text.what(
        f"{code_of(turned)} brings each token's heads next to each other: `{before.signature}` becomes "
        f"`{turned.outputs[0].tensor.signature}`.",
        "Only the strides change." if turned.outputs[0].tensor.storage.kind == "view" else "",
    )
    if len(old) != 4 or new != [old[0], old[2], old[1], old[3]] or not before.contiguous:
        return
    head, tokens, width = old[1], old[2], old[3]
    joined = tensor_axes(joining.outputs[0].tensor)
    if joined != [old[0], tokens, (joined[-1][0], head[1] * width[1])] or head[1] < 2 or tokens[1] < head[1]:
        return
    last = text.counted("last token of the wrong row", head[1] - 1, f"`{head[0]}-1`")
    text.without(
        f"Joined as it is, `{before.signature}` gives the same shape and mixes up tokens: row 0 would hold what head 0 "
        f"found for the tokens 0 to {last}, and nothing of the other heads."
    )


def _copy(attention: Attention, text: SectionWriter, joining: Step) -> None:
    """Say why the numbers must be copied, where they are."""
    copy = next(
        (
            one
            for one in attention.of("merge")
            if ops.base_name(one.operation) == "contiguous" and one.outputs[0].tensor.storage.kind == "new"
        ),
        None,
    )
    is_own_copy = joining.outputs[0].tensor.storage.kind == "new" and ops.base_name(joining.operation) in ops.RESHAPES
    step = copy or (joining if is_own_copy else None)
    before = _record(attention, step) if step is not None else None
    if step is None or before is None or before.contiguous:
        return
    after = joining.outputs[0].tensor
    reason = _why_no_view(text, before, after)
    if not reason:
        return
    count = text.counted("copied numbers", prod(before.shape), f"`{before.signature}`")
    size = text.computed(
        "bytes of the copy",
        step.outputs[0].tensor.bytes,
        "numbers times bytes of one",
        format_bytes(step.outputs[0].tensor.bytes),
    )
    text.what(f"{code_of(step)} copies {count} numbers ({size}) into the order in which they are to be read.")
    memory_table(text, "before the copy", before)
    memory_table(text, "after the copy", step.outputs[0].tensor)
    text.why(reason)
    if (
        copy is not None
        and ops.base_name(joining.operation) in ("view", "view_as")
        and not can_view(before, after.shape)
    ):
        text.without(
            "Without the copy torch refuses this `view`, which never copies. `reshape` in its place would make the "
            "copy itself."
        )


def _why_no_view(text: SectionWriter, before: TensorRecord, after: TensorRecord) -> str:
    """Return which two axes can't be joined without a copy; empty if all can."""
    if len(before.shape) != len(after.shape) + 1 or can_view(before, after.shape):
        return ""
    place = next((at for at, size in enumerate(after.shape) if size != before.shape[at]), None)
    if place is None:
        return ""
    (outer, inner), axes = (place, place + 1), tensor_axes(before)
    wanted = before.shape[inner] * before.stride[inner]
    joins_two = [*before.shape[:place], before.shape[outer] * before.shape[inner], *before.shape[inner + 1 :]]
    if before.stride[outer] == wanted or joins_two != list(after.shape):
        return ""
    stride = text.counted("stride of the outer axis", before.stride[outer], f"`{before.strides[outer]}`")
    needed = text.counted(
        "stride that a view needs", wanted, f"`{axes[inner][0]}` times the stride of `{axes[inner][0]}`"
    )
    return (
        f"A view can join {axis_label(axes[outer])} and {axis_label(axes[inner])} only if one step along "
        f"`{axes[outer][0]}` skips as many numbers as all of `{axes[inner][0]}`: {needed}. Here it skips {stride} = "
        f"`{before.strides[outer]}`, as the numbers lie in memory in another order, and no single stride describes "
        "that."
    )


def _join(attention: Attention, text: SectionWriter, joining: Step) -> None:
    before, after = _record(attention, joining), joining.outputs[0].tensor
    if before is None:
        return
    if ops.base_name(joining.operation) in ops.JOINS:
        count = text.counted("joined tensors", len(joining.operands), "operands of the call")
        text.what(
            f"{code_of(joining)} places {count} results of `{before.signature}` side by side, along "
            f"{axis_label(tensor_axes(after)[-1])}, in storage of its own."
        )
        text.why("Each token is one vector again, and what each head found keeps features of its own.")
        return
    old, new = tensor_axes(before), tensor_axes(after)
    start = next((place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(new))
    end = len(old) - len(new) + start + 1
    joined = old[start:end]
    if start < len(new) and old[end:] == new[start + 1 :] and prod(size for _, size in joined) == new[start][1]:
        text.what(
            f"{code_of(joining)} joins {join_words(list(map(axis_label, joined)))} into one axis, "
            f"{axis_label(new[start])}."
        )
        if start == len(new) - 1:
            text.why("Each token is one vector again: what the heads found for it, side by side.")
    else:
        text.what(what_it_does(attention.trace, joining))
