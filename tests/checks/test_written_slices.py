"""Tensors that loops write to in parts: which of them are judged, and which aren't."""

import pytest
import torch
from torch import Tensor

from attnshape.checks.rules import unwritten
from attnshape.checks.rules.protocol import Violation
from tests.checks.subjects import subject_of


def by_mask(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for least in range(3):
        out[x > least] = 2.0
    return x + out


def by_index(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for least in range(3):
        out[(x > least).nonzero()[0, 0]] = 1.0
    return x + out


def whole(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for _ in range(3):
        out.copy_(x)
    return out


def padded(x: Tensor) -> Tensor:
    """There is room for whole slices, which is cut off again."""
    end = x.shape[1] - x.shape[1] % 4
    out = x.new_zeros(len(x), end + 2, x.shape[2])
    for start in range(0, end, 4):
        out[:, start : start + 4] = x[:, start : start + 4]
    return out[:, :end]


def in_whole_slices(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for start in range(0, x.shape[1] - 3, 4):
        out[:, start : start + 4] = x[:, start : start + 4]
    return 2 * out


@pytest.mark.parametrize("function", [by_mask, by_index, whole, padded])
def test_other_writes_are_not_judged(function):  # type: ignore[no-untyped-def]
    assert list(unwritten.check(subject_of(function, {"x": "B L D"}, B=5, L=11, D=6))) == []


def test_last_slice_is_missing() -> None:
    (found,) = unwritten.check(subject_of(in_whole_slices, {"x": "B L D"}, B=5, L=11, D=6))
    assert isinstance(found, Violation)
    assert "each of the last 3 indices of axis 1 (L = 11) is never written" in found.message
