"""Whole models: the number of runs doesn't grow with the layers, and what only some layers do is told of these."""

import contextlib
import re
from pathlib import Path

import pytest

from attnshape.model.report import Report
from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec, parse_dims
from attnshape.pipelines.check import check_request

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, odd):
        super().__init__()
        self.heads, self.odd, self.fused = heads, odd, False
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        batch, length, width = x.shape
        if self.odd == "split":
            return x.view(batch, length, width // self.heads, self.heads).permute(0, 3, 1, 2)
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.fused:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=self.odd != "mask")
        else:
            scale = width if self.odd == "scale" else width // self.heads
            kept = torch.ones(length, length, dtype=torch.bool).tril()
            if self.odd == "mask":
                kept = torch.ones_like(kept)
            if self.odd == "window":
                kept = kept.triu(-3)
            scores = (query * scale**-0.5 @ key.mT * (self.odd != "scores")).masked_fill(~kept, -torch.inf)
            context = scores.softmax(-1) @ value
        if self.odd == "merge":
            return self.out(context.reshape(batch, length, width))
        return self.out(context.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, odd):
        super().__init__()
        self.attn = Attention(width, heads, odd)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, width)
        self.odd = odd

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        if self.odd == "tokens":
            return x + (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return x + self.mlp(x).relu()


class Model(nn.Module):
    def __init__(self, width, heads, layers, odd="", fused=False, which=(2,)):
        super().__init__()
        self.h = nn.ModuleList([Block(width, heads, odd if layer in which else "") for layer in range(layers)])
        for block in self.h:
            block.attn.fused = fused

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x
"""


@pytest.fixture
def check(tmp_path: Path):
    """Return a function that checks the model with these arguments."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)

    def check(arguments: str, layers: int | None = None, **sizes: int) -> Report:
        own = parse_dims((f"N={layers}",)) if layers is not None else {}
        spec = TargetSpec(
            f"{path}:Model", init=f"D, H, {arguments}", inputs={"x": "B L D"}, sizes={"H": 4, "D": 32, **sizes, **own}
        )
        return check_request(spec, RunOptions(), Claims(), 120.0, contextlib.nullcontext)

    return check


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MODEL.splitlines(), 1) if text in line)


def notices(report: Report) -> list[str]:
    """Return each notice with the layers that its evidence names."""
    return [finding.message + finding.evidence.partition("get weight")[2] for finding in report.findings]


@pytest.mark.parametrize("fused", [False, True])
def test_number_of_runs_does_not_grow_with_the_layers(check, fused: bool) -> None:
    reports = [check(f"{layers}, fused={fused}") for layers in (1, 5)]
    assert [[finding.code for finding in report.findings] for report in reports] == [["AS408"], ["AS408"]]
    assert reports[0].runs == reports[1].runs
    # the keys' biases, which change nothing, are named if there are few
    one, five = ([text for text in report.verified if "every parameter" not in text] for report in reports)
    assert one == five
    texts = [[fact.text for fact in report.facts] for report in reports]
    assert texts[1] == ["the same code attends in h.0.attn … h.4.attn", *texts[0]]


@pytest.mark.parametrize(("odd", "code"), [("merge", "AS114"), ("scale", "AS201")])
def test_every_layer_of_the_user_is_checked(check, odd: str, code: str) -> None:
    report = check(f"N, {odd!r}, which=(4,)", layers=5)
    assert [numbers["N"] for numbers in report.small_sizes] == [5, 5]
    assert [finding.code for finding in report.counting] == [code]


def test_layers_that_are_left_out_are_told(check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnshape.checks.interventions.small_sizes._MOST_WORK", 1)
    report = check("N, 'scale', which=(4,)", layers=5)
    assert [numbers["N"] for numbers in report.small_sizes] == [2]
    assert report.counting == ()
    (left_out,) = [gap for gap in report.not_checked if "N=" in gap.what]
    assert (left_out.what, left_out.why) == ("what comes beyond N=2", "runs with N=5 take too much work")
    assert not left_out.required


@pytest.mark.parametrize(
    ("odd", "code", "text"),
    [
        ("split", "AS112", "width // self.heads, self.heads).permute"),
        ("merge", "AS114", "return self.out(context.reshape"),
        ("scores", "AS801", "scores = "),
        ("scale", "AS201", "scores = "),
        ("tokens", "AS104", "x.mean(1, keepdim=True)"),
    ],
)
def test_mistake_of_one_layer_is_found(check, odd: str, code: str, text: str) -> None:
    report = check(f"4, {odd!r}")
    (finding,) = report.counting
    assert (finding.code, finding.source and finding.source.line) == (code, line_of(text))
    assert re.search(r"h\.2(\.attn)?$", finding.evidence), finding.evidence


def test_mistake_of_every_layer_is_one_finding(check) -> None:
    (finding,) = check("4, 'merge', which=range(4)").counting
    assert finding.code == "AS114"


@pytest.mark.parametrize("fused", [False, True])
def test_layer_that_sees_every_key_is_named(check, fused: bool) -> None:
    report = check(f"4, 'mask', fused={fused}")
    texts = [fact.text for fact in report.facts]
    assert "every query attends to every key (h.2.attn)" in texts
    assert notices(report) == ["queries attend causally, which nothing claims, in h.0.attn, h.1.attn, h.3.attn"]
    assert "scores are scaled by 1/sqrt(Dk)" in texts


def test_windows_in_every_other_layer_are_named(check) -> None:
    assert notices(check("6, 'window', which=(1, 3, 5)")) == [
        "queries attend causally, which nothing claims, in h.0.attn, h.2.attn, h.4.attn",
        "queries attend to a causal window of 4 keys, which nothing claims, in h.1.attn, h.3.attn, h.5.attn",
    ]
