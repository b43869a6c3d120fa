"""Results for each pair of batch elements, as contrastive training compares them: there elements are meant to meet."""

import pytest
import torch

from attnshape.checks.rules import batch
from attnshape.checks.rules.protocol import Observation, Violation
from tests.checks.subjects import subject_of

INPUTS = {"x": "B Lq D", "y": "B Lk D"}


def pooled(t):
    return torch.nn.functional.normalize((t.mean(-1, keepdim=True).softmax(1) * t).sum(1), dim=-1)


def scores(x, y):
    return pooled(x) @ pooled(y).T / 0.05


def probabilities(x, y):
    return scores(x, y).softmax(-1), scores(x, y).log_softmax(0)


def late_interaction(x, y):
    return torch.einsum("ild,jmd->ijlm", x, y).amax(-1).sum(-1)


def beside_single_results(x, y):
    return scores(x, y), pooled(x)


def centred(x, y):
    return scores(x - x.mean(0), y)  # leaks: the mean of the batch


def attended(x, y):
    return scores(x, y).softmax(-1) @ pooled(y)  # leaks: attention over the batch


def with_a_leak_beside(x, y):
    return scores(x, y), pooled(x - x.mean(0))


@pytest.mark.parametrize("function", [scores, probabilities, late_interaction, beside_single_results])
def test_results_for_pairs_are_meant(function) -> None:
    outcomes = list(batch.check(subject_of(function, INPUTS, D=3)))
    assert [one for one in outcomes if isinstance(one, Violation)] == []
    observed = [one.text for one in outcomes if isinstance(one, Observation)]
    assert any("these two alone" in text or "pairs of them" in text for text in observed)


@pytest.mark.parametrize("function", [centred, attended, with_a_leak_beside])
def test_what_leaks_into_results_for_one_element_is_found(function) -> None:
    outcomes = list(batch.check(subject_of(function, INPUTS, D=3)))
    (found,) = (one for one in outcomes if isinstance(one, Violation))
    assert found.code in ("AS101", "AS102")
    assert ("mean" in found.message) == (function is not attended)
