"""Traces of every case in the catalog, at two sets of sizes, with and without options."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import pytest

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.targets.builtin import mechanisms
from attnshape.targets.builtin.registry import CATALOG, CaseDescription, describe
from tests.cli.running import Attnshape, Result
from tests.sampling import sampled

# "large" has as few equal sizes as possible; in "small" all are odd, but for widths that rotate in pairs.
SIZES = {
    "large": {"B": 4, "H": 6, "Hkv": 3, "Lp": 9, "L": 11, "Lq": 12, "Lk": 21, "D": 48, "Dk": 8, "Dv": 20, "W": 2}
    | {"Nh": 5, "Nw": 7, "Lz": 13, "Ls": 10, "Hi": 3, "Di": 14, "Din": 23, "Dout": 29, "Dr": 18, "Dc": 31, "Dcq": 37}
    | {"Ns": 3, "Nb": 16},
    "small": {"B": 3, "H": 5, "Hkv": 5, "Lp": 11, "L": 7, "Lq": 9, "Lk": 13, "D": 55, "Dk": 11, "Dv": 17, "W": 3}
    | {"Nh": 5, "Nw": 7, "Lz": 15, "Ls": 5, "Hi": 9, "Di": 19, "Din": 23, "Dout": 29, "Dr": 14, "Dc": 21, "Dcq": 25}
    | {"Ns": 3, "Nb": 13},
}
EVEN = ("rotary-interleaved", "rotary-halves", "differential")
PAIRED = (*EVEN, "partial-rotary", "latent")
"""Mechanisms with an axis of 2: pairs of features, or two softmaxes."""
PRECONDITIONS = {name: ["Dk even"] for name in EVEN} | {"partial-rotary": ["Dr even"], "latent": ["Dr even"]}
OPTIONS = {
    "causal": ["--causal"],
    "padding": ["--padding"],
    "mask_value": ["--causal", "--mask-value", "-1e9"],
    "dropout": ["--dropout", ".1", "--train"],
    "bias": ["--no-bias"],
}


# Its loop over heads has as many steps as there are heads, so H can't vary while the others do.
LOOPS = "multi-head-concat"
SOME = (("self_attention", "large", "plain"), ("cross_attention", "small", "all"))


def variants() -> list[Any]:
    found = []
    for name in CATALOG:
        for case in describe(name).cases:
            able = {option: OPTIONS[option] for option in case.options if option in OPTIONS}
            together = list(dict.fromkeys(word for words in able.values() for word in words))
            for sizes in SIZES:
                for option, words in {"plain": [], **able, "all": together}.items():
                    if name == LOOPS and (case.name, sizes, option) not in SOME:
                        continue
                    title = f"{name}:{case.name}-{sizes}-{option}"
                    quick = sizes == "small" and option in ("plain", "all")
                    marks = () if quick else pytest.mark.slow
                    found.append(pytest.param(name, case, sizes, words, id=title, marks=marks))
    return found


@cache
def annotated(name: str) -> frozenset[tuple[str, str]]:
    """Return the annotated variables of a mechanism, and of those whose functions it imports."""
    found = set(own_annotations(name))
    for node in ast.walk(ast.parse(describe(name).code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{mechanisms.__name__}."):
            imported = node.module.rpartition(".")[2]
            found |= annotated(next(other for other, module in CATALOG.items() if module == imported))
    return frozenset(found)


def own_annotations(name: str) -> frozenset[tuple[str, str]]:
    """Return the mechanism's annotated variables with their dims strings, read from its source."""
    found = set()
    for node in ast.walk(ast.parse(describe(name).code)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            dims = re.search(r"\[Tensor, '([^']*)'\]", ast.unparse(node.annotation))
            if dims:
                found.add((node.target.id, dims[1].strip()))
    return frozenset(found)


def sizes_of(name: str, sizes: str) -> dict[str, int]:
    """Return the sizes of a mechanism: heads of an even width where their features rotate in pairs."""
    numbers = SIZES[sizes]
    return numbers if name not in EVEN or numbers["Dk"] % 2 == 0 else numbers | {"D": 70, "Dk": 14}


def run(attnshape: Attnshape, name: str, case: CaseDescription, sizes: str, words: list[str]) -> Result:
    numbers = sizes_of(name, sizes)
    flags = [word for symbol in case.sizes for word in (SYMBOLS_BY_NAME[symbol].flag, str(numbers[symbol]))]
    return attnshape("trace", f"{name}:{case.name}", *flags, *words, "--format", "json")


@pytest.mark.parametrize(("name", "case", "sizes", "words"), variants())
def test_every_axis_is_verified_and_every_step_checked(
    name: str, case: CaseDescription, sizes: str, words: list[str], attnshape: Attnshape
):
    result = run(attnshape, name, case, sizes, words)
    assert (result.status, result.err) == (0, "")
    trace, numbers = result.trace, sizes_of(name, sizes)
    assert trace["complete"] is True
    assert trace["preconditions"] == PRECONDITIONS.get(name, [])
    assert trace["notes"] == [] or (name == LOOPS and all("H" in note for note in trace["notes"]))
    assert trace["verified_at"] >= 3
    assert {symbol: trace["sizes"][symbol]["size"] for symbol in case.sizes} == {s: numbers[s] for s in case.sizes}

    numbers = {symbol: record["size"] for symbol, record in trace["sizes"].items()}
    tensors = [output for step in trace["steps"] for output in step["outputs"]] + trace["inputs"]
    for output in tensors:
        tensor = output["tensor"]
        values = [evaluated(axis["expression"], numbers) for axis in tensor["axes"]]
        assert values == tensor["shape"], output
        assert [evaluated(stride, numbers) for stride in tensor["strides"]] == tensor["stride"], output
        for axis in tensor["axes"]:
            literal = axis["expression"].lstrip("-").isdigit()
            assert axis["known"] == ("literal" if literal else "verified"), output
        # the only axes without a size symbol: those that unsqueeze adds, the one feature of additive scores, and pairs
        constant = {size for size, axis in zip(tensor["shape"], tensor["axes"], strict=True) if not_a_size(axis)}
        assert constant <= ({1, 2} if name in PAIRED else {1})
        assert tensor["checked"], output

    declared = [output for output in tensors if output["tensor"]["declared"]]
    assert declared
    for output in declared:
        assert output["tensor"]["checked"] == "declared", output
        assert (output["name"], output["tensor"]["declared"]) in annotated(name)
        assert output["tensor"]["signature"] in signatures_in_case(case, output["tensor"]["declared"])


def evaluated(expression: str, numbers: dict[str, int]) -> int:
    return int(eval(expression, {"__builtins__": {}}, numbers))


def not_a_size(axis: dict[str, str]) -> bool:
    return axis["expression"].isdigit()


def signatures_in_case(case: CaseDescription, dims: str) -> set[str]:
    """Return the forms of a declared signature in the case's symbols: with one length, Lq and Lk are both L."""
    if "Lp" in case.sizes:
        dims = re.sub(r"\bLk\b", "Lp+Lq", dims)
    if "L" in case.sizes:
        dims = re.sub(r"\bL[qk]\b", "L", dims)
    signatures = {dims}
    if "H" not in case.sizes:
        signatures.add(re.sub(r"\bH\b ?", "", dims))
    if "..." in dims or "*" in dims:  # leading axes that the case decides
        rest = dims.split(maxsplit=1)[1] if " " in dims else ""
        for leading in ("", "B", "B H"):
            signatures.add(f"{leading} {rest}".strip())
    return signatures


@pytest.mark.parametrize("name", sampled(CATALOG, ["scaled-dot-product", "additive"]))
def test_every_annotated_variable_is_in_the_trace(name: str, attnshape: Attnshape):
    names = set()
    for case in describe(name).cases:
        for words in ([], ["--causal"]):
            if words and "causal" not in case.options:
                continue
            if name == LOOPS and (words or case.name != "cross_attention"):
                continue
            result = run(attnshape, name, case, "large", words)
            names |= {output["name"] for step in result.trace["steps"] for output in step["outputs"]}
    # without a mask `logits` is `scores` under a second name, and no operation makes it
    assert {variable for variable, _ in own_annotations(name)} - ({"logits"} if name == LOOPS else set()) <= names


# two examples from the literature


def test_shapes_of_scaled_dot_product(attnshape: Attnshape):
    result = attnshape(
        "trace scaled-dot-product --batch 3 --queries 30 --keys 50 --d-head 128 --d-value 256 --format json"
    )
    shapes = {name: tuple(tensor["shape"]) for name, tensor in result.tensors.items()}
    assert shapes["query"] == (3, 30, 128)
    assert shapes["key"] == (3, 50, 128)
    assert shapes["value"] == (3, 50, 256)
    assert shapes["scores"] == shapes["weights"] == (3, 30, 50)
    assert shapes["context"] == (3, 30, 256)
    assert result.tensors["context"]["signature"] == "B Lq Dv"


def test_shapes_of_multi_head_self_attention(attnshape: Attnshape):
    result = attnshape("trace multi-head --batch 128 --length 32 --d-model 200 --heads 5 --format json")
    shapes = {name: tuple(tensor["shape"]) for name, tensor in result.tensors.items()}
    assert shapes["query"] == shapes["key"] == shapes["value"] == shapes["context"] == (128, 5, 32, 40)
    assert shapes["scores"] == shapes["weights"] == (128, 5, 32, 32)
    assert shapes["concat"] == shapes["output"] == (128, 32, 200)
    assert result.tensors["scores"]["signature"] == "B H L L"


def test_heads_that_do_not_divide_the_width_are_an_error(attnshape: Attnshape):
    result = attnshape("trace multi-head --batch 128 --length 32 --d-model 200 --heads 7")
    assert (result.status, result.out) == (2, "")
    # 200 = 28*7 + 4
    assert result.err.startswith("error: 7 heads don't divide the width: D/H = 200/7 leaves 4\nhint: ")
