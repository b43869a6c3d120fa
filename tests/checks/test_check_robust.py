"""Targets that are random, stateful or slow, that change their inputs, or that accept few sizes or dtypes."""

import contextlib
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from attnshape.errors import AttnshapeError
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.check import check_request
from attnshape.runtime import time_limit

ATTENTION = """
import math
import random
import time

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def prepared(self, x):
        return x

    def forward(self, x):
        x = self.prepared(x)
        q, k, v = (t.unflatten(-1, (self.H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def checked(
    folder: Path,
    prepared: str,
    limit: float = 300.0,
    claims: tuple[str, ...] = (),
    inputs: dict[str, str] | None = None,
    **sizes: int,
) -> Report:
    source = ATTENTION + textwrap.indent(textwrap.dedent(prepared).strip(), "    ").join(
        ["\n\nclass Target(Attention):\n", "\n"]
    )
    (folder / "code.py").write_text(source)
    request = TargetSpec(f"{folder}/code.py:Target", init="D, H", inputs={"x": "B L D"} | (inputs or {}), sizes=sizes)
    return check_request(request, RunOptions(), parse_claims(claims), limit, contextlib.nullcontext)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_plain_code_has_no_findings(tmp_path: Path) -> None:
    report = checked(tmp_path, "pass")
    assert codes(report) == []
    assert "scores, weights and contexts agree with an independent computation in float64" in report.verified
    assert report.dtype == "float64"


def test_unseeded_randomness_is_reported(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            return x + random.SystemRandom().random()
        """,
    )
    assert codes(report) == []
    assert [fact.text for fact in report.facts] == ["the result is random even with a fixed seed"]
    assert report.verified == ()
    assert [entry.what for entry in report.not_checked] == ["everything"]


def test_seeded_noise_is_a_fact(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            return x + torch.randn_like(x)
        """,
    )
    assert codes(report) == []
    assert any("randn_like depends on the seed" in fact.text for fact in report.facts)


def test_modified_input_is_the_only_finding(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            return x.mul_(2)
        """,
    )
    assert codes(report) == ["AS903"]


def test_float32_only_code_is_checked_in_float32(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            if x.dtype != torch.float32:
                raise TypeError("this kernel is for float32")
            return x
        """,
    )
    assert report.dtype == "float32"
    assert codes(report) == []
    assert "batch elements don't affect each other, whatever their order (varied: x)" in report.verified


def test_code_with_fixed_sizes_is_checked_at_those_sizes(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            if x.shape[1] != 24:
                raise ValueError("24 positions, no more and no less")
            return x
        """,
        L=24,
        D=20,
        H=4,
        B=3,
    )
    assert all(sizes["L"] == 24 for sizes in report.small_sizes)
    assert codes(report) == []
    assert "batch elements don't affect each other, whatever their order (varied: x)" in report.verified


def test_failing_code_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        AttnshapeError, match="the target fails, so that nothing can be checked: KeyError: 'a'"
    ) as error:
        checked(
            tmp_path,
            """
            def prepared(self, x):
                raise KeyError("a")
            """,
        )
    assert "attnshape trace" in str(error.value.hint)


def test_time_limit_keeps_partial_results(tmp_path: Path) -> None:
    started = time.monotonic()
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            time.sleep(0.15)
            return x
        """,
        limit=4.0,
    )
    assert time.monotonic() - started < 12
    assert "the time limit was reached" in {entry.why for entry in report.not_checked}
    assert codes(report) == []


def test_runs_that_all_take_too_long_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_DEFAULT_SECONDS", 0.2), ("_LEAST_SECONDS", 0.2), ("_FACTOR", 0.0)):
        monkeypatch.setattr(time_limit, name, value)
    report = checked(
        tmp_path,
        """
        def prepared(self, x):
            time.sleep(0.5)
            return x
        """,
    )
    assert ("everything", "the time limit was reached") in {(entry.what, entry.why) for entry in report.not_checked}


OPTIONAL = """
def forward(self, x, pad_mask=None, bias=None):
    return super().forward(x)
"""


def test_claim_about_an_argument_without_a_tensor_is_undecided(tmp_path: Path) -> None:
    report = checked(tmp_path, OPTIONAL, claims=("pad_mask=keep", "bias=bias"))
    assert {(entry.what, entry.why) for entry in report.undecided} == {
        ("the claim pad_mask=keep", "pad_mask is claimed, but no tensor is given for it"),
        ("the claim bias=bias", "bias is claimed, but no tensor is given for it"),
    }


def test_claim_about_no_argument_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(AttnshapeError) as raised:
        checked(tmp_path, OPTIONAL, claims=("mask=keep",))
    assert raised.value.message == 'claims=["mask=keep"]: the target has no argument mask'
    assert raised.value.hint == "did you mean pad_mask?"


ONLY_MASK = """
def forward(self, x, flags, padding):
    q, k, v = (t.unflatten(-1, (self.H, -1)).transpose(1, 2) for t in self.qkv(x * flags[:, :, None]).chunk(3, dim=-1))
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(padding[:, None, None], -1e9)
    return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("claim", "expected"), [("mask = drop", []), ("mask=keep", ["AS401"])])
def test_claim_about_mask_is_about_the_only_mask(tmp_path: Path, claim: str, expected: list[str]) -> None:
    inputs = {"flags": "B L", "padding": "bool B L"}
    report = checked(tmp_path, ONLY_MASK, claims=(claim,), inputs=inputs)
    assert (codes(report), report.claims) == (expected, (f"padding={claim.partition('=')[2].strip()}",))


def test_another_claim_beside_mask_still_needs_an_argument(tmp_path: Path) -> None:
    inputs = {"flags": "B L", "padding": "bool B L"}
    with pytest.raises(AttnshapeError, match="the target has no argument positions"):
        checked(tmp_path, ONLY_MASK, claims=("mask=drop", "positions=bias"), inputs=inputs)


def test_uninitialised_and_zero_parameters_hide_no_mistakes(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        """
        def __init__(self, D, H):
            super().__init__(D, H)
            nn.init.zeros_(self.out.weight)
            self.qkv.weight.data = torch.empty_like(self.qkv.weight).fill_(float("nan"))

        def prepared(self, x):
            return x - x.mean(0)
        """,
    )
    assert codes(report) == ["AS101"]


def test_scale_with_an_unknown_symbol_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttnshapeError, match="the target has no size Dz"):
        checked(tmp_path, "pass", claims=("scale=1/sqrt(Dz)",))


SIZES: list[dict[str, Any]] = [{"B": 1}, {"B": 2, "L": 5, "H": 3, "D": 12}, {"L": 64, "H": 2, "D": 16}]


@pytest.mark.parametrize("sizes", SIZES)
def test_given_sizes_need_not_be_small_or_distinct(tmp_path: Path, sizes: dict[str, int]) -> None:
    report = checked(tmp_path, "pass", **sizes)
    assert codes(report) == []
    assert report.verified


def test_large_sizes_are_never_run(tmp_path: Path) -> None:
    report = checked(tmp_path, "pass", L=1_000_000, D=4096, H=32)
    assert codes(report) == []
    assert report.verified
    assert all(max(sizes.values()) < 1000 for sizes in report.small_sizes)


def test_window_in_an_unknown_symbol_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AttnshapeError, match="the target has no size W"):
        checked(tmp_path, "pass", claims=("causal", "window=W"))
