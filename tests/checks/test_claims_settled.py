"""Every claim ends verified, contradicted by a finding, or undecided; what is undecided makes the answer incomplete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import OutOfTimeError
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules import scale
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from attnshape.errors import ExitStatus
from attnshape.model.report import Report
from attnshape.options.claims import parse_claims
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines import check as pipeline
from attnshape.pipelines.check import check_request

CLAIMS = (
    "window=3", "given=keep", "given=drop", "given=add", "given=dropout", "given=bias",
    "given=relative-bias", "alibi", "rope=half", "zero-masked-rows", "scale=1/sqrt(Dk)",
)  # fmt: skip
CODE = """
import math
import torch


def attend(x, given):
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ x


def shuffled(x, given):
    return x.flip(1) * 2


def summed(x, given):
    return x.cumsum(1)
"""

ONES = """
import torch


def hiding(B, L, D):
    def attend(x, mask):
        scores = (x @ x.mT / x.shape[-1] ** 0.5).masked_fill(mask[:, None] == 0, -torch.inf)
        return scores.softmax(-1) @ x

    return attend, (torch.randn(B, L, D), torch.ones(B, L))


def undefined(B, L, D):
    return lambda x: (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x * torch.zeros(()) / 0, (torch.randn(B, L, D),)
"""


def checked(folder: Path, name: str, *claims: str, given: str = "B L", limit: float = 300.0) -> Report:
    (folder / "code.py").write_text(CODE)
    spec = TargetSpec(f"{folder}/code.py:{name}", inputs={"x": "B L D", "given": given}, sizes={"B": 4, "L": 6, "D": 8})
    return check_request(spec, RunOptions(), parse_claims(claims), limit, contextlib.nullcontext)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim_that_nothing_can_be_compared_with_is_undecided(claim: str, tmp_path: Path) -> None:
    report = checked(tmp_path, "shuffled", claim)
    assert [one.what for one in report.undecided] == [f"the claim {claim}"]
    assert report.exit_status == ExitStatus.CANNOT


@pytest.mark.parametrize(("name", "codes"), [("shuffled", ["AS501"]), ("summed", [])])
def test_causality_without_attention_is_judged_by_its_results(name: str, codes: list[str], tmp_path: Path) -> None:
    report = checked(tmp_path, name, "causal")
    assert [finding.code for finding in report.findings] == codes
    assert ("no position of the results depends on a later token" in report.verified) is not codes
    assert report.undecided == ()


@pytest.mark.parametrize("claim", ["given=keep", "given=bias", "given=dropout"])
def test_input_that_is_ignored_is_never_passed_over(claim: str, tmp_path: Path) -> None:
    report = checked(tmp_path, "attend", "causal", claim, given="B L L")
    assert report.exit_status != ExitStatus.FINE
    assert "attends causally" in report.verified


def test_input_without_effect_is_observed_and_not_vouched_for(tmp_path: Path) -> None:
    report = checked(tmp_path, "attend")
    assert "the result doesn't depend on given" in {fact.text for fact in report.facts}
    assert not any("every input" in text for text in report.verified)


def test_mask_of_ones_hides_keys_where_it_is_zero(tmp_path: Path) -> None:
    (tmp_path / "ones.py").write_text(ONES)
    spec = TargetSpec(f"{tmp_path}/ones.py:hiding", sizes={"B": 4, "L": 6, "D": 8})
    report = check_request(spec, RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext)
    assert not any("doesn't depend on mask" in fact.text for fact in report.facts)


def test_results_that_are_nan_show_no_dependence(tmp_path: Path) -> None:
    (tmp_path / "ones.py").write_text(ONES)
    spec = TargetSpec(f"{tmp_path}/ones.py:undefined", sizes={"B": 4, "L": 6, "D": 8})
    report = check_request(spec, RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext)
    assert [finding.code for finding in report.findings] == ["AS306"]
    texts = (*report.verified, *(fact.text for fact in report.facts))
    assert not any("depends" in text or "doesn't depend" in text or "batch elements" in text for text in texts)


def test_without_attention_nothing_is_said_about_attention(tmp_path: Path) -> None:
    report = checked(tmp_path, "summed")
    assert not any(word in text for text in report.verified for word in ("attention", "scores", "softmax", "heads"))


def test_softmax_without_scores_is_not_denied(tmp_path: Path) -> None:
    (tmp_path / "gates.py").write_text(
        "import torch\ndef gates(B, L, D):\n    return lambda x: x.softmax(1) * x, (torch.randn(B, L, D),)\n"
    )
    spec = TargetSpec(f"{tmp_path}/gates.py:gates", sizes={"B": 4, "L": 6, "D": 8})
    report = check_request(spec, RunOptions(), parse_claims(()), 300.0, contextlib.nullcontext)
    why = next(gap.why for gap in report.not_checked if gap.what == "softmax")
    assert why == "no product that makes its scores or sums values with its weights was found"


LAYOUT = """
import torch


def attend(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v
"""


def test_claim_that_the_first_sizes_leave_open_is_judged_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.py").write_text(LAYOUT)
    spec = TargetSpec(f"{tmp_path}/code.py:attend", inputs={"q": "B L D", "k": "B L D", "v": "B L D"})
    seen: list[Subject] = []

    def open_at_first(subject: Subject) -> Iterator[Outcome]:
        seen.append(subject)
        yield (
            Undecided("scale of the scores", "two axes have one size", ("scale",))
            if len(seen) == 1
            else (Verification("scores are scaled", ("scale",)))
        )

    monkeypatch.setattr(scale, "check", open_at_first)
    report = check_request(spec, RunOptions(), parse_claims(["scale=1/sqrt(Dk)"]), 300.0, contextlib.nullcontext)
    assert report.claim_outcomes == {"scale=1/sqrt(Dk)": "verified"}
    assert report.undecided == ()
    assert len(seen) == 2
    assert seen[0].numbers != seen[1].numbers


def failing(subject: Subject) -> Iterator[Outcome]:
    raise ZeroDivisionError("a rule fails")


def late(subject: Subject) -> Iterator[Outcome]:
    raise OutOfTimeError


@pytest.mark.parametrize(
    ("check", "why"),
    [(failing, "the check failed: ZeroDivisionError: a rule fails"), (late, "the time limit was reached")],
)
def test_rule_that_does_not_end_leaves_the_answer_incomplete(
    check: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "check", check)
    report = checked(tmp_path, "attend")
    assert [(one.what, one.why) for one in report.undecided] == [(scale.TOPIC, why)]
    assert report.exit_status == ExitStatus.CANNOT


def test_finding_stays_if_the_time_does_not_suffice_to_confirm_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects: list[Subject] = []

    def first_only(subject: Subject) -> Iterator[Outcome]:
        subjects.append(subject)
        if len(subjects) > 1:
            raise OutOfTimeError
        yield Violation("AS201", "a mistake", OutputRef(1), "", "")

    monkeypatch.setattr(scale, "check", first_only)
    report = checked(tmp_path, "attend")
    assert [finding.code for finding in report.counting] == ["AS201"]
    assert report.exit_status == ExitStatus.FOUND


def test_contradiction_at_one_set_of_sizes_only_leaves_the_claim_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects: list[Subject] = []

    def once(subject: Subject) -> Iterator[Outcome]:
        subjects.append(subject)
        if len(subjects) == 1:
            yield Violation("AS201", "a mistake", OutputRef(1), "", "", claims=("scale",))
        else:
            yield Verification("the scale is right", claims=("scale",))

    monkeypatch.setattr(scale, "check", once)
    report = checked(tmp_path, "attend", "scale=1/sqrt(Dk)")
    assert report.counting == ()
    assert [one.what for one in report.undecided] == ["a mistake"]


def test_no_time_at_all_leaves_everything_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_run_rules", lambda *arguments: [])
    report = checked(tmp_path, "attend", "causal", limit=0.001)
    assert ("everything", "the time limit was reached") in {(one.what, one.why) for one in report.undecided}
    assert report.exit_status == ExitStatus.CANNOT


@pytest.mark.parametrize(
    ("hidden", "codes"), [("(i - j).abs() >= 3", []), ("i - j >= 3", ["AS505"]), ("j - i >= 3", ["AS505"])]
)
def test_window_without_causality_has_two_sides(hidden: str, codes: list[str], tmp_path: Path) -> None:
    code = f"""
def near(x):
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
    scores = (x @ x.mT / math.sqrt(x.shape[-1])).masked_fill({hidden}, -torch.inf)
    return scores.softmax(-1) @ x
"""
    (tmp_path / "near.py").write_text(f"import math\nimport torch\n{code}")
    spec = TargetSpec(f"{tmp_path}/near.py:near", inputs={"x": "B L D"}, sizes={"B": 4, "L": 9, "D": 8})
    report = check_request(spec, RunOptions(), parse_claims(["window=3"]), 300.0, contextlib.nullcontext)
    assert [finding.code for finding in report.counting] == codes
    assert ("attends to a window of 3 keys" in report.verified) is not bool(codes)


def test_tokens_that_can_not_be_followed_to_the_scores_are_not_vouched_for(tmp_path: Path) -> None:
    code = """
import torch
from torch import nn


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.q, self.k, self.v = nn.Conv2d(3, 8, 4, stride=4), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        return (self.q(x) @ self.k(x).mT * 8**-0.5).softmax(-1) @ self.v(x)
"""
    (tmp_path / "patches.py").write_text(code)
    spec = TargetSpec(f"{tmp_path}/patches.py:Patches", init="", inputs={"image": "B 3 20 24"})
    report = check_request(spec, RunOptions(), parse_claims([]), 300.0, contextlib.nullcontext)
    assert not any("tokens keep their positions" in text for text in report.verified)


def test_tokens_are_vouched_for_only_up_to_the_operands_in_which_they_were_found(tmp_path: Path) -> None:
    code = """
import torch
from torch import nn


class FewerKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.fewer, self.q, self.k, self.v = nn.Conv1d(8, 8, 2, stride=2), *(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        y = self.fewer(x.transpose(1, 2)).transpose(1, 2)
        return (self.q(x) @ self.k(y).mT * 8**-0.5).softmax(-1) @ self.v(y)
"""
    (tmp_path / "fewer.py").write_text(code)
    spec = TargetSpec(f"{tmp_path}/fewer.py:FewerKeys", init="", inputs={"x": "B L 8"})
    report = check_request(spec, RunOptions(), parse_claims([]), 300.0, contextlib.nullcontext)
    assert report.counting == ()
    said = [text for text in report.verified if "tokens keep their positions" in text]
    assert said == ["tokens keep their positions up to the queries"]


BANDS = """
import torch


def band(width, fill=-torch.inf):
    def attend(x):
        scores = x @ x.mT / x.shape[-1] ** 0.5
        q, k = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
        return scores.masked_fill((k > q) | (q - k >= width), fill).softmax(-1) @ x

    return attend


def wide(B, L, D):
    return band(4), (torch.randn(B, L, D),)


def right(B, L, D):
    return band(3), (torch.randn(B, L, D),)


def weak(B, L, D):
    return band(3, -1.0), (torch.randn(B, L, D),)


def rolled(B, L, D):
    def attend(x):
        blocks = torch.nn.functional.pad(x, (0, 0, 0, -L % 4)).unflatten(1, (-1, 4))
        keys = torch.cat((blocks.roll(1, dims=1), blocks), dim=2)
        scores = blocks @ keys.mT / x.shape[-1] ** 0.5
        later = torch.arange(8) > torch.arange(4)[:, None] + 4
        return (scores.masked_fill(later, -torch.inf).softmax(-1) @ keys).flatten(1, 2)[:, :L]

    return attend, (torch.randn(B, L, D),)
"""
IN_BLOCKS = "visible=k <= q and k//4 >= q//4 - 1"


@pytest.mark.parametrize(
    ("name", "claims", "codes"),
    [
        ("right", ("causal", "window=3", "visible=k <= q and q - k < 3"), []),
        ("wide", ("causal", "window=3", "visible=k <= q and q - k < 3"), ["AS505"]),
        ("wide", ("causal", "visible=k <= q and q - k < 3"), ["AS506"]),
        ("rolled", ("causal", IN_BLOCKS), ["AS506"]),
    ],
)
def test_claims_that_one_mistake_contradicts_are_not_undecided(
    name: str, claims: tuple[str, ...], codes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bands.py").write_text(BANDS)
    spec = TargetSpec(f"{tmp_path}/bands.py:{name}", sizes={"B": 4, "L": 10, "D": 8})
    report = check_request(spec, RunOptions(), parse_claims(claims), 300.0, contextlib.nullcontext)
    assert [finding.code for finding in report.counting] == codes
    assert report.undecided == ()
    held = {"attends causally", "no query attends to a later key"} & set(report.verified)
    assert bool(held) is (name != "rolled")


def test_visible_claim_is_undecided_for_a_true_reason_where_hidden_keys_get_weight(tmp_path: Path) -> None:
    (tmp_path / "bands.py").write_text(BANDS)
    spec = TargetSpec(f"{tmp_path}/bands.py:weak", sizes={"B": 4, "L": 10, "D": 8})
    claims = parse_claims(("visible=k <= q and q - k < 3",))
    report = check_request(spec, RunOptions(), claims, 300.0, contextlib.nullcontext)
    assert [finding.code for finding in report.counting] == ["AS405"]
    assert [one.why for one in report.undecided] == ["numbers replace scores of keys that still get weight"]


def test_claimed_scale_is_decided_where_the_product_sums_over_groups_too(tmp_path: Path) -> None:
    (tmp_path / "summed.py").write_text("""
import torch


def summed(q, k, v):
    scores = torch.einsum("bghid,bhjd->bhij", q / q.shape[-1] ** 0.5, k)
    return scores.softmax(-1) @ v
""")
    inputs = {"q": "B G Hkv L Dk", "k": "B Hkv L Dk", "v": "B Hkv L Dk"}
    spec = TargetSpec(f"{tmp_path}/summed.py:summed", inputs=inputs)
    for claim, verified in (("scale=1/sqrt(Dk)", True), ("scale=1/Dk", False)):
        report = check_request(spec, RunOptions(), parse_claims((claim,)), 300.0, contextlib.nullcontext)
        assert f"the claim {claim}" not in {one.what for one in report.undecided}
        assert (f"scores are scaled by {claim[6:]}, as claimed" in report.verified) is verified
