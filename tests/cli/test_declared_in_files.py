"""What pyproject.toml declares for a target is used where a file or a folder stands for it."""

from pathlib import Path

import pytest

from tests.cli.running import Attnshape

CODE = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)
"""
DECLARED = """
[tool.attnshape.targets.mine]
target = "./model.py:Attention"
init = "D, H"
inputs = { x = "B 17 D" }
"""


@pytest.fixture(autouse=True)
def model(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text(DECLARED)
    (folder / "model.py").write_text(CODE)
    return folder


@pytest.mark.parametrize("place", [".", "model.py"])
def test_inputs_of_a_declared_target(attnshape: Attnshape, place: str) -> None:
    result = attnshape(f"trace {place}")
    assert "attnshape trace mine" in result.out
    assert "| `B 17 D`" in result.out


def test_each_name_of_a_target(attnshape: Attnshape, folder: Path) -> None:
    more = DECLARED.replace("mine", "other").replace("B 17 D", "B L D")
    (folder / "pyproject.toml").write_text(DECLARED + more)
    result = attnshape("check .")
    assert [name in result.out for name in ("| mine", "| other")] == [True, True]


def test_both_sides_of_a_comparison_have_what_is_declared(attnshape: Attnshape, folder: Path) -> None:
    (folder / "newer.py").write_text(CODE)
    for sides in ("model.py newer.py", "newer.py model.py"):
        result = attnshape(f"diff {sides}")
        assert "no difference" in result.out, sides
        assert "B=2, H=8, D=512" in result.out


def test_size_without_effect(attnshape: Attnshape) -> None:
    assert "nothing in the target depends on Lp" in attnshape("check mine --past 5").out
    assert "nothing in the target depends" not in attnshape("check mine").out
