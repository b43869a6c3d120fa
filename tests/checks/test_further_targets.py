"""Reports on targets with caches that are filled, videos, series, documents and other inputs of real code."""

import contextlib
from pathlib import Path

import pytest
import torch

from attnshape.checks.rules.protocol import Undecided
from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec, parse_dims
from attnshape.pipelines import check as pipeline
from attnshape.pipelines.check import check_request
from tests.checks.subjects import subject_of

CODE = """
import torch
import torch.nn.functional as F
from torch import nn


def attend(q, k, v, hidden):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


def filled(q, k, v, key_cache, value_cache):
    \"\"\"New keys and values are written behind those of the cache.\"\"\"
    past = key_cache.shape[2] - k.shape[2]
    key_cache[:, :, past:] = k
    value_cache[:, :, past:] = v
    later = torch.ones(q.shape[2], key_cache.shape[2], dtype=torch.bool).triu(past + 1)
    return attend(q, key_cache, value_cache, later)


def scaled_in_place(q, k, v, key_cache, value_cache):
    \"\"\"The whole cache is multiplied, which isn't filling it.\"\"\"
    key_cache *= 0.5
    return attend(q, torch.cat((key_cache, k), 2), torch.cat((value_cache, v), 2), torch.zeros((), dtype=torch.bool))


def written_everywhere(x, key_cache, lens):
    keys = key_cache.clone()
    keys[:, lens] = x  # at the places of all elements, not of each its own
    return attend(x, keys, keys, torch.zeros((), dtype=torch.bool))


class Grouped(nn.Module):
    def __init__(self, heads, groups, width):
        super().__init__()
        self.heads, self.groups = heads, groups
        self.q, self.kv = nn.Linear(heads * width, heads * width), nn.Linear(heads * width, 2 * groups * width)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.groups, -1)).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        angles = torch.outer(torch.arange(x.shape[1]), 100.0 ** -torch.arange(0, 1, 2 / q.shape[-1]))
        q, k = (self.turn(t, angles.cos().to(t), angles.sin().to(t)) for t in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Frames(nn.Module):
    \"\"\"One head attends to the pixels of each frame.\"\"\"

    def __init__(self, channels):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))

    def tokens(self, x):
        return x.transpose(1, 2).flatten(0, 1).flatten(2).mT

    def forward(self, x):
        tokens = self.tokens(x)
        weights = (self.q(tokens) @ self.k(tokens).mT / x.shape[1] ** 0.5).softmax(-1)
        return weights @ self.v(tokens)


class MixedFrames(Frames):
    def tokens(self, x):
        b, c, t, h, w = x.shape
        return x.reshape(b * t, c, h * w).mT  # mixed


class ThreeFrames(Frames):
    def forward(self, x):
        assert x.shape[2] == 3
        return super().forward(x)


class ThreeMixedFrames(MixedFrames):
    def forward(self, x):
        assert x.shape[2] == 3
        return super().forward(x)


def leaks_at_some_lengths(x):
    \"\"\"The batch is mixed at 5 and at 11 tokens, not at 7.\"\"\"
    x = x - x.mean(0, keepdim=True) * (x.shape[1] % 3 == 2)
    return (x @ x.mT).softmax(-1) @ x


class Series(nn.Module):
    \"\"\"Each variable of a series is standardised over time, and each patch of it is a token.\"\"\"

    def __init__(self, width):
        super().__init__()
        self.embed, self.qkv = nn.Linear(1, width), nn.Linear(width, 3 * width)

    def forward(self, x):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        q, k, v = self.qkv(self.embed(x.unsqueeze(-1))).chunk(3, -1)
        return attend(q, k, v, torch.zeros((), dtype=torch.bool))
"""


@pytest.fixture
def check(tmp_path: Path):
    (tmp_path / "code.py").write_text(CODE)

    def check(name: str, inputs: dict[str, str], *claims: str, init: str | None = None, own=(), **sizes: int) -> Report:
        given = {**sizes, **parse_dims(own)}
        spec = TargetSpec(f"{tmp_path / 'code.py'}:{name}", init=init, inputs=inputs, sizes=given)
        return check_request(spec, RunOptions(), parse_claims(claims), 120.0, contextlib.nullcontext)

    return check


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.counting]


def test_cache_that_is_filled_is_a_fact_and_no_mistake(check) -> None:
    caches = {"key_cache": "B H Lk Dk", "value_cache": "B H Lk Dk"}
    new = dict.fromkeys("qkv", "B H Lq Dk")
    report = check("filled", {**new, **caches}, B=2, H=3, Lq=4, Lk=9, Dk=8)
    assert codes(report) == []
    texts = [fact.text for fact in report.facts]
    assert "new keys or values are written to the argument key_cache, which is a cache" in texts
    assert not any("modifies no argument" in text for text in report.verified)


def test_cache_that_is_multiplied_is_modified(check) -> None:
    caches = {"key_cache": "B H Lp Dk", "value_cache": "B H Lp Dk"}
    new = dict.fromkeys("qkv", "B H L Dk")
    report = check("scaled_in_place", {**new, **caches}, B=2, H=3, L=4, Lp=5, Dk=8)
    assert codes(report) == ["AS903"]


def test_rope_claim_with_groups_in_init_is_checked(check) -> None:
    init = "heads=Hkv*G, groups=Hkv, width=D//(Hkv*G)"
    report = check("Grouped", {"x": "B L D"}, "rope=half", "causal", init=init, B=2, Hkv=2, G=3, L=7, D=48)
    assert codes(report) == []
    assert "queries and keys are rotated by their positions, in the half layout" in report.verified


