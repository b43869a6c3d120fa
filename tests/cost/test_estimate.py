"""The peak memory estimated from small runs matches the peak that the allocator and the system measure."""

import inspect
import json

import pytest

from attnshape.targets.builtin.registry import CATALOG, load
from tests.cost.measuring import ROOT, measured, source_file, subject_of
from tests.sampling import sampled

EXAMPLES = {
    name.removeprefix("examples/").removesuffix(".py"): entry["argv"]
    for name, entry in json.loads((ROOT / "tests/examples/expected.json").read_text()).items()
}
ONE_LENGTH = ["--batch", "2", "--length", "400"]
TWO_LENGTHS = ["--batch", "2", "--queries", "300", "--keys", "400"]
NOT_VERIFIED = ("sdpa", "multi-head-concat")
"""Fused attention needs scratch memory that depends on the processor; the loop over heads takes long to fold."""


def _sizes_of(name: str) -> list[str]:
    """Return sizes of a mechanism's first case, as far as it has these."""
    case = next(iter(load(name).values()))
    sizes = {"B": "2", "Lq": "300", "Lk": "400", "L": "400" if name != "gated-delta" else "40"}
    flags = {"B": "--batch", "Lq": "--queries", "Lk": "--keys", "L": "--length"}
    taken = [symbol for symbol in inspect.signature(case).parameters if symbol in sizes]
    return [word for symbol in taken for word in (flags[symbol], sizes[symbol])]


def lines() -> dict[str, list[str]]:
    found = {name: [name, *_sizes_of(name)] for name in CATALOG}
    for name, argv in EXAMPLES.items():
        plain = argv[: argv.index("--expect")] if "--expect" in argv else list(argv)
        if name == "own_dims":
            found[name] = [word.replace("T=10", "T=500") for word in plain]
        elif name in ("cross_attention", "own_function", "case", "annotated"):
            found[name] = [*plain, *TWO_LENGTHS]
        else:
            found[name] = [*plain, *ONE_LENGTH]
    found["masked"] = ["multi-head", "--batch", "3", "--length", "300", "--causal", "--padding"]
    found["decoding"] = ["multi-head", "--batch", "1", "--queries", "1", "--keys", "20000", "--d-model", "256"]
    found["weights alone"] = ["multi-head", "--batch", "1", "--length", "1", "--d-model", "2048"]
    found["dropout"] = ["multi-head", "--length", "300", "--train", "--dropout", "0.1"]
    return found


LINES = lines()
QUICK = ["multi-head", "additive", "fused_qkv", "torch_multihead", "own_dims", "masked", "decoding", "dropout"]


@pytest.fixture(autouse=True)
def _here(root):
    """Run in the project's folder, to which the examples' paths are relative."""


@pytest.mark.parametrize("name", sampled(LINES, QUICK))
def test_estimate_matches_the_allocator(name):
    subject = subject_of(LINES[name])
    estimate = subject.estimate()
    peak = estimate.peak()
    assert peak.bytes == pytest.approx(subject.log().peak, rel=0.05)
    assert peak.known == "verified" or name in NOT_VERIFIED


@pytest.mark.parametrize(
    "name",
    sampled(["masked", "dropout", "fused_qkv", "own_function", "einsum_style", "torch_multihead"], ["fused_qkv"]),
)
def test_memory_for_gradients_is_included(name):
    plain, with_grad = subject_of(LINES[name]), subject_of([*LINES[name], "--grad"])
    peak = with_grad.estimate().peak()
    assert peak.bytes == pytest.approx(with_grad.log().peak, rel=0.05)
    assert peak.bytes > plain.estimate().peak().bytes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", sampled(["multi-head", "fused_qkv"], ["multi-head"]))
def test_dtype_is_taken_into_account(name, dtype):
    subject = subject_of([*LINES[name], "--dtype", dtype])
    peak = subject.estimate().peak()
    # some processors' 16-bit kernels allocate scratch memory, so that the peak is only an estimate
    assert peak.known == "verified" or dtype in ("bfloat16", "float16")
    assert peak.bytes == pytest.approx(subject.log().peak, rel=0.05 if peak.known == "verified" else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        "trace --length 1500 --format json",
        "trace additive --batch 4 --queries 500 --keys 600 --format json",
        "trace --length 1000 --batch 4 --grad --format json",
    ],
)
def test_estimate_matches_the_resident_memory(argv, default_trace):
    """Compare with the resident memory that the system reports, above that of the default trace."""
    run = measured(*argv.split())
    assert run.trace["peak"]["known"] == "verified"
    assert run.resident - default_trace.resident == pytest.approx(run.trace["peak"]["bytes"], rel=0.05)


