"""`assert_shapes` passes if the signature holds at every size; otherwise it names the axis or the step."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnshape import AttnshapeError, assert_shapes


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Any:
    logits = query @ key.mT * scale
    if mask is not None:
        logits = logits.masked_fill(~mask, -1e9)
    weights = logits.softmax(-1)
    return weights @ value, weights


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.W(x)


QKV = "query: B H Lq Dk, key: B H Lk Dk, value: B H Lk Dv"


def test_right_signature_passes() -> None:
    assert_shapes(scores, "query: B Lq D, key: B Lk D -> B Lq Lk")
    assert_shapes(scores, "query: B Lq D, key: B Lk D -> B Lq Lk", B=3, Lq=4, Lk=5)
    assert_shapes(attention, f"{QKV} -> B H Lq Dv, B H Lq Lk")
    assert_shapes(attention, f"{QKV}, mask: bool B 1 Lq Lk -> B H Lq Dv, float B H Lq Lk", arguments={"scale": 0.5})
    assert_shapes(Attention, "x: B L D -> B L D", init="D")
    assert_shapes(Attention(64), "x: B L D -> B L D", D=64)
    assert_shapes(lambda x: (x.sum(), x > 0, x.argmax(-1)), "x: B L -> (), bool B L, int B")
    assert_shapes(functools.partial(scores, key=torch.ones(1, 3, 512)), "query: B L D -> B L 3")


@pytest.mark.parametrize(
    ("target", "signature", "message"),
    [
        (
            scores,
            "query: B Lq D, key: B Lk D -> B Lk Lq",
            "scores returns isn't 'B Lk Lq': axis 1 is Lq=10, expected Lk=16",
        ),
        (scores, "query: B Lq D, key: B Lk D -> B Lq", "isn't 'B Lq': it has 3 axes [2, 10, 16], expected 2"),
        (
            scores,
            "query: B Lq D, key: B Lk D -> B Lq Lk, B",
            "scores returns 1 tensor, expected 2: it returns 'B Lq Lk'",
        ),
        (attention, f"{QKV} -> B H Lq Dv", "returns 2 tensors, expected 1: it returns 'B H Lq Dv', 'B H Lq Lk'"),
        (attention, f"{QKV} -> B H Lq Dv, B H Lk Lq", "returns in place 1 isn't 'B H Lk Lq': axis 2 is Lq=10"),
        (scores, "query: B Lq D, key: B Lk D -> bool B Lq Lk", "isn't bool: its dtype is float32"),
        (scores, "query: B Lq D, key: B Lk D -> int B Lq Lk", "isn't int: its dtype is float32"),
        (lambda x: None, "x: B L -> B L", "returns 0 tensors, expected 1"),
    ],
)
def test_wrong_signature_names_the_axis(target: Any, signature: str, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_shapes(target, signature)


def test_accidentally_equal_axes_fail() -> None:
    # the shape is right at these sizes
    with pytest.raises(AssertionError, match=r"isn't 'B Lk Lq': axis 1 is .* \(seen at B=") as failed:
        assert_shapes(scores, "query: B Lq D, key: B Lk D -> B Lk Lq", Lq=12, Lk=12)
    assert "it is 'B Lq Lk', shape 2 12 12, at B=2, Lq=12, Lk=12, D=512" in str(failed.value)


def test_variable_named_output_is_not_the_result() -> None:
    def projected(x: Tensor) -> Tensor:
        output = x.unsqueeze(0)
        return output.sum(0) + output.shape[0]

    assert_shapes(projected, "x: B L -> B L")
    with pytest.raises(AssertionError, match=re.escape("isn't '1 B L'")):
        assert_shapes(projected, "x: B L -> 1 B L")


def test_exception_names_the_step() -> None:
    def crashing(query: Tensor, key: Tensor) -> Tensor:
        doubled = query * 2
        return doubled @ key

    with pytest.raises(AssertionError) as failed:
        assert_shapes(crashing, "query: B Lq D, key: B Lk D -> B Lq Lk")
    first, *others = str(failed.value).splitlines()
    assert "crashing fails at step 2, `doubled @ key` (" in first
    assert "the last axis of `doubled` is D=512, the second-to-last axis of `key` is Lk=16" in first
    assert any(line.startswith("hint: ") for line in others)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("query: B Lq D", "isn't 'inputs -> results'"),
        ("query: B Lq D ->", "isn't 'inputs -> results'"),
        ("query: B -> B -> B", "isn't 'inputs -> results'"),
        ("B Lq D -> B Lq D", "'B Lq D' in 'B Lq D -> B Lq D' isn't 'name: axes'"),
        ("query: B Lq D, query: B Lk D -> B", "gives query twice"),
        ("query: B Lq D, key: B Lk D -> B Lq,", "names no axes for a result"),
        ("query: B Lq D, key: B Lk D -> B Lq Lx", "Lx isn't a size symbol"),
        ("query: B Lq D, key: B Lk D -> B Lq Lp", "Lp isn't a size of this target"),
        ("query: B Lq D, key: B Lk D -> B Lq 3D", "isn't an axis expression"),
        ("query: B Lq D -> B Lq D", "key"),
        ("query: B Lq D, keys: B Lk D -> B Lq D", "keys"),
    ],
)
def test_invalid_signature_is_not_an_assertion_error(signature: str, message: str) -> None:
    with pytest.raises(AttnshapeError, match=re.escape(message)) as refused:
        assert_shapes(scores, signature)
    assert refused.value.hint
    assert not isinstance(refused.value, AssertionError)