@pytest.mark.parametrize(("name", "found"), [("Frames", []), ("MixedFrames", ["AS105"])])
def test_frames_are_no_heads(check, name: str, found: list[str]) -> None:
    sizes = {"B": 2, "H": 5, "W": 6}
    report = check(name, {"x": "B D T H W"}, init="D", own=("T=3",), D=8, **sizes)
    assert codes(report) == found


MAPS = [
    ("B D T H W", {"T": 3, "D": 8, "H": 5, "W": 6}),
    ("B C T H W", {"T": 3, "C": 8, "H": 5, "W": 6}),
    ("B C T Y X", {"T": 3, "C": 8, "Y": 5, "X": 6}),
    ("B D 3 Y X", {"D": 8, "Y": 5, "X": 6}),
]


@pytest.mark.parametrize(("axes", "sizes"), MAPS)
@pytest.mark.parametrize(
    ("name", "found"),
    [("Frames", []), ("MixedFrames", ["AS105"]), ("ThreeFrames", []), ("ThreeMixedFrames", ["AS105"])],
)
def test_frames_are_judged_alike_whatever_their_axes_are_called_and_how_many_they_are(
    check, name: str, found: list[str], axes: str, sizes: dict[str, int]
) -> None:
    library = {symbol: size for symbol, size in sizes.items() if symbol in ("D", "H", "W")}
    own = tuple(f"{symbol}={size}" for symbol, size in sizes.items() if symbol not in library)
    report = check(name, {"x": axes}, init="C" if "C" in axes else "D", own=own, B=2, **library)
    assert codes(report) == found


def test_series_are_standardised_over_time(check) -> None:
    report = check("Series", {"x": "B L"}, init="D", B=3, L=9, D=8)
    assert "AS104" not in {finding.code for finding in report.findings}


def test_documents_that_are_only_compared_are_no_data() -> None:
    table = torch.randn(11, 4, dtype=torch.float64)

    def packed(ids, documents):
        x = table[ids]
        scores = (x @ x.mT).masked_fill(documents[:, :, None] != documents[:, None, :], -torch.inf)
        return scores.softmax(-1) @ x

    subject = subject_of(packed, {"ids": "int[11] B L", "documents": "int[3] B L"})
    assert list(subject.inputs) == ["ids"]


def test_cache_written_at_the_lengths_of_all_elements_mixes_the_batch(check) -> None:
    inputs = {"x": "B L D", "key_cache": "B Lk D", "lens": "int[Lk] B"}
    report = check("written_everywhere", inputs, init=None, B=3, L=1, Lk=9, D=8)
    assert codes(report)[:1] in (["AS117"], ["AS101"], ["AS118"]), report.findings


def test_error_that_no_other_sizes_confirm_leaves_the_report_undecided(check, monkeypatch) -> None:
    original = pipeline._outcomes
    calls = []

    def outcomes(subject, progress):
        calls.append(subject)
        found = list(original(subject, progress))
        return found if len(calls) == 1 else [one for one in found if not isinstance(one, pipeline.Violation)]

    monkeypatch.setattr(pipeline, "_outcomes", outcomes)
    report = check("MixedFrames", {"x": "B D T H W"}, init="D", own=("T=3",), D=8, B=2, H=5, W=6)
    assert len(calls) == 3
    assert report.counting == ()
    assert "found at one set of sizes, and not at another" in [gap.why for gap in report.not_checked]
    assert report.exit_status == ExitStatus.CANNOT


def test_mixed_up_axes_at_one_set_of_sizes_are_undecided_where_time_is_over(check, monkeypatch) -> None:
    original = pipeline._outcomes

    def outcomes(subject, progress):
        return [*original(subject, progress), Undecided("masks", "the time limit was reached", incomplete=True)]

    monkeypatch.setattr(pipeline, "_MOST_PASSES", 1)
    assert codes(check("leaks_at_some_lengths", {"x": "B L D"}, B=2, L=5, D=6)) == ["AS101"]
    monkeypatch.setattr(pipeline, "_outcomes", outcomes)
    report = check("leaks_at_some_lengths", {"x": "B L D"}, B=2, L=5, D=6)
    assert codes(report) == []
    assert "found at one set of sizes, with no time for another" in [gap.why for gap in report.undecided]
    assert report.exit_status == ExitStatus.CANNOT


def test_error_that_only_a_third_set_of_sizes_confirms_is_found(check, monkeypatch) -> None:
    report = check("leaks_at_some_lengths", {"x": "B L D"}, B=2, L=5, D=6)
    assert codes(report) == ["AS101"]
    assert report.exit_status == ExitStatus.FOUND
    monkeypatch.setattr(pipeline, "_MOST_PASSES", 2)
    unconfirmed = check("leaks_at_some_lengths", {"x": "B L D"}, B=2, L=5, D=6)
    assert codes(unconfirmed) == []  # the second set of sizes doesn't have it


SELF_HIDDEN = """
import torch


def attend(q, k, v):
    scores = q @ k.mT / q.size(-1) ** 0.5
    scores = scores.masked_fill(torch.eye(q.size(2), dtype=torch.bool), FILL)
    return scores.softmax(-1) @ v
"""


@pytest.mark.parametrize(("fill", "found"), [(-100.0, []), (-5.0, ["AS405"])])
def test_fill_that_gives_keys_no_weight_in_practice_is_no_error(tmp_path: Path, fill: float, found: list[str]) -> None:
    path = tmp_path / "filled.py"
    path.write_text(SELF_HIDDEN.replace("FILL", str(fill)))
    inputs = {"q": "B H L Dk", "k": "B H L Dk", "v": "B H L Dk"}
    request = TargetSpec(f"{path}:attend", inputs=inputs)
    report = check_request(request, RunOptions(), parse_claims([]), 60.0, contextlib.nullcontext)
    assert codes(report) == found
