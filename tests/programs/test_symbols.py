"""Captured attention becomes a target, as the command line takes it."""

from __future__ import annotations

from attnshape.model.program import CapturedAttention, CapturedTensor
from attnshape.programs.symbols import describe_target


def test_scalars_are_written_as_python() -> None:
    captured = CapturedAttention(
        file="model.py",
        line=1,
        module="model",
        name="Attention",
        arguments={
            "x": CapturedTensor((2, 5, 8), "float32"),
            "num_items": CapturedTensor((), "int64", largest=12),
            "factor": CapturedTensor((), "float32"),
        },
    )
    spec = next(describe_target("model.py:Attention", captured))
    assert spec.arguments == {"num_items": "torch.tensor(12)", "factor": "torch.rand(())"}
    assert spec.inputs == {"x": "B L D"}
