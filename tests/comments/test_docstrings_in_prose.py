"""What a docstring says in prose: steps with arrows, alternatives, and conditions of a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Attnshape

CODE = """
import torch


def attend(q, k, v):
    \"\"\"{docstring}
    \"\"\"
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights.mean(1)


def case(B, H, Lq, Lk, Dk):
    return attend, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk))
"""
CACHED = """
import torch


def attend(q, k, v, cache={cache}):
    \"\"\"Attend.

    Args:
        q: (B, H, T, hs)
        k: (B, H, S, hs)
        cache: of shape (1, H, P, 2*hs)
    \"\"\"
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, cache


def case(B, H, Lq, Lk, Dk):
    return attend, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk))
"""
STEPS = """Attend.

    Shapes are (B, H, T, hs) for `q`.

    1. Scores: ``[B, H, T, hs] → [B*H, T, S]``.
    2. Weights: ``[B*H, T, S] → [B*H, T, S]``.
    3. Context: ``[B*H, T, S] → {last}``.
"""
SIDES = """Attend.

    Args:
        q: (B, H, T, hs)
        k: c(S) or r(S hs) or ({k})
        v: (B, H, S, hs) or (B, S, hs)
"""
RETURNS = """Attend.

    Args:
        q: (B, H, T, hs)
        k: (B, H, S, hs)

    Returns:
        context: of shape (B, H, T, hs)
        weights: of shape (B, H, T, S){condition}
"""


def findings(attnshape: Attnshape, docstring: str) -> list[tuple[str, str]]:
    Path("model.py").write_text(CODE.replace("{docstring}", docstring), encoding="utf-8")
    done = attnshape("check model.py:case --select AS0 --format json")
    assert done.err == ""
    return [(found["code"], found["message"].partition(",")[0]) for found in json.loads(done.out)["findings"]]


def test_steps_are_neither_arguments_nor_results(attnshape: Attnshape, folder: Path) -> None:
    assert findings(attnshape, STEPS.format(last="[B, H, T, hs]")) == []


@pytest.mark.parametrize(
    ("first", "last", "what"), [("B, ", "[B, H, T, hs]", "an argument is"), ("", "[B, T]", "the result is")]
)
def test_first_and_last_step_have_the_arguments_and_the_result(
    attnshape: Attnshape, folder: Path, first: str, last: str, what: str
) -> None:
    docstring = STEPS.format(last=last).replace("`[B, H, T, hs] →", f"`[{first}B, H, T, hs] →")
    found = findings(attnshape, docstring)
    assert [code for code, _ in found] == ["AS001"]
    assert found[0][1].startswith(what)


def test_alternative_that_is_not_understood_may_hold(attnshape: Attnshape, folder: Path) -> None:
    assert findings(attnshape, SIDES.format(k="B S hs S")) == []
    assert findings(attnshape, SIDES.format(k="B S hs S").replace("c(S) or r(S hs) or ", "")) != []


def test_result_that_a_condition_reduces(attnshape: Attnshape, folder: Path) -> None:
    condition = ",\n            averaged across heads if `average`."
    assert findings(attnshape, RETURNS.format(condition=condition)) == []
    assert [code for code, _ in findings(attnshape, RETURNS.format(condition=", of all heads"))] == ["AS001"]


@pytest.mark.parametrize("example", ["i.e.", "e.g.", "E. g.", "for instance,"])
def test_example_is_about_other_tensors(attnshape: Attnshape, folder: Path, example: str) -> None:
    docstring = """Attend to (B, H, S, hs).

    {example} attend(x) leads from (B, H, T, S, hs) -> (B, H, S, hs, T).

    Args:
        q: (B, H, T, hs), {example} (1, 8, T)
        k: (B, H, S, hs)
    """
    assert findings(attnshape, docstring.replace("{example}", example)) == []
    assert [code for code, _ in findings(attnshape, docstring.replace("{example}", ""))] != []


def test_run_of_axes_may_be_one_axis(attnshape: Attnshape, folder: Path) -> None:
    docstring = """Attend.

    Args:
        q: (B, H, d1, ..., q_dn, {width})
        k: (B, H, d1, ..., k_dn, hs)
        v: (B, H, d1, ..., k_dn, hs)
    """
    assert findings(attnshape, docstring.format(width="hs")) == []
    assert findings(attnshape, docstring.format(width="2*hs")) != []


@pytest.mark.parametrize(("sizes", "found"), [("0, 0, 0, 0", 0), ("2, 17, 23, 10", 1)])
def test_empty_tensor_stands_for_an_absent_one(attnshape: Attnshape, folder: Path, sizes: str, found: int) -> None:
    Path("model.py").write_text(CACHED.replace("{cache}", f"torch.zeros({sizes})"), encoding="utf-8")
    assert attnshape("check model.py:case --select AS0 --format json").out.count('"AS003"') == found