def test_formula_step_and_parts_of_the_peak():
    estimate = subject_of(["multi-head", "--length", "2000", "--d-model", "1024"]).estimate()
    peak = estimate.peak()
    B, H, L, D = 2, 8, 2000, 1024
    assert peak.expression == "16*D*D+16*D+28*B*L*D+8*B*H*L*L"
    assert peak.bytes == 16 * D * D + 16 * D + 28 * B * L * D + 8 * B * H * L * L
    assert (peak.parameters, peak.inputs) == (16 * D * D + 16 * D, 4 * B * L * D)
    assert peak.step == 19


def test_small_trace_has_no_estimate(attnshape):
    """Small runs get no estimate, so that the default trace takes no longer."""
    assert "peak" not in attnshape("trace --format json").trace
    assert attnshape("trace --format json --length 3000 --device meta").trace["peak"]["known"] == "verified"


BRANCH = """
import torch
def attend(query, key):
    scores = query @ key.mT
    if scores.shape[-1] > 1000:
        scores = scores * 2 + torch.cat([scores, scores], dim=-1)[..., : scores.shape[-1]]
    return scores
"""


@pytest.mark.slow
def test_branch_on_a_size_makes_the_peak_an_estimate(attnshape, tmp_path):
    with source_file(tmp_path, BRANCH) as file:
        trace = attnshape(
            "trace", f"{file}:attend", "--input", "query: B L Dk", "--input", "key: B L Dk", "--length", "3000",
            "--device", "meta", "--format", "json",
        ).trace  # fmt: skip
    assert trace["peak"]["known"] == "estimate"


ODD = """
import torch
class Odd(torch.nn.Module):
    def __init__(self, D):
        super().__init__()
        self.proj = torch.nn.Linear(D, 3 * D)
    def forward(self, x):
        assert x.shape[1] >= 600, "too short"
        q, k, v = self.proj(x).chunk(3, dim=-1)
        scores = q @ k.mT
        return scores.softmax(-1) @ v
"""


def test_failing_small_runs_give_no_peak(attnshape, tmp_path):
    with source_file(tmp_path, ODD) as file:
        done = attnshape(
            "trace", f"{file}:Odd", "--init", "D", "--input", "x: B L D", "--length", "1500", "--format", "json"
        )
    assert done.status == 0
    assert "peak" not in done.trace


HEADS = """
import torch
class Heads(torch.nn.Module):
    def __init__(self, H, D):
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(D, D) for _ in range(H))
    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)
"""


@pytest.mark.slow
def test_loop_over_heads_is_estimated_at_its_number_of_iterations(tmp_path):
    with source_file(tmp_path, HEADS) as file:
        subject = subject_of(
            [f"{file}:Heads", "--init", "H, D", "--input", "x: B L D", "--heads", "24", "--length", "900",
             "--d-model", "192"]
        )  # fmt: skip
        peak = subject.estimate().peak()
        assert peak.bytes == pytest.approx(subject.log().peak, rel=0.05)


def test_code_that_uses_the_profiler_still_runs(attnshape, tmp_path):
    text = """
import torch
def attend(query, key):
    with torch.autograd.profiler.profile():
        return query @ key.mT
"""
    with source_file(tmp_path, text) as file:
        done = attnshape(
            "trace", f"{file}:attend", "--input", "query: B L Dk", "--input", "key: B L Dk", "--length", "1500",
            "--format", "json",
        )  # fmt: skip
    assert done.status == 0
    assert done.trace["steps"][-1]["outputs"][0]["tensor"]["signature"] == "B L L"
    assert done.trace.get("peak", {"known": "estimate"})["known"] == "estimate"


def test_sizes_that_are_equal_only_in_the_proxy_dont_stand_for_each_other(tmp_path):
    source = """
import torch

class Projection(torch.nn.Module):
    def __init__(self, width, heads, groups, features):
        super().__init__()
        assert width % heads == heads % groups == 0
        self.project = torch.nn.Linear(width, heads * features)

    def forward(self, x):
        return self.project(x)
"""
    sizes = ["--d-model", "36", "--heads", "12", "--kv-heads", "4", "--d-head", "8"]
    with source_file(tmp_path, source) as file:
        subject = subject_of([f"{file}:Projection", "--init", "D, H, Hkv, Dk", "--input", "x: B L D", *sizes])
        estimate, log = subject.estimate(), subject.log()
    assert estimate.peak().bytes == log.peak
