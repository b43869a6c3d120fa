"""Targets in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Attnshape

TOML = """
[tool.attnshape.targets.cross]
target = "model_p.py:Cross"
init = "D, H"
input = ["q: B Lq D", "kv: B Lk D"]
with = { scale = "H**-0.5" }
heads = 3
d-model = 12
dtype = "float64"
expect = ["scores: B Lq Lk"]

[tool.attnshape.targets.ours]
target = "multi-head"
causal = true
padding = false
length = 5
mask-value = -1e4

[tool.attnshape.targets.letters]
target = "model_p.py:double"
input = "x: T C"
dim = { T = 4, C = "2*T" }
"""

MODEL = """
from torch import nn


class Cross(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        assert d % h == 0
        self.q = nn.Linear(d, d)

    def forward(self, q, kv, scale=1.0):
        scores = self.q(q) @ kv.mT * scale
        return scores


def double(x):
    doubled = x * 2
    return doubled
"""


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(TOML)
    (folder / "model_p.py").write_text(MODEL)


def test_named_target_has_all_its_options(attnshape: Attnshape):
    result = attnshape("trace cross --format json")
    assert result.status == 0, result.err
    trace = result.trace
    assert (trace["target"], trace["dtype"]) == ("model_p.py:Cross", "float64")
    assert {symbol: trace["sizes"][symbol]["size"] for symbol in ("H", "D")} == {"H": 3, "D": 12}
    assert [(expectation["name"], expectation["holds"]) for expectation in trace["expectations"]] == [("scores", True)]
    assert trace["command"] == "attnshape trace cross --format json"


def test_typed_flags_win(attnshape: Attnshape):
    line = "trace cross --heads 4 --batch 7 --dtype float32 --expect 'output: B Lk Lq' --format json"
    result = attnshape(line)
    assert result.status == 1
    assert {symbol: result.trace["sizes"][symbol]["size"] for symbol in "BHD"} == {"B": 7, "H": 4, "D": 12}
    assert result.trace["dtype"] == "float32"
    assert [(expectation["name"], expectation["holds"]) for expectation in result.trace["expectations"]] == [
        ("output", False)
    ]


def test_typed_inputs_replace_those_of_the_entry(attnshape: Attnshape):
    result = attnshape("trace letters --input 'x: C T C' --format json")
    assert result.tensors["doubled"]["shape"] == [8, 4, 8]


def test_switches_and_numeric_options(attnshape: Attnshape):
    result = attnshape("trace ours --format json")
    assert result.status == 0, result.err
    assert result.trace["sizes"]["L"]["size"] == 5
    assert "mask" in {step["role"] for step in result.trace["steps"]}
    assert "logits" in result.tensors


def test_dim_table(attnshape: Attnshape):
    tensor = attnshape("trace letters --format json").tensors["doubled"]
    assert tensor["shape"] == [4, 8]
    assert tensor["signature"] in ("T C", "T 2*T")


def test_named_targets_are_unknown_in_other_folders(
    attnshape: Attnshape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = attnshape("trace cross")
    assert result.status == 2
    assert "'cross'" in result.err
