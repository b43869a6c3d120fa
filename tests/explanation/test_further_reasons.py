"""Reasons of code with biases, caps, rotations, shared keys and fused attention, with their numbers computed again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from attnshape.model.explanation import Explanation
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.find import find_target
from tests.explanation.explained import (
    SOURCES,
    assert_numbers_are_measured,
    explained,
    explanation_of,
    section_of,
    text_of,
)

ROTARY = TargetSpec("examples/rotary.py:RotaryAttention", init="D, H", inputs={"x": "B L D"})
FUSED = TargetSpec("examples/sdpa.py:FlashSelfAttention", init="D, H", inputs={"x": "B L D"})
REPEATED = TargetSpec("examples/gqa.py:GroupedQueryAttention", init="D, H, Hkv", inputs={"x": "B L D"})


def numbers(explanation: Explanation, topic: str) -> dict[str, float]:
    section = section_of(explanation, topic)
    assert section is not None
    return {one.name: one.value if one.value is not None else math.nan for one in section.measurements}


def assert_close(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert math.isclose(found[name], value, rel_tol=2e-4, abs_tol=1e-7), (name, found[name], value)


@pytest.mark.parametrize("name", ["alibi", "softcap", "rotary-halves", "grouped-query", "relative-bias", "sinks"])
def test_every_number_in_the_text_is_a_measurement(name: str) -> None:
    assert_numbers_are_measured(explanation_of(TargetSpec(name)))


def test_bias_by_distance() -> None:
    explanation = explanation_of(TargetSpec("alibi"))
    target = find_target(TargetSpec("alibi"))
    run = target.build(target.sizes.numbers, RunOptions())
    module, x = run.function, run.args[0]
    query, key = (layer(x).detach().double().unflatten(-1, (8, -1)).transpose(1, 2) for layer in (module.Wq, module.Wk))
    place = torch.arange(10.0, dtype=torch.float64)
    slopes = 2.0 ** -torch.arange(1, 9).double()
    bias = -slopes.view(8, 1, 1) * (place.view(10, 1) - place)
    hidden = torch.ones(10, 10).triu(1).bool()
    scores = (query @ key.mT / 8).masked_fill(hidden, -math.inf)
    with_bias, without = ((scores + added).softmax(-1) for added in (bias, 0.0))
    visible = bias[:, ~hidden]
    assert_close(
        numbers(explanation, "bias"),
        {
            "missing axes in step 22": 1,
            "least number added": float(visible.min()),
            "largest number added": float(visible.max()),
            "weight that goes to other keys": float((with_bias - without).abs().sum(-1).mean() / 2),
        },
    )
    text = text_of(section_of(explanation, "bias"))
    assert "it has no axis for B" in text
    assert "whatever the inputs are" in text


def test_cap_of_the_scores() -> None:
    explanation = explanation_of(TargetSpec("softcap"))
    target = find_target(TargetSpec("softcap"))
    run = target.build(target.sizes.numbers, RunOptions())
    module, x = run.function, run.args[0]
    query, key = (layer(x).detach().double().unflatten(-1, (8, -1)).transpose(1, 2) for layer in (module.Wq, module.Wk))
    capped = 50 * torch.tanh(query @ key.mT / 8 / 50)
    visible = capped[..., torch.ones(10, 10).tril().bool()]
    expected = {"cap of the scores": 50.0, "largest score": float(visible.abs().max())}
    assert_close(numbers(explanation, "cap"), expected)
    assert "`query @ key.transpose(-2, -1) / math.sqrt(Dk)` divides the scores" in text_of(
        section_of(explanation, "scale")
    )


def test_rotation_of_queries_and_keys() -> None:
    explanation = explanation_of(ROTARY)
    assert_close(
        numbers(explanation, "positions"),
        {"distance of paired features": 32, "largest angle": 1.0, "smallest angle": 10_000.0 ** (-62 / 64)},
    )
    assert "depend on the distance between query and key alone" in text_of(section_of(explanation, "positions"))
    adjacent = text_of(section_of(explanation_of(TargetSpec("rotary-interleaved")), "positions"))
    assert "taken two by two" in adjacent
    assert section_of(explanation_of(TargetSpec("alibi")), "positions") is None


def test_rotation_of_some_features() -> None:
    explanation = explanation_of(TargetSpec("partial-rotary"))
    assert_close(
        numbers(explanation, "positions"),
        {
            "turned features": 32,
            "features that aren't turned": 64,
            "largest angle": 1.0,
            "smallest angle": 10_000.0 ** (-30 / 32),
        },
    )
    assert "Only 32 features" in text_of(section_of(explanation, "positions"))


def test_heads_that_share_keys() -> None:
    repeated = explanation_of(REPEATED)
    assert numbers(repeated, "grouped") == {"query heads of one key head": 2}
    assert "copy Hkv=4 heads 2 times, to H=8" in text_of(section_of(repeated, "grouped"))
    broadcast = explanation_of(TargetSpec("grouped-query"))
    assert numbers(broadcast, "grouped") == {"query heads": 8, "how many times fewer keys": 2}
    assert "Keys have Hkv=4 heads, and queries 8" in text_of(section_of(broadcast, "grouped"))
    assert section_of(explanation_of(TargetSpec("multi-head")), "grouped") is None


def test_fused_attention_has_the_reasons_of_what_is_inside() -> None:
    explanation = explanation_of(FUSED)
    topics = [section.topic for section in explanation.parts[0].sections]
    assert topics == ["projections", "heads", "fused", "scale", "mask", "merge", "output"]
    assert numbers(explanation, "fused") == {"bytes of the scores": 4 * 2 * 8 * 10 * 10}
    target = find_target(FUSED)
    run = target.build(target.sizes.numbers, RunOptions())
    module, x = run.function, run.kwargs["x"]
    query, key = (layer(x).detach().double().unflatten(-1, (8, -1)).transpose(1, 2) for layer in (module.Wq, module.Wk))
    raw = query @ key.mT
    hidden = torch.ones(10, 10).triu(1).bool()
    scale = numbers(explanation, "scale")
    assert math.isclose(scale["spread without the scale"], float(raw[..., ~hidden].std(correction=0)), rel_tol=1e-4)
    weights = (raw / 8).masked_fill(hidden, -math.inf).softmax(-1)
    assert math.isclose(
        scale["largest weight with the scale"], float(weights[..., 1:, :].amax(-1).mean()), rel_tol=1e-4
    )
    assert "scales the scores itself" in text_of(section_of(explanation, "scale"))
    best = weights[..., 1:, :].argmax(-1)
    differ = float((best != best[:, :1]).any(1).double().mean())
    assert math.isclose(numbers(explanation, "heads")["queries whose heads prefer different keys"], differ)


def test_a_rotation_that_is_not_by_distance_has_no_such_reason(tmp_path: Path) -> None:
    source = Path("examples/rotary.py").read_text()
    twice = source.replace("rotated_key = rotate(key, cos, sin)", _TWICE)
    assert twice != source
    (tmp_path / "twice.py").write_text(twice)
    spec = TargetSpec(f"{tmp_path}/twice.py:RotaryAttention", init="D, H", inputs={"x": "B L D"})
    explanation = explanation_of(spec)
    assert section_of(explanation, "positions") is None
    assert section_of(explanation, "operands") is not None


_TWICE = "rotated_key = rotate(key, (2 * angle).cos(), (2 * angle).sin())"


def test_operations_of_loops_count_every_iteration() -> None:
    heads = numbers(explained("list_of_heads"), "operations")
    assert heads["FLOPs of projections"] == 8 * 3 * 2 * 20 * 512 * 64
    assert heads["FLOPs of scores"] == 8 * 2 * 2 * 10 * 10 * 64
    assert heads["FLOPs of softmax and dropout"] == 8 * 5 * 200
    assert heads["FLOPs of output projection"] == 2 * 20 * 512 * 512


def test_parameters_that_are_zero_stay_zero(tmp_path: Path) -> None:
    source = (SOURCES / "list_of_heads.py").read_text()
    zero = source.replace("        self.value = ", "        nn.init.zeros_(self.query.weight)\n        self.value = ")
    (tmp_path / "zero.py").write_text(zero)
    spec = TargetSpec(f"{tmp_path}/zero.py:Head", init="D, Dk", inputs={"x": "B L D"})
    scale = numbers(explanation_of(spec), "scale")
    assert scale["spread without the scale"] == scale["spread with the scale"] == 0
    assert math.isclose(scale["factor of the scores"], 1 / 8, rel_tol=1e-4)


_ADDED_FIRST = """
import math

