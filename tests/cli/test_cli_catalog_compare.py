"""`attnshape catalog --compare`: the numbers are those of the mechanisms themselves."""

from __future__ import annotations

import re

import pytest

import attnshape as package
from attnshape.cost.cached import kept_per_token
from attnshape.reporters.mechanisms import ComparedMechanism, mechanisms_text
from attnshape.targets.builtin.registry import CATALOG, describe, load
from tests.cli.running import Attnshape

# 4 bytes for each number of both sequences of the batch
CACHED = {
    "multi-head": 4 * 2 * (8 * 64 + 8 * 64),
    "grouped-query": 4 * 2 * (4 * 64 + 4 * 64),
    "multi-query": 4 * 2 * (64 + 64),
    "latent": 4 * 2 * (128 + 32),
}


def cells(line: str) -> list[str]:
    return [cell.strip(" `") for cell in line.strip("| \n").split("|")]


def test_mechanisms_side_by_side(attnshape: Attnshape) -> None:
    result = attnshape("catalog --compare multi-head latent")
    assert (result.status, result.err) == (0, "")
    rows = {cells(line)[0]: cells(line)[1:] for line in result.out.splitlines()[2:]}
    assert "| multi-head " in result.out.splitlines()[0]
    assert rows["sizes"][0] == "B=2 H=8 L=10 D=512 Dk=64"
    module = load("multi-head")["self_attention"](2, 8, 10, 512)[0]
    count = sum(parameter.numel() for parameter in module.parameters())
    assert rows["parameters"][0] == "1.1 M = 4*D*D+4*D"
    assert count == 4 * 512 * 512 + 4 * 512
    assert rows["cached for each token"] == ["8 KiB = 8*B*H*Dk", "1.2 KiB = 4*B*Dc+4*B*Dr"]
    assert rows["scores"] == ["B H L L = 2 8 10 10"] * 2
    assert rows["turned_key"] == ["", "B L Dr = 2 10 32"]


def test_each_mechanism_gets_the_sizes_that_it_takes(attnshape: Attnshape) -> None:
    result = attnshape("catalog --compare multi-head grouped-query --length 7 --d-head 16 --kv-heads 2")
    rows = {cells(line)[0]: cells(line)[1:] for line in result.out.splitlines()[2:]}
    assert (result.status, result.err) == (0, "note: multi-head has no --kv-heads\n")
    assert rows["sizes"] == ["B=2 H=8 L=7 D=128 Dk=16", "B=2 H=8 Hkv=2 G=4 L=7 D=128 Dk=16"]
    assert rows["parameters"] == ["66 k = 4*D*D+4*D", "41 k = 2*D*D+2*Hkv*D*Dk"]
    assert (4 * 128 * 128 + 4 * 128, 2 * 128 * 128 + 2 * 2 * 128 * 16) == (66_048, 40_960)
    # 4 bytes for keys and values of both sequences
    assert rows["cached for each token"] == ["2 KiB = 8*B*H*Dk", "512 B = 8*B*Hkv*Dk"]
    assert rows["scores"] == ["B H L L = 2 8 7 7", "B Hkv G L L = 2 2 4 7 7"]


@pytest.mark.parametrize("name", CACHED)
def test_cached_bytes(name: str) -> None:
    kept = kept_per_token(package.trace(name), describe(name).cached)
    assert kept is not None
    assert kept.value == CACHED[name]


def test_names_without_a_tensor_are_not_counted() -> None:
    trace = package.trace("multi-query")
    assert kept_per_token(trace, ()) is None
    assert kept_per_token(trace, ("key", "scores")) is None  # scores have two lengths


@pytest.mark.parametrize("name", CATALOG)
def test_cached_tensors_are_assigned_in_the_file(name: str) -> None:
    description = describe(name)
    for tensor in description.cached:
        assert re.search(rf"^        {tensor}: ", description.code, re.MULTILINE)


def test_text_folds_cells_at_the_width() -> None:
    trace = package.trace("scaled-dot-product", cost=True)
    one = ComparedMechanism("scaled-dot-product", trace, (), None)
    lines = mechanisms_text([one, one], 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("sizes")
    assert "".join(lines).count("B Lq Lk = 2 10 16") == 4  # scores and weights, twice


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("catalog --compare multi-head", "--compare needs two mechanisms or more"),
        ("catalog --compare multi-head nosuch", "there is no mechanism 'nosuch' in the catalog"),
        ("catalog multi-head latent", "catalog shows one mechanism"),
        ("catalog multi-head --heads 4", "only --compare takes --heads"),
        ("catalog --heads 4", "only --compare takes --heads"),
        ("catalog --compare multi-head latent --window 3", "none of multi-head, latent takes --window"),
        ("catalog --compare multi-head latent --heads 0", "--heads is '0': Input should be greater than or equal to 1"),
        (
            "catalog --compare multi-head qk-norm --length 5 --queries 4",
            "--length says that queries and keys are one sequence, --queries that they are two",
        ),
    ],
)
def test_bad_input(line: str, message: str, attnshape: Attnshape) -> None:
    result = attnshape(line)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}\nhint: ")
