"""The output projection: it lets every output feature depend on every head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.explanation.attention import Attention, code_of, data_place, given_records
from attnshape.explanation.sentences import HEADS, axis_label, tensor_axes
from attnshape.explanation.writing import SectionWriter
from attnshape.model.explanation import Section


def output(attention: Attention) -> Section | None:
    """Explain the projection after the heads are joined."""
    step, every = attention.first("output", "output"), attention.of("output")
    if step is None:
        return None
    text = SectionWriter("output", "Mix the heads: output projection", every)
    for one in every:
        vectors = given_records(attention.trace, one)[data_place(attention.trace, one)]
        if one is not step and vectors is not None:
            inner, outer = (tensor_axes(tensor)[-1] for tensor in (vectors.tensor, one.outputs[0].tensor))
            text.what(
                f"{code_of(one)} multiplies the vectors of each head by learned numbers first, from "
                f"{axis_label(inner)} to {axis_label(outer)} features; the heads stay apart."
            )
    given = next((one for one in given_records(attention.trace, step) if one is not None), None)
    if given is None or not given.tensor.shape:
        return None
    before, after = tensor_axes(given.tensor)[-1], tensor_axes(step.outputs[0].tensor)[-1]
    text.what(
        f"{code_of(step)} multiplies each token's vector by a learned matrix, from {axis_label(before)} to "
        f"{axis_label(after)}."
    )
    text.why(
        "Until here every feature belongs to one head. This product lets each feature of the result read all heads."
    )
    _observed(attention, text)
    return text.section()


def _observed(attention: Attention, text: SectionWriter) -> None:
    """Change one head of the context, and count the features that change before and after the projection."""
    step, core, values = attention.first("output", "output"), attention.core, attention.values
    call = values.call(step) if values is not None and step is not None else None
    record = attention.context.outputs[0].tensor
    heads = [place for place, axis in enumerate(record.axes) if axis.expression in HEADS]
    if step is None or call is None or core is None or values is None:
        return
    if not attention.joins_modules and (len(heads) != 1 or record.shape[heads[0]] < 2):
        return
    place = data_place(attention.trace, step)

    def first_head(value: Tensor) -> Tensor:
        changed = value.clone()
        # each iteration of a loop that joins modules is a head
        head = changed if attention.joins_modules else changed.select(heads[0], 0)
        head += torch.randn(head.shape, generator=torch.Generator().manual_seed(3)).to(head.dtype)
        return changed

    run = values.subject.experiment.run(Intervention(results={core.context: first_head}))
    if not run.follows(values.subject.base):
        return
    after = run.event(OutputRef(call.order))
    counts = [
        _changed(one, other)
        for one, other in ((call.operand_values[place], after.operand_values[place]), (call.values[0], after.values[0]))
    ]
    widths = [call.operand_values[place].shape[-1], call.values[0].shape[-1]]
    if not 0 < counts[0] < widths[0]:
        return
    before_, after_ = _texts(text, counts)
    every, whole = (
        text.counted(f"features {where} the projection", width, "size of the last axis")
        for where, width in zip(("before", "after"), widths, strict=True)
    )
    text.without(
        f"The results of the heads would stay apart. A change of the first head changes {before_} of {every} features "
        f"before this step, and {after_} of {whole} after it."
    )


def _changed(one: Tensor, other: Tensor) -> int:
    """Return how many features differ in any vector; what is computed from the same numbers is exactly the same."""
    same = torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    return int((~same).flatten(0, -2).any(0).sum())


def _texts(text: SectionWriter, counts: Sequence[int]) -> list[str]:
    return [
        text.observed(
            f"features that change {where} the projection", count, "where the first head's context is changed"
        )
        for where, count in zip(("before", "after"), counts, strict=True)
    ]
