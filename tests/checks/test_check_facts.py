"""The facts that `check` reports."""

import contextlib
from pathlib import Path

import pytest

from attnshape.options.claims import Claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request

CODE = """
import torch


def whole(x):
    return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x


def blocks(x):
    return whole(x.unflatten(1, (-1, 4))).flatten(1, 2)


def image(x):
    return whole(x.flatten(1, 2))


def of_tokens(B, L, D):
    return whole, (torch.randn(B, L, D),)


def of_blocks(B, L, D):
    return blocks, (torch.randn(B, 4 * L, D),)


def of_pixels(B, Lq, Lk, D):
    return image, (torch.randn(B, Lq, Lk, D),)
"""


@pytest.mark.parametrize(("case", "reported"), [("of_tokens", True), ("of_blocks", False), ("of_pixels", True)])
def test_full_attention_is_reported_unless_blocks_limit_it(tmp_path: Path, case: str, reported: bool) -> None:
    (tmp_path / "facts.py").write_text(CODE)
    request = TargetSpec(f"{tmp_path / 'facts.py'}:{case}")
    report = check_request(request, RunOptions(), Claims(), 300.0, contextlib.nullcontext)
    assert ("every query attends to every key" in [fact.text for fact in report.facts]) is reported
