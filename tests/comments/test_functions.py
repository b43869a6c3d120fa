"""The functions whose documented shapes are checked."""

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


def test_only_functions_in_the_targets_package_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "site-packages", tmp_path / "more" / "site-packages"
    (first / "target_home").mkdir(parents=True)
    second.mkdir(parents=True)
    (first / "target_home" / "code.py").write_text(TARGET)
    (second / "beside_home.py").write_text("def hook(module, given):\n    return None\n")
    monkeypatch.syspath_prepend(second)
    options = RunOptions()
    sizes = [{"B": 2, "L": 3}]
    with isolated():
        target = find_target(TargetSpec(f"{first / 'target_home' / 'code.py'}:case"))
        (run,) = runs_at(target, sizes, options, TimeLimit())
        _, functions = observe_documented(target, sizes, options, TimeLimit())
    assert run.invocations[0].function.name == "hook"
    assert [first.name for first in functions] == ["Doubled.forward"]
