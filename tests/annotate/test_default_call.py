"""Annotations hold for the call without the arguments that have a default, too."""

from pathlib import Path

import pytest

from attnshape.annotate.sandbox.attempt import explain_failure
from tests.annotate.running import annotated, request

HEAD = """from typing import Optional

import torch
from torch import Tensor, nn


def attend(x, keep):
    scores = x @ x.mT
    bias = None if keep is None else torch.zeros_like(scores).masked_fill(~keep, -torch.inf)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1) @ x


"""
TENSOR = 'Bool[Tensor, "L L"]'


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("mask=None", f"mask: {TENSOR} | None = None"),
        ("mask: Tensor | None = None", f"mask: {TENSOR} | None = None"),
        ("mask: Tensor = None", f"mask: {TENSOR} | None = None"),
        ("mask: Optional[Tensor] = None", f"mask: Optional[{TENSOR}] = None"),
        ("*, mask=None", f"mask: {TENSOR} | None = None"),
        ("mask: Tensor = torch.tensor(True)", "mask: Tensor = torch.tensor(True)"),
    ],
)
def test_parameter_with_a_default(parameter: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "masked.py"
    path.write_text(f"{HEAD}def f(x, {parameter}):\n    keep = mask\n    return attend(x, keep)\n")
    target = request(f"{path}:f", "--input 'x: B L D' --input 'mask: bool L L'")
    result = annotated([target], tmp_path)
    ((_, data),) = result.files
    text = data.decode()
    assert expected in text
    is_none = "None" in parameter
    assert (f"keep: {TENSOR} | None = mask" in text) == is_none
    assert (f'def attend(x: Float[Tensor, "B L D"], keep: {TENSOR} | None)' in text) == is_none
    assert ('bias: Float[Tensor, "B L L"] | None = None' in text) == is_none
    assert result.verified_at


def test_default_call_that_fails_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "masked.py"
    path.write_text("def f(x, mask=None):\n    kept = x.masked_fill(~mask, 0.0)\n    return kept\n")
    result = annotated([request(f"{path}:f", "--input 'x: L L' --input 'mask: bool L L'")], tmp_path)
    ((_, data),) = result.files
    assert 'mask: Bool[Tensor, "L L"] | None = None' in data.decode()
    assert 'kept: Float[Tensor, "L L"] = x' in data.decode()


def test_messages_are_not_cut_inside_a_value() -> None:
    details = ["Actual value:" + " f32[2,10,512](torch)" * 20, "Expected type: <class 'Bool[Tensor, 'n n']'>."]
    message = explain_failure(TypeError("\n".join(["First line.", *details])), ()).message
    assert message == f"TypeError: First line. {details[0]} {details[1]}"
    long = explain_failure(TypeError("\n".join(["First line.", *details * 9])), ()).message
    assert long.endswith((")", "."))
    assert len(long) < 700
    words = explain_failure(TypeError("word " * 1000), ()).message
    assert words.endswith(" word …")
