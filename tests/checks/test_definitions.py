"""A finding names where the wrong number, option or constant is defined, and where the code uses it."""

import contextlib
from pathlib import Path

import pytest

from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

ATTENTION = """
import math

import torch
from torch import nn
from torch.nn import functional as F


class Base(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.heads = H
        self.qkv = nn.Linear(D, 3 * D)
        self.softmax = nn.Softmax(dim=-1)
        self.scale = (D // H) ** -0.5

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v).transpose(1, 2).reshape(B, L, D)


class Attribute(Base):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.factor = D**-0.5  # made

    def attend(self, q, k, v):
        scores = q @ k.mT
        scores = scores * self.factor  # used
        return scores.softmax(-1) @ v


class Inherited(Attribute):
    def attend(self, q, k, v):
        scores = self.factor * (q @ k.mT)  # used
        return self.softmax(scores) @ v


class Keyword(Attribute):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, scale=self.factor)  # used


class Variable(Base):
    def attend(self, q, k, v):
        width = q.shape[-1] * self.heads
        scale = math.sqrt(width)  # made
        scores = q @ k.mT / scale  # used
        return scores.softmax(-1) @ v


class InPlace(Attribute):
    def attend(self, q, k, v):
        scores = q @ k.mT
        scores *= self.factor  # used
        return scores.softmax(-1) @ v


class Literal(Base):
    def attend(self, q, k, v):
        scores = q @ k.mT
        scores = scores / math.sqrt(q.shape[-1] * self.heads)  # made
        return self.softmax(scores) @ v  # used


class Module(Base):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.weigh = nn.Softmax(dim=2)  # made

    def attend(self, q, k, v):
        scores = q @ k.mT * self.scale
        return self.weigh(scores) @ v  # used


class Option(Base):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.axis: int = 2  # made

    def attend(self, q, k, v):
        scores = q @ k.mT * self.scale
        return torch.softmax(scores, dim=self.axis) @ v  # used


class Buffer(Base):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.register_buffer("mask", torch.ones(64, 64).triu().bool())  # made

    def attend(self, q, k, v):
        scores = q @ k.mT * self.scale
        scores = scores.masked_fill(self.mask[: q.shape[2], : k.shape[2]], -1e9)  # used
        return self.softmax(scores) @ v


class Rearranged(Base):
    def attend(self, q, k, v):
        q = q.transpose(1, 2).reshape(v.shape)  # made
        q = q.contiguous()
        scores = q @ k.mT * self.scale  # used
        return self.softmax(scores) @ v
"""
CODES = {
    "Attribute": "AS201",
    "Inherited": "AS201",
    "Keyword": "AS201",
    "Variable": "AS201",
    "InPlace": "AS201",
    "Literal": "AS201",
    "Module": "AS301",
    "Option": "AS301",
    "Buffer": "AS502",
    "Rearranged": "AS111",
}


def _line(name: str, mark: str) -> int:
    """Return the first line after a class's header that has a mark, or the one of its base class `Attribute`."""
    lines = ATTENTION.splitlines()
    classes = [at for at, line in enumerate(lines) if line.startswith("class ")] + [len(lines)]
    for owner in (name, "Attribute"):
        start = next(at for at in classes if lines[at].startswith(f"class {owner}("))
        end = next(at for at in classes if at > start)
        for at in range(start, end):
            if lines[at].endswith(f"# {mark}"):
                return at + 1
    raise AssertionError(name)


@pytest.mark.parametrize("name", CODES)
def test_finding_names_where_the_mistake_is_made_and_used(name: str, tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    path.write_text(ATTENTION)
    spec = TargetSpec(f"{path}:{name}", init="D, H", inputs={"x": "B L D"})
    claims = parse_claims(["causal"] if name == "Buffer" else [])
    report = check_request(spec, RunOptions(), claims, 300.0, contextlib.nullcontext)
    [finding] = [finding for finding in report.findings if finding.level == "error"]
    assert finding.code == CODES[name]
    assert finding.source is not None
    assert finding.used is not None
    assert (finding.source.line, finding.used.line) == (_line(name, "made"), _line(name, "used"))
