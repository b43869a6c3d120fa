"""What only intent can settle is a notice; the claim that its hint names verifies it, or makes it an error."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

CODE = """
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, D, H, G=1, causal=False, key="together", value="together", scale=None, split="after"):
        super().__init__()
        self.H, self.G, self.Dk, self.causal, self.scale = H, G, D // H, causal, scale
        self.key, self.value, self.split = key, value, split
        widths = ((self.Dk, self.Dk),) * 3 if split == "before" else ((D, D), (D, D // G), (D, D // G))
        self.q, self.k, self.v = (nn.Linear(*width) for width in widths)

    def heads(self, linear, x):
        if self.split == "before":
            return linear(x.unflatten(-1, (-1, self.Dk)))
        return linear(x).unflatten(-1, (-1, self.Dk))

    def repeat(self, x, order):
        return x.repeat(1, self.G, 1, 1) if order == "tiled" else x.repeat_interleave(self.G, 1)

    def forward(self, x):
        q, k, v = (self.heads(w, x).transpose(1, 2) for w in (self.q, self.k, self.v))
        k, v = self.repeat(k, self.key), self.repeat(v, self.value)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        return y.transpose(1, 2).flatten(2)


class Layers(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.layers = nn.Sequential(Attention(D, H), *[Attention(D, H)] * 2)

    def forward(self, x):
        return self.layers(x)


class Cross(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x, memory):
        return F.scaled_dot_product_attention(self.q(x), self.k(memory), self.v(x))


class Sum(nn.Module):
    def __init__(self, D, scale):
        super().__init__()
        self.q, self.k, self.v, self.r = (nn.Linear(D, D) for _ in range(4))
        self.scale = scale

    def forward(self, x):
        q = self.q(x)
        scores = q @ self.k(x).mT + q @ self.r(x).mT
        return (scores * (self.scale * x.size(-1)) ** -0.5).softmax(-1) @ self.v(x)


def rotate(x):
    angles = torch.arange(x.size(-2))[:, None] * 10000.0 ** (-torch.arange(0, x.size(-1), 2) / x.size(-1))
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def padded(q, k, v, padding):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~padding[:, None, None, :])


def rotated(q, k, v):
    return F.scaled_dot_product_attention(rotate(q), rotate(k), v)
"""
QKV = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dk"}
TILED = 'D, H, G, key="tiled", value="tiled"'


def checked(folder: Path, init: str, *claims: str, name: str = "Attention") -> Report:
    (folder / "code.py").write_text(CODE)
    inputs = {"rotated": QKV, "Cross": {"x": "B L D", "memory": "B L D"}}.get(name, {"x": "B L D"})
    spec = TargetSpec(f"{folder}/code.py:{name}", init=init or None, inputs=inputs)
    return check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)


NOTICES = [
    ("Attention", "D, H, causal=True", "AS408", "causal"),
    ("Attention", "D, H, scale=1.0", "AS204", "scale=1"),
    ("Attention", "D, H, scale=0.3", "AS207", "scale=0.3"),
    ("Attention", TILED, "AS601", "tiled-heads"),
    ("Attention", 'D, H, split="before"', "AS806", "shared-projection"),
    ("Layers", "D, H", "AS810", "shared-layers"),
    ("Cross", "D", "AS108", "separate-values"),
    ("Sum", "D, 3", "AS207", "scale=1/sqrt(3*Dk)"),
    ("rotated", "", "AS709", "rope=half"),
]


@pytest.mark.parametrize(("name", "init", "code", "claim"), NOTICES, ids=[f"{row[0]}-{row[3]}" for row in NOTICES])
def test_notice_names_the_claim_that_settles_it(name: str, init: str, code: str, claim: str, tmp_path: Path) -> None:
    report = checked(tmp_path, init, name=name)
    assert [(finding.code, finding.level) for finding in report.findings] == [(code, "notice")]
    assert report.exit_status == ExitStatus.FINE
    (named,) = re.findall(r"--claim (\S+?)(?:;|$)", report.findings[0].hint)
    assert named == claim
    settled = checked(tmp_path, init, claim, name=name)
    assert settled.findings == ()
    assert settled.undecided == ()


def test_notice_names_a_mask_that_no_claim_explains(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    inputs = {**QKV, "padding": "bool B L"}

    def report(*claims: str) -> Report:
        spec = TargetSpec(f"{tmp_path}/code.py:padded", inputs=inputs)
        return check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)

    (notice,) = report().findings
    assert (notice.code, notice.level) == ("AS408", "notice")
    assert notice.message == "padding hides keys, and no claim says which values do"
    assert report("padding=drop").findings == ()
    assert [(finding.code, finding.level) for finding in report("padding=keep").findings] == [("AS401", "error")]


@pytest.mark.parametrize("init", ["D, 1", "D, 2"])
def test_scale_of_as_many_products_as_are_added_is_no_notice(init: str, tmp_path: Path) -> None:
    assert checked(tmp_path, init, name="Sum").findings == ()


@pytest.mark.parametrize(
    ("init", "claims", "code"),
    [
        ('D, H, G, key="tiled"', (), "AS601"),
        ('D, H, G, value="tiled"', (), "AS601"),
        ('D, H, G, value="tiled"', ("tiled-heads",), "AS601"),
        ("D, H, G", ("tiled-heads",), "AS601"),
        ("D, H", ("shared-projection",), "AS806"),
        ("D, H", ("shared-layers",), "AS810"),
        ("D, H", ("separate-values",), "AS108"),
        ("D, H, scale=1.0", ("scale=1/sqrt(Dk)",), "AS204"),
        ("D, H", ("scale=1",), "AS207"),
    ],
)
def test_what_is_inconsistent_or_contradicts_a_claim_is_an_error(
    init: str, claims: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    report = checked(tmp_path, init, *claims)
    assert [(finding.code, finding.level) for finding in report.findings] == [(code, "error")]
    assert report.exit_status == ExitStatus.FOUND


def test_tiled_heads_without_shared_heads_are_undecided(tmp_path: Path) -> None:
    report = checked(tmp_path, "D, H", "tiled-heads")
    assert [one.what for one in report.undecided] == ["the claim tiled-heads"]
