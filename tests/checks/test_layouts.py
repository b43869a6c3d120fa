"""Which vectors stay whole under layout operations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnshape.checks.attention.layouts import Factor, combined, factors, layouts
from attnshape.checks.attention.operands import operands
from attnshape.checks.rules.head_merge.followed import follow_contexts
from attnshape.checks.rules.head_split.scattered import Scattered, keeps_vectors
from tests.checks.subjects import subject_of

B, H, L, DK = 5, 7, 11, 3
WEIGHT = torch.randn(H * DK, H * DK, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def split(x: Tensor) -> Tensor:
    return (x @ WEIGHT).view(x.shape[0], -1, H, DK).transpose(1, 2)


def viewed(x: Tensor) -> Tensor:
    return (x @ WEIGHT).view(x.shape[0], H, -1, DK)


def folded(x: Tensor) -> Tensor:
    return split(x).reshape(-1, x.shape[1], DK)


def neighbours(x: Tensor) -> Tensor:
    """Each slot holds all features of three tokens."""
    t = (x @ WEIGHT)[:, :9].reshape(x.shape[0], 3, 3, H * DK)
    return t.reshape(x.shape[0], 3, H, 3 * DK).transpose(1, 2)


def channels(x: Tensor) -> Tensor:
    return (x @ WEIGHT).mT


@pytest.mark.parametrize(
    ("make", "expected"), [(split, True), (folded, True), (neighbours, True), (channels, None), (viewed, False)]
)
def test_features_of_a_token_stay_together(make: Callable[[Tensor], Tensor], expected: bool | None) -> None:
    subject = subject_of(lambda x: attend(make(x), make(x), make(x)), {"x": "B L D"}, B=B, H=H, L=L, D=H * DK)
    found = keeps_vectors(subject, operands(subject)[0])
    assert isinstance(found, Scattered) if expected is False else found is expected


def merged(x: Tensor) -> Tensor:
    return attend(split(x), split(x), split(x)).transpose(1, 2).flatten(2)


def channels_first(x: Tensor) -> Tensor:
    return attend(split(x), split(x), split(x)).mT.flatten(1, 2)


def interleaved(x: Tensor) -> Tensor:
    return attend(split(x), split(x), split(x)).permute(0, 2, 3, 1).flatten(2)


def mixed(x: Tensor) -> Tensor:
    return attend(split(x), split(x), split(x)).reshape(x.shape)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (merged, ["in order"]),
        (channels_first, ["in order"]),
        (interleaved, ["in another order"]),
        (mixed, ["scattered"]),
    ],
)
def test_merged_heads_are_followed(make: Callable[[Tensor], Tensor], expected: list[str]) -> None:
    subject = subject_of(make, {"x": "B L D"}, B=B, H=H, L=L, D=H * DK)
    followed = follow_contexts(subject, subject.attentions[0])
    assert [one.state if one is not None else None for one in followed] == expected


def test_heads_that_nothing_merges_are_not_judged() -> None:
    subject = subject_of(lambda x: attend(split(x), split(x), split(x)), {"x": "B L D"}, B=B, H=H, L=L, D=H * DK)
    assert list(follow_contexts(subject, subject.attentions[0])) == []


def test_a_sum_over_tokens_is_not_followed() -> None:
    subject = subject_of(lambda x: attend(split(x), split(x), split(x)), {"x": "B L D"}, B=B, H=H, L=L, D=H * DK)
    softmax = next(event for event in subject.base.events if event.name == "softmax")
    start = next(iter(operands(subject)[0].sources))
    assert layouts(subject).followed(start, softmax.refs[0]) is None


def test_parts_of_a_folded_axis() -> None:
    assert list(factors((6, 5), [0, 1], {5})) == [Factor(1, 5, 1)]
    assert list(factors((6,), [0], {3})) == [Factor(0, 3, 1), Factor(0, 3, 2)]
    assert combined((6,), [0], [Factor(0, 3, 2)]).tolist() == [0, 1, 0, 1, 0, 1]
    assert combined((6,), [0], [Factor(0, 3, 1)]).tolist() == [0, 0, 0, 1, 1, 1]