import torch
from torch import nn


class Projection(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) * 0.1), nn.Parameter(torch.randn(out))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.joint, self.out = heads, Projection(width, 3 * width), Projection(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.joint(x).chunk(3, -1))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))
"""


def test_projections_that_add_their_bias_first(tmp_path: Path) -> None:
    (tmp_path / "added_first.py").write_text(_ADDED_FIRST)
    spec = TargetSpec(f"{tmp_path}/added_first.py:Attention", init="D, H", inputs={"x": "B L D"})
    explanation = explanation_of(spec)
    projections = section_of(explanation, "projections")
    assert "from D=512 to 3*D=1536 features: the queries, keys and values" in text_of(projections)
    assert numbers(explanation, "projections")[f"parameters of step {projections.steps[0]}"] == 512 * 1536 + 1536
    output = numbers(explanation, "output")
    assert output["features that change before the projection"] == 64
    assert output["features that change after the projection"] == 512


def test_a_model_with_huge_parameters_is_not_built_to_be_observed(tmp_path: Path) -> None:
    source = (SOURCES / "list_of_heads.py").read_text()
    huge = source.replace(
        "        self.value = ", "        self.table = nn.Parameter(torch.empty(10**10, 10))\n        self.value = "
    )
    (tmp_path / "huge.py").write_text(huge)
    spec = TargetSpec(f"{tmp_path}/huge.py:Head", init="D, Dk", inputs={"x": "B L D"})
    explanation = explanation_of(spec, RunOptions(device="meta"))
    assert not explanation.observed_at
    assert "No numbers were observed" in explanation.introduction.paragraphs[0].text
    assert section_of(explanation, "scale") is None
    assert section_of(explanation, "softmax") is not None
