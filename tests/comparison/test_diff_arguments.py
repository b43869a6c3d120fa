"""A changed argument of a call is a difference, whatever its text; one that says the same in other words is none."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor, nn

import attnshape
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import outline
from attnshape.comparison.snapshot import read_snapshot, snapshot_of, write_snapshot
from attnshape.model.difference import ArgumentChange, Difference
from attnshape.reporters.labels import clip, clip_around

INPUTS = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dk"}


class Fused:
    """Attention whose options come from attributes, so that the text of the call never changes."""

    def __init__(self, **options: object) -> None:
        self.options = options

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)  # type: ignore[arg-type]


def difference(old: dict[str, object], new: dict[str, object], **sizes: int) -> Difference:
    before = attnshape.trace(Fused(**old), inputs=INPUTS)
    return attnshape.diff(before, attnshape.trace(Fused(**new), inputs=INPUTS, **sizes))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"is_causal": True}, {"is_causal": False}, [ArgumentChange("is_causal", "True", "False")]),
        ({"is_causal": True}, {}, [ArgumentChange("is_causal", "True", None)]),
        ({}, {"scale": 0.5}, [ArgumentChange("scale", None, "0.5")]),
        ({}, {"is_causal": False, "dropout_p": 0.0, "scale": None}, []),
        ({"scale": 0.125}, {"scale": 1 / 8}, []),
    ],
)
def test_value_from_a_variable(old: dict[str, object], new: dict[str, object], changes: list[ArgumentChange]) -> None:
    found = difference(old, new)
    assert [argument for step in found.steps for argument in step.arguments] == changes
    assert found.kinds == (("steps",) if changes else ())
    for change in changes:
        assert f"{change.name}={change.new or 'default'}" in str(found)


def test_other_sizes_are_no_other_arguments() -> None:
    def scaled(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5 * q.shape[-1]).softmax(-1)

    def literal(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / 8.0 * 64).softmax(2)

    inputs = {"q": "B Lq Dk", "k": "B Lk Dk"}
    small, large = (attnshape.trace(scaled, inputs=inputs, Dk=width) for width in (64, 16))
    changes = [argument for step in attnshape.diff(small, large).steps for argument in step.arguments]
    assert changes == []
    changes = [
        argument
        for step in attnshape.diff(small, attnshape.trace(literal, inputs=inputs)).steps
        for argument in step.arguments
    ]
    assert changes == []
    same_sizes = attnshape.diff(large, attnshape.trace(literal, inputs=inputs, Dk=16))
    root, width = (argument for step in same_sizes.steps for argument in step.arguments)
    assert (root.name, root.old, root.new) == ("other", "sqrt(Dk) = 4.0", "8.0")
    assert (width.name, width.old, width.new) == ("other", "Dk = 16", "64")


def test_dropout_of_a_module() -> None:
    old, new = (attnshape.trace(nn.Dropout(p), inputs={"input": "B L D"}) for p in (0.1, 0.2))
    found = attnshape.diff(old, new)
    assert [argument for step in found.steps for argument in step.arguments] == [ArgumentChange("p", "0.1", "0.2")]


def test_traces_without_arguments_are_compared_without_them() -> None:
    new = attnshape.trace(Fused(is_causal=True), inputs=INPUTS)
    steps = tuple(replace(step, arguments=UNSET) for step in new.steps)
    old = outline(replace(new, steps=steps))
    assert not old.holds_arguments
    assert not compare(old, outline(new))


def test_snapshots_hold_arguments() -> None:
    old, new = (attnshape.trace(Fused(is_causal=value), inputs=INPUTS) for value in (True, False))
    kept = read_snapshot(write_snapshot(snapshot_of(old)))
    assert not compare(kept, snapshot_of(old))
    assert [argument.new for step in compare(kept, snapshot_of(new)).steps for argument in step.arguments] == ["False"]


def test_a_long_call_is_shortened_around_what_changed() -> None:
    names = ", ".join(f"a_rather_long_argument_{number}" for number in range(8))
    old, new = (f"combine({names}, is_causal={value}, {names})" for value in (True, False))
    assert "is_causal=True" in clip_around(old, new)
    assert "is_causal=False" in clip_around(new, old)
    assert len(clip_around(old, new)) < 130 < len(old)
    assert clip(old) == clip_around(old, old)
    assert "is_causal=True" in clip(old)
