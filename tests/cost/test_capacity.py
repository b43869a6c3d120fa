"""A run that can't fit is refused before anything is allocated; on the meta device everything fits."""

import re

import pytest

from attnshape.cost import capacity
from tests.cost.measuring import measured, source_file, subject_of
from tests.sampling import sampled

MIB = 2**20
HUGE = ["--batch", "1", "--length", "1000000", "--d-model", "16384", "--heads", "128"]
SDPA = [
    "torch.nn.functional:scaled_dot_product_attention",
    *("--input", "query: B H Lq Dk", "--input", "key: B H Lk Dk", "--input", "value: B H Lk Dv"),
    *("--queries", "1000000", "--keys", "1000000"),
]
TARGETS = {
    "multi-head": HUGE,
    "masked": [*HUGE, "--causal", "--padding"],
    "a user's module": [
        *("examples/fused_qkv.py:FusedSelfAttention", "--init", "D, H", "--input", "x: B L D"),
        *HUGE,
    ],
    "a case": ["examples/case.py:padded", "--queries", "1000000", "--keys", "1000000"],
    "a mask in Python": [*SDPA, "--with", "attn_mask=torch.ones(Lq, Lk).tril().bool()"],
    "a described mask": [*SDPA, "--input", "attn_mask: bool B H Lq Lk"],
    "numbers": [
        "torch.nn.functional:embedding",
        *("--input", "input: int[D] B L", "--input", "weight: D Dk", *HUGE),
    ],
}


def argv_of(name: str) -> list[str]:
    argv = TARGETS[name]
    return argv if not argv[0].startswith("--") else ["multi-head", *argv]


@pytest.mark.parametrize("name", sampled(TARGETS, []))
def test_meta_device_needs_no_memory(name, default_trace):
    run = measured("trace", *argv_of(name), "--device", "meta", "--format", "json")
    assert run.status == 0, run.output[-500:]
    assert run.trace["complete"]
    assert run.resident - default_trace.resident < 150 * MIB


@pytest.mark.parametrize(
    "name", sampled(["multi-head", "a case", "a mask in Python", "a described mask"], ["a mask in Python"])
)
def test_run_that_does_not_fit_is_refused_before_allocation(name, default_trace):
    run = measured("trace", *argv_of(name))
    assert run.status == 2
    assert re.search(
        r"^error: this run needs at least [\d,]+ TiB at its peak, .* are free on cpu", run.output, re.MULTILINE
    )
    assert "hint: --device meta needs no memory" in run.output
    assert run.resident - default_trace.resident < 150 * MIB


def bytes_in(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.,]+) (\w+)", text).groups()
    return float(number.replace(",", "")) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)


@pytest.fixture
def free(monkeypatch):
    """Set the free memory."""

    def set_free(count: int) -> None:
        monkeypatch.setattr(capacity, "free_memory", lambda device: count)

    return set_free


def test_parts_add_up_and_the_step_is_named(attnshape, root, free):
    free(200 * MIB)
    done = attnshape("trace", "--length", "3000", "--d-model", "2048")
    assert done.status == 2
    assert done.out == ""
    found = re.fullmatch(
        r"error: this run needs at least (?P<sum>[^,]+) at its peak, at step `output = self\.Wo\(concat\)` "
        r"\(attnshape/targets/builtin/mechanisms/multi_head\.py:\d+\): "
        r"parameters (?P<one>[^,]+), inputs (?P<two>[^,]+), "
        r"live results (?P<three>.+); only 200 MiB are free on cpu",
        done.err.splitlines()[0],
    )
    assert found, done.err
    parts = sum(bytes_in(found[name]) for name in ("one", "two", "three"))
    # each number is rounded to two digits
    assert bytes_in(found["sum"]) == pytest.approx(parts, rel=0.08)


def test_suggested_size_fits_and_a_larger_one_does_not(attnshape, root, free):
    free(200 * MIB)
    done = attnshape("trace --length 3000")
    size = int(re.search(r"--length (\d+)", done.err.splitlines()[-1])[1])
    assert 100 < size < 3000
    assert attnshape("trace", "--length", str(size), "--device", "cpu").status == 0
    assert attnshape("trace", "--length", str(int(size * 1.15))).status == 2


def test_suggestion_uses_the_users_flag(attnshape, free):
    free(100 * MIB)
    done = attnshape("trace --length 1 --batch 1 --d-model 8192")
    size = int(re.search(r"--d-model (\d+)", done.err)[1])
    assert size % 8 == 0
    assert 16 * size * size < 100 * MIB
    own = attnshape(
        "trace", "examples/own_dims.py:Attention", "--dim", "T=4000", "--dim", "nh=4", "--dim", "C=nh*32",
        "--init", "C, nh", "--input", "x: B T C",
    )  # fmt: skip
    assert own.status == 2
    assert "--dim T=" in own.err


def test_estimate_is_marked_as_such(attnshape, tmp_path, free):
    free(5 * MIB)
    text = """
import torch
def attend(query, key):
    assert query.shape[1] >= 600, "too short"
    return query @ key.mT
"""
    with source_file(tmp_path, text) as file:
        arguments = ("--input", "query: B L Dk", "--input", "key: B L Dk", "--length", "9000")
        done = attnshape("trace", f"{file}:attend", *arguments)
    assert done.status == 2
    assert "needs at least about" in done.err
    assert "an estimate" in done.err


def test_peak_while_the_target_is_built(attnshape, tmp_path, free):
    text = """
import torch
class Table(torch.nn.Module):
    def __init__(self, L):
        super().__init__()
        self.register_buffer("mask", torch.ones(L, L).tril().bool())
    def forward(self, x):
        return x @ x.mT
"""
    with source_file(tmp_path, text) as file:
        arguments = ("--init", "L", "--input", "x: B L Dk", "--length", "20000", "--batch", "1", "--d-head", "3")
        subject = subject_of([f"{file}:Table", *arguments])
        # ones and tril take four bytes each, then bool one
        assert subject.estimate().peak().bytes == pytest.approx(8 * 20000 * 20000, rel=0.01)
        free(500 * MIB)
        done = attnshape("trace", f"{file}:Table", *arguments)
    assert done.status == 2
    assert "while the target is built" in done.err


def test_host_memory_for_building_on_cuda(root):
    estimate = subject_of(["multi-head", "--length", "1", "--batch", "1", "--d-model", "4096"]).estimate(cuda=True)
    assert estimate.bytes_on_host == pytest.approx(16 * 4096 * 4096, rel=0.01)


def test_cuda_blocks_are_rounded_up(root):
    subject = subject_of(["multi-head", "--length", "701", "--d-model", "504"])
    here, there = subject.estimate().peak(), subject.estimate(cuda=True).peak()
    assert here.bytes < there.bytes < here.bytes + 40 * 512
    assert there.bytes % 512 == 0
