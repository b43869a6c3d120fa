"""Which functions have their documented shapes checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnshape.observation.watch import runs_at
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.comments import observe_documented
from attnshape.runtime.isolation import isolated
from attnshape.runtime.time_limit import TimeLimit
from attnshape.targets.find import find_target

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
    placement = RunOptions()
    sizes = [{"B": 2, "L": 3}]
    with isolated():
        target = find_target(TargetSpec(f"{one / 'target_home' / 'code.py'}:case"))
        (run,) = runs_at(target, sizes, placement, TimeLimit())
        _, functions = observe_documented(target, sizes, placement, TimeLimit())
    assert run.invocations[0].function.name == "hook"
    assert [one.name for one in functions] == ["Doubled.forward"]
