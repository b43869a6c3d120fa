"""Reasons of sinks, additive, compressed and subtracted attention, and of a cache; their numbers computed again."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from attnshape.model.explanation import Explanation
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.find import find_target
from attnshape.tracing.runner import Runnable
from tests.explanation.explained import (
    SOURCES,
    assert_numbers_are_measured,
    explanation_of,
    section_of,
    text_of,
)

X = {"x": "B L D"}
SPECS = {
    "Drain": TargetSpec(f"{SOURCES}/kinds.py:Drain", init="D, H", inputs=X),
    "Pairs": TargetSpec(
        f"{SOURCES}/kinds.py:Pairs",
        init="P, Q, R",
        inputs={"s": "B Lq P", "h": "B Lk Q", "gone": "bool B Lk"},
        sizes={"P": 40, "Q": 48, "R": 32},
    ),
    "Compressed": TargetSpec(
        f"{SOURCES}/kinds.py:Compressed",
        init="D, H, Dk, Dr, Dc",
        inputs=X,
        sizes={"H": 4, "D": 96, "Dk": 16, "Dr": 8, "Dc": 20},
    ),
    "Contrast": TargetSpec(f"{SOURCES}/kinds.py:Contrast", init="D, H", inputs=X),
    "Step": TargetSpec(
        f"{SOURCES}/kinds.py:Step",
        init="D, H",
        inputs={"x": "B T D", "ck": "B Lp H D//H", "cv": "B Lp H D//H"},
        sizes={"T": 3},
    ),
}
TOPICS = {
    "Drain": ["projections", "heads", "scores", "scale", "mask", "sink", "softmax", "context", "merge"],
    "Pairs": ["projections", "operands", "scores", "mask", "softmax", "context", "further"],
    "Compressed": ["projections", "heads", "grouped", "positions", "scores", "scale", "softmax", "context"],
    "Contrast": ["projections", "heads", "scores", "scale", "softmax", "difference", "context", "merge"],
    "Step": ["projections", "heads", "cache", "scores", "scale", "mask", "softmax", "context", "merge"],
}


@cache
def explained(name: str) -> Explanation:
    return explanation_of(SPECS[name])


def built(name: str) -> Runnable:
    target = find_target(SPECS[name])
    return target.build(target.sizes.numbers, RunOptions())


def observed(name: str, topic: str) -> dict[str, float]:
    section = section_of(explained(name), topic)
    assert section is not None
    return {one.name: one.value for one in section.measurements if one.value is not None}


def assert_observed(name: str, topic: str, expected: dict[str, float]) -> None:
    found = observed(name, topic)
    for key, value in expected.items():
        assert math.isclose(found[key], float(value), rel_tol=2e-4, abs_tol=1e-7), (key, found[key], value)


def split(tensor: Tensor, heads: int) -> Tensor:
    return tensor.detach().double().unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("name", SPECS)
def test_sections(name: str) -> None:
    explanation = explained(name)
    assert [section.topic for section in explanation.parts[0].sections] == TOPICS[name]
    listed = [index for part in explanation.parts for section in part.sections for index in section.steps]
    assert sorted(listed) == [step.index for step in explanation.trace.steps]


@pytest.mark.parametrize("name", SPECS)
def test_every_number_in_the_text_is_a_measurement(name: str) -> None:
    assert_numbers_are_measured(explained(name))


def test_sink() -> None:
    run = built("Drain")
    module, x = run.function, run.kwargs["x"]
    query, key = (split(layer(x), 8) for layer in (module.a, module.b))
    hidden = torch.ones(10, 10).triu(1).bool().expand(2, 8, 10, 10)
    level = module.level.detach().double().expand(2, -1, 10, 1)

    def weights(scores: Tensor) -> Tensor:
        exponentials = scores.exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + level.exp())

    scores = query @ key.mT / 8
    visible = weights(scores.masked_fill(hidden, -math.inf))
    sums = visible.sum(-1)
    assert_observed(
        "Drain",
        "sink",
        {
            "scores of no key": 1,
            "least score of a sink": level.min(),
            "largest score of a sink": level.max(),
            "mean sum of the keys' weights": sums.mean(),
            "least sum of the keys' weights": sums.min(),
            "share of the sink": 1 - sums.mean(),
        },
    )
    rows, everything = hidden.any(-1), weights(scores).masked_fill(hidden, 0).sum(-1)
    assert_observed(
        "Drain",
        "mask",
        {
            "hidden pairs": hidden.double().mean(),
            "sum of the visible weights if masked afterwards": everything[rows].mean(),
            "least sum of the visible weights if masked afterwards": everything[rows].min(),
            "sum of the visible weights": sums[rows].mean(),
            "weight of hidden keys with a fill of 0": (
                weights(scores.masked_fill(hidden, 0)).masked_fill(~hidden, 0).sum(-1)[rows].mean()
            ),
        },
    )
    choice = (~hidden).sum(-1) > 1
    assert_observed(
        "Drain",
        "softmax",
        {
            "largest weight of a row": visible.amax(-1)[choice].mean(),
            "weight of a key if all were equal": (1 / ((~hidden).sum(-1) + 1.0))[choice].mean(),
        },
    )
    without = weights((8 * scores).masked_fill(hidden, -math.inf))
    assert_observed("Drain", "scale", {"largest weight without the scale": without.amax(-1)[choice].mean()})
    # with a sink a row without keys has weights of 0, not NaN
    assert "NaN" not in text_of(section_of(explained("Drain"), "mask"))
    assert "`torch.cat([level.expand(n, -1, t, 1), e], -1)` gives each query 1 more score" in text_of(
        section_of(explained("Drain"), "sink")
    )


def test_additive_scores() -> None:
    run = built("Pairs")
    module, (s, h, gone) = run.function.double(), run.kwargs.values()
    s, h = s.double(), h.double()
    with torch.no_grad():
        both = module.f(s)[:, :, None] + module.g(h)[:, None]
        scores, linear = (module.out(one)[..., 0] for one in (both.tanh(), both))
    hidden = gone[:, None].expand(scores.shape)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    left = scores.softmax(-1).masked_fill(hidden, 0).sum(-1)
    assert_observed("Pairs", "scores", {"scores": 2 * 10 * 16, "numbers of all pairs": both.numel()})
    assert_observed("Pairs", "scores", {"numbers of queries and keys": 2 * (10 + 16) * 32})
    assert_observed("Pairs", "mask", {"sum of the visible weights if masked afterwards": left.mean()})
    assert_observed("Pairs", "softmax", {"negative scores": (scores[~hidden] < 0).double().mean()})
    plain = (~hidden / (~hidden).sum(-1, keepdim=True)).double() @ h
    context = weights @ h
    distance = (context - plain).norm() / context.norm()
    assert_observed("Pairs", "context", {"distance from the plain average": distance})
    # as the article says: without the nonlinear function all queries have the same weights
    same = linear.masked_fill(hidden, -math.inf).softmax(-1)
    assert torch.allclose(same, same[:, :1].expand_as(same))
    assert "the softmax cancels it" in text_of(section_of(explained("Pairs"), "scores"))
    assert section_of(explained("Pairs"), "scale") is None


def test_scores_of_two_products() -> None:
    run = built("Compressed")
    module, x = run.function, run.kwargs["x"]
    with torch.no_grad():
        plain, turned = module.q(x).view(2, 10, 4, -1).transpose(1, 2).split([16, 8], -1)
        c, kr = module.down(x).split([20, 8], -1)
        wide = (plain.unsqueeze(-2) @ module.up.unsqueeze(1)).squeeze(-2)
    angle = torch.arange(10.0, dtype=torch.float64)[:, None] * 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)

    def turn(one: Tensor) -> Tensor:
        turned = torch.complex(*one.double().chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1)

    parts = [(wide.double(), c.double().unsqueeze(1)), (turn(turned), turn(kr).unsqueeze(1))]
    products = sum((query @ key.mT for query, key in parts), torch.zeros(()))
    variance = sum(query.shape[-1] * query.square().mean() * key.square().mean() for query, key in parts)
    assert_observed(
        "Compressed",
        "scale",
        {
            "factor of the scores": 24**-0.5,
            "spread without the scale": products.std(correction=0),
            "expected spread without the scale": variance**0.5,
            "largest weight with the scale": (products * 24**-0.5).softmax(-1).amax(-1).mean(),
        },
    )
    text = text_of(section_of(explained("Compressed"), "scores"))
    assert "is the sum of Dc+Dr=28 products" in text
    assert observed("Compressed", "scores")["products that are added"] == 2
    # the width over which queries were projected isn't that over which scores are summed
    assert "takes exactly that out" not in text_of(section_of(explained("Compressed"), "scale"))
    assert_observed(
        "Compressed",
        "positions",
        {
            "turned features": 8,
            "features that aren't turned": 20,
            "distance of paired features": 4,
            "largest angle": 1.0,
            "smallest angle": 10_000.0**-0.75,
        },
    )


def test_difference_of_weights() -> None:
    run = built("Contrast")
    module, x = run.function, run.kwargs["x"]
    query, key = (split(layer(x), 16) for layer in (module.wq, module.wk))
    scores = query @ key.mT
    one, other = (scores / math.sqrt(32)).softmax(-1).unflatten(1, (8, 2)).unbind(2)
    weights = one - 0.4 * other
    expected = {"negative weights": (weights < 0).double().mean(), "mean sum of a row of differences": 0.6}
    assert_observed("Contrast", "difference", expected)
    assert_observed("Contrast", "scale", {"spread without the scale": scores.std(correction=0)})
    assert_observed("Contrast", "context", {"weighted sums": 2 * 8 * 10})


def test_cache() -> None:
    text = text_of(section_of(explained("Step"), "cache"))
    assert "join the keys and values of T=3 new tokens to those of Lp=6 others" in text
    assert observed("Step", "cache") == {"tokens for each new one": 3.0}


def test_no_cache_without_one() -> None:
    assert section_of(explanation_of(TargetSpec("kv-cache")), "cache") is None
    assert section_of(explanation_of(TargetSpec("kv-cache:decode")), "cache") is not None


@pytest.mark.parametrize("name", ["sinks", "latent", "additive", "differential"])
def test_mechanisms_of_these_kinds(name: str) -> None:
    topics = [section.topic for section in explanation_of(TargetSpec(name)).parts[0].sections]
    own = {"sinks": "sink", "latent": "positions", "additive": "scores", "differential": "difference"}
    assert own[name] in topics
