"""Of which package's functions the claims are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request
from attnshape.tracing.isolation import isolated
from attnshape.tracing.patience import Patience
from attnshape.variables.observe import runs_at
from attnshape.verifying import watched

TARGET = """
import torch
import beside_home


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2  # (B, T)


def case(B, L):
    made = Doubled()
    made.register_forward_pre_hook(beside_home.hook)
    return made, (torch.randn(B, L),)
"""


def test_it_is_that_of_the_target_whatever_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "site-packages", tmp_path / "more" / "site-packages"
    (one / "target_home").mkdir(parents=True)
    other.mkdir(parents=True)
    (one / "target_home" / "code.py").write_text(TARGET)
    (other / "beside_home.py").write_text("def hook(module, given):\n    return None\n")
    monkeypatch.syspath_prepend(other)
    placement = Placement(torch.device("cpu"), torch.float32, 0, train=False)
    sizes = [{"B": 2, "L": 3}]
    with isolated():
        target = find_target(Request(f"{one / 'target_home' / 'code.py'}:case"))
        (run,) = runs_at(target, sizes, placement, Patience())
        _, functions = watched(target, sizes, placement, Patience())
    assert run.invocations[0].function.name == "hook"
    assert [one.name for one in functions] == ["Doubled.forward"]
