"""The registry: names, descriptions and loading."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import attnshape.targets.builtin.registry
from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.errors import AttnshapeError
from attnshape.targets.builtin.registry import CATALOG, DEFAULT, MECHANISMS, describe, load

CASES = {
    "multi-head": {"self_attention": "B H L D", "cross_attention": "B H Lq Lk D"},
    "scaled-dot-product": {"batched": "B Lq Lk Dk Dv", "with_heads": "B H Lq Lk Dk Dv", "unbatched": "Lq Lk Dk Dv"},
    "single-head": {"batched": "B L D Dk", "unbatched": "L D Dk"},
    "multi-head-concat": {"self_attention": "B H L D", "cross_attention": "B H Lq Lk D"},
    "average": {"batched": "B L D", "unbatched": "L D"},
    "dot-product": {"batched": "B L D", "unbatched": "L D"},
    "additive": {"cross_attention": "B Lq Lk D Dk"},
    "multiplicative": {"dot": "B Lq Lk D", "general": "B Lq Lk D Dv"},
    "grouped-query": {"self_attention": "B H Hkv L D"},
    "multi-query": {"self_attention": "B H L D"},
    "rotary-interleaved": {"self_attention": "B H L D"},
    "rotary-halves": {"self_attention": "B H L D"},
    "partial-rotary": {"self_attention": "B H L D Dr"},
    "alibi": {"self_attention": "B H L D"},
    "relative-bias": {"self_attention": "B H L D Nb"},
    "shifted-window": {"shifted": "B H D W Nh Nw", "regular": "B H D W Nh Nw"},
    "kv-cache": {"prefill": "B H L D", "decode": "B H Lp Lq D"},
    "sliding-window": {"self_attention": "B H L D W"},
    "packed": {"self_attention": "H L D Ns"},
    "sparse": {"self_attention": "B H L D Ls Hi Di"},
    "latent": {"self_attention": "B H L D Dr Dc Dcq"},
    "latent-queries": {"cross_attention": "B H Lz Lk D Din"},
    "linear": {"causal": "B H L Dk Dv", "bidirectional": "B H Lq Lk Dk Dv"},
    "gated-delta": {"recurrent": "B H L Dk Dv"},
    "differential": {"self_attention": "B H L D"},
    "sinks": {"self_attention": "B H L D"},
    "gated-output": {"self_attention": "B H L D"},
    "qk-norm": {"self_attention": "B H L D"},
    "softcap": {"self_attention": "B H L D"},
    "multi-head-list": {"self_attention": "B H L Dk Dv Din Dout"},
}


def test_catalog_names_in_order():
    assert list(CATALOG) == list(CASES)
    assert next(iter(CATALOG)) == DEFAULT


def test_every_mechanism_file_is_registered():
    files = {path.stem for path in MECHANISMS.glob("*.py")} - {"__init__", "canary"}
    assert files == set(CATALOG.values())


@pytest.mark.parametrize("name", CATALOG)
def test_cases_and_sizes(name):
    described = {case.name: " ".join(case.sizes) for case in describe(name).cases}
    assert described == CASES[name]
    assert list(described) == list(CASES[name])


@pytest.mark.parametrize("name", CATALOG)
def test_every_section_is_present(name):
    description = describe(name)
    assert description.summary.endswith(".")
    assert "=" in description.formula
    assert "Source" not in description.formula
    assert "arXiv:" in description.source
    assert "equation" in description.source
    assert description.code.startswith('"""' + description.summary)
    assert all(case.summary.endswith(".") for case in description.cases)


def test_complete_description():
    description = describe("dot-product")
    assert description.formula == "Attention(X) = softmax(X Xᵀ) X"
    assert description.source.startswith('Wang et al., 2018, "Non-local Neural Networks", arXiv:1711.07971')
    assert description.cases[0].options == ("causal", "padding", "mask_value")


@pytest.mark.parametrize("name", CATALOG)
def test_load_matches_the_description(name):
    description = describe(name)
    functions = load(name)
    assert list(functions) == [case.name for case in description.cases]
    for case in description.cases:
        parameters = inspect.signature(functions[case.name]).parameters.values()
        sizes = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        options = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        assert sizes == case.sizes
        assert options == case.options
        assert set(sizes) <= set(SYMBOLS_BY_NAME)
        assert all(p.default is not p.empty for p in parameters if p.kind is p.KEYWORD_ONLY)


@pytest.mark.parametrize("reader", [describe, load])
def test_unknown_name_suggests_a_similar_one(reader):
    with pytest.raises(AttnshapeError) as caught:
        reader("Multi_heads")
    assert caught.value.message == "there is no mechanism 'Multi_heads' in the catalog"
    assert caught.value.hint == "did you mean multi-head?"


def test_unknown_name_lists_all_mechanisms():
    with pytest.raises(AttnshapeError) as caught:
        describe("zzz")
    assert caught.value.hint == f"the mechanisms are: {', '.join(CATALOG)}"


def test_describe_does_not_import_torch():
    code = (
        "import sys; from attnshape.targets.builtin.registry import describe; "
        "describe('multi-head'); print('torch' in sys.modules, 'jaxtyping' in sys.modules)"
    )
    root = Path(attnshape.targets.builtin.registry.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
