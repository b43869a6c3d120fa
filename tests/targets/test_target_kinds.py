"""Every kind of target: the function that is called, its arguments, and its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Attnshape

MODEL = '''
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

WIDTHS = {"small": 3}


def attention(query, key, scale=None):
    scores = query @ key.transpose(-2, -1)
    scaled = scores * (scale or 1)
    return scaled


class Attention(nn.Module):
    def __init__(self, d_model, n_head, bias=True):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)

    def split(self, x):
        B, L, D = x.shape
        heads = x.view(B, L, self.n_head, D // self.n_head)
        return heads.transpose(1, 2)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return self.split(query)

    @staticmethod
    def double(x):
        doubled = x * 2
        return doubled

    @classmethod
    def triple(cls, x):
        tripled = x * 3
        return tripled


class Plain:
    def __init__(self, width=4):
        self.width = width

    def __call__(self, x):
        called = x * self.width
        return called

    def widen(self, x):
        wide = x.repeat_interleave(self.width, -1)
        return wide


def build(d_model=12, n_head=3):
    attn = Attention(d_model, n_head)
    return SimpleNamespace(layers=[SimpleNamespace(attn=attn)], named={"first": attn}, attend=attention)


def make(d_model):
    return nn.Linear(d_model, d_model)


instance = Attention(12, 3)
layer = nn.Sequential(nn.Linear(12, 6), nn.ReLU())


@dataclass
class Config:
    width: int
    heads: int


def pair(B, L, D):
    return nn.Linear(D, 2 * D), (torch.randn(B, L, D),)


def triple(B, Lq, Lk, Dk):
    return attention, (torch.randn(B, Lq, Dk),), {"key": torch.randn(B, Lk, Dk), "scale": 0.5}


def by_keyword(B, Lq, Lk, Dk):
    return attention, {"query": torch.randn(B, Lq, Dk), "key": torch.randn(B, Lk, Dk), "scale": 0.5}


def configured(B, L, D, H, causal=True):
    """Only required parameters need to be sizes."""
    config = Config(D, H)
    assert causal
    return Attention(config.width, config.heads), [torch.randn(B, L, D)]


def listed(B, L):
    return torch.cat, ([torch.ones(B, L), torch.zeros(B, L)],), {"dim": 1}


def annotated(query: Float[Tensor, "B H Lq Dk"], mask: Bool[Tensor, "Lq #Lk"], ids: Int[Tensor, "B Lq"], scale=1.0):
    masked = query * mask.any() * scale
    return masked


def optional(x: Float[Tensor, "B L"], y: Float[Tensor, "B L"] | None = None):
    total = x if y is None else x + y
    result = total * 2
    return result


class Annotated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        projected = self.linear(x)
        return projected


def keyword_only(x, *, mask):
    masked = x * mask
    return masked


def positional_only(x, y, /, z):
    total = torch.cat([x, x, y], -1) + z
    return total


def variadic(*tensors):
    total = tensors[0] + tensors[1]
    return total


def named(**tensors):
    total = tensors["a"] + tensors["b"]
    return total


def both(first, *rest, **named):
    total = first + named["second"]
    return total


def types(ids, counts, flags, values):
    assert not ids.is_floating_point() and int(ids.min()) >= 0 and int(ids.max()) < 5, ids
    assert counts[0].tolist() == list(range(counts.shape[-1])), counts
    assert flags.dtype == torch.bool and bool(flags.any(-1).all()), flags
    table = values[:, :1] + ids + counts
    return table.masked_fill(flags, 0.0)


def contents(x, mask, many):
    assert mask.dtype == torch.bool and many["weights"][0].dtype == x.dtype == torch.float64, (mask, many)
    assert many["counts"].dtype == torch.int64
    assert many["text"] == "left alone"
    masked = x.masked_fill(~mask, 0) * many["weights"][0]
    return masked
'''


@pytest.fixture
def model(folder: Path) -> str:
    (folder / "model.py").write_text(MODEL)
    return "model.py"


def shapes(attnshape: Attnshape, *words: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the signature and the shape of each named tensor."""
    result = attnshape("trace", *words, "--format", "json")
    assert (result.status, result.err) == (0, ""), result.err or result.trace["failure"]
    return {name: (tensor["signature"], tuple(tensor["shape"])) for name, tensor in result.tensors.items()}


def outputs(attnshape: Attnshape, *words: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the signature and the shape of each step's first output."""
    result = attnshape("trace", *words, "--format", "json")
    assert (result.status, result.err) == (0, ""), result.err or result.trace["failure"]
    firsts = [step["outputs"][0]["tensor"] for step in result.trace["steps"]]
    return [(tensor["signature"], tuple(tensor["shape"])) for tensor in firsts]


SMALL = ("--batch", "2", "--length", "5", "--d-model", "12", "--heads", "3")
X = ("--input", "x: B L D")


# functions and classes


def test_function_target(model: str, attnshape: Attnshape):
    words = ["--input", "query: B Lq Dk", "--input", "key: B Lk Dk", "--queries", "4", "--keys", "6", "--d-head", "3"]
    found = shapes(attnshape, "model.py:attention", *words)
    assert found["query"] == ("B Lq Dk", (2, 4, 3))
    assert found["scores"] == found["scaled"] == ("B Lq Lk", (2, 4, 6))


def test_class_with_init(model: str, attnshape: Attnshape):
    expected = [("B L 3*D", (2, 5, 36)), ("B L D", (2, 5, 12)), ("B L H Dk", (2, 5, 3, 4)), ("B H L Dk", (2, 3, 5, 4))]
    for init in (
        "D, H",
        "D, n_head=H",
        "d_model=H*Dk, n_head=H",
        "D, H, bias=False",
        "*(D, H)",
        "**dict(d_model=D, n_head=H)",
    ):
        assert outputs(attnshape, "model.py:Attention", "--init", init, *X, *SMALL) == expected


def test_names_available_in_init(model: str, attnshape: Attnshape):
    init = 'D if torch.is_grad_enabled() is not None else 0, WIDTHS["small"]'
    found = outputs(attnshape, "model.py:Attention", "--init", init, *X, *SMALL)
    assert found[-1][1] == (2, 3, 5, 4)


def test_sizes_win_over_module_names(folder: Path, attnshape: Attnshape):
    (folder / "shadow.py").write_text("import torch.nn as nn\nD = 'not a size'\nclass A(nn.Linear):\n    pass\n")
    assert outputs(attnshape, "shadow.py:A", "--init", "D, H", "--input", "input: B D", *SMALL) == [("B H", (2, 3))]


def test_factory_with_init(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:make", "--init", "D", "--input", "input: B D", *SMALL) == [("B D", (2, 12))]


def test_class_without_required_arguments(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:Plain", "--input", "x: B L", *SMALL[:4])
    assert found["called"] == ("B L", (2, 5))


# methods and paths


def test_bound_method(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:Attention.split", "--init", "D, H", *X, *SMALL)
    assert found["heads"] == ("B L H Dk", (2, 5, 3, 4))
    found = shapes(attnshape, "model.py:Plain.widen", "--input", "x: B L", *SMALL[:4])
    assert found["wide"] == ("B 4*L", (2, 20))
    found = shapes(attnshape, "model.py:Plain.widen", "--init", "D", "--input", "x: B L", *SMALL[:6])
    assert found["wide"] == ("B L*D", (2, 60))


def test_static_and_class_methods_need_no_instance(model: str, attnshape: Attnshape):
    assert shapes(attnshape, "model.py:Attention.double", *X, *SMALL[:6])["doubled"][0] == "B L D"
    assert shapes(attnshape, "model.py:Attention.triple", *X, *SMALL[:6])["tripled"][0] == "B L D"


@pytest.mark.parametrize(
    "path",
    [
        "build(D, H).layers[0].attn",
        "build(D, n_head=H).layers[-1].attn",
        'build(D, H).named["first"]',
        "build(D, H).layers[H-3].attn.forward",
        "Attention(D, H)",
    ],
)
def test_path_inside_a_built_object(path: str, model: str, attnshape: Attnshape):
    assert outputs(attnshape, f"model.py:{path}", *X, *SMALL)[-1][1] == (2, 3, 5, 4)


def test_path_without_sizes(model: str, attnshape: Attnshape):
    result = attnshape("trace", "model.py:build().layers[0].attn", "--input", "x: B L 12", "--format", "json")
    assert result.status == 0
    last = result.trace["steps"][-1]["outputs"][0]["tensor"]
    assert last["shape"] == [2, 3, 10, 4]
    assert [(axis["expression"], axis["known"]) for axis in last["axes"]] == [
        ("B", "verified"),
        ("3", "literal"),
        ("L", "verified"),
        ("4", "literal"),
    ]


def test_function_inside_an_object(model: str, attnshape: Attnshape):
    words = ["--input", "query: B Lq Dk", "--input", "key: B Lk Dk"]
    assert shapes(attnshape, "model.py:build().attend", *words)["scores"][0] == "B Lq Lk"


def test_module_level_instance(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:instance", "--input", "x: B L 12")[-1][1] == (2, 3, 10, 4)
    assert outputs(attnshape, "model.py:instance.split", "--input", "x: B L 12")[-1][1] == (2, 3, 10, 4)
    assert outputs(attnshape, "model.py:layer[0]", "--input", "input: B 12")[-1] == ("B 6", (2, 6))


def test_module_level_instance_in_another_dtype_and_on_meta(model: str, attnshape: Attnshape):
    for words in (["--dtype", "float64"], ["--device", "meta"], []):
        result = attnshape("trace", "model.py:instance", "--input", "x: B L 12", *words, "--format", "json")
        assert result.status == 0
        assert result.trace["complete"] is True


def test_module_level_instance_is_reset_for_each_run(folder: Path, attnshape: Attnshape):
    (folder / "counts.py").write_text(
        "from torch import nn\n"
        "class Counts(nn.Module):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        return x + 1 if self.calls == 1 else x * 2 - 1\n"
        "counts = Counts()\n"
    )
    for words in ([], ["--device", "meta"]):
        result = attnshape("trace", "counts.py:counts", "--input", "x: B L", *words, "--format", "json")
        assert len(result.trace["steps"]) == 1
        assert result.trace["notes"] == []
        assert {axis["known"] for axis in result.trace["steps"][0]["outputs"][0]["tensor"]["axes"]} == {"verified"}


# modules and packages


def package(folder: Path, name: str) -> None:
    inner = folder / name / "inner"
    inner.mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "layers.py").write_text("def scale(x):\n    scaled = x * 2\n    return scaled\n")
    (inner / "__init__.py").write_text("from .block import block\n")
    (inner / "block.py").write_text(
        "from .. import layers\nfrom ..layers import scale\ndef block(x):\n    return layers.scale(scale(x))\n"
    )


@pytest.mark.parametrize(
    "target",
    ["pack_a.inner.block:block", "pack_a/inner/block.py:block", "pack_a.inner:block", "./pack_a/inner/block.py:block"],
)
def test_relative_imports_work(target: str, folder: Path, attnshape: Attnshape):
    package(folder, "pack_a")
    result = attnshape("trace", target, "--input", "x: B L", "--format", "json")
    assert result.status == 0, result.err
    assert [step["source"]["file"] for step in result.trace["steps"]] == ["pack_a/layers.py"] * 2
    assert result.trace["target"] == target


def test_file_outside_the_current_folder_imports_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attnshape: Attnshape
):
    (tmp_path / "code").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "code" / "neighbour_b.py").write_text("FACTOR = 3\n")
    (tmp_path / "code" / "far_b.py").write_text("from neighbour_b import FACTOR\ndef f(x):\n    return x * FACTOR\n")
    monkeypatch.chdir(tmp_path / "here")
    for target in ("../code/far_b.py:f", f"{tmp_path}/code/far_b.py:f"):
        assert outputs(attnshape, target, "--input", "x: B L") == [("B L", (2, 10))]


def test_file_named_like_a_standard_module(folder: Path, attnshape: Attnshape):
    (folder / "queue.py").write_text("def f(x):\n    return x + 1\n")
    assert outputs(attnshape, "queue.py:f", "--input", "x: B L") == [("B L", (2, 10))]


def test_two_files_with_the_same_name(folder: Path, attnshape: Attnshape):
    for name, width in (("one", 1), ("two", 2)):
        (folder / name).mkdir()
        (folder / name / "same_c.py").write_text(f"def f(x):\n    return x.repeat(1, {width})\n")
    assert outputs(attnshape, "one/same_c.py:f", "--input", "x: B L")[0][1] == (2, 10)
    assert outputs(attnshape, "two/same_c.py:f", "--input", "x: B L")[0][1] == (2, 20)


def test_path_with_a_space(folder: Path, attnshape: Attnshape):
    (folder / "my code").mkdir()
    (folder / "my code" / "a file.py").write_text("def f(x):\n    return x + 1\n")
    assert outputs(attnshape, "my code/a file.py:f", "--input", "x: B L") == [("B L", (2, 10))]


def test_torch_module(attnshape: Attnshape):
    words = [
        "--init",
        "D, H, batch_first=True",
        "--input",
        "query: B Lq D",
        "--input",
        "key: B Lk D",
        "--input",
        "value: B Lk D",
    ]
    result = attnshape("trace", "torch.nn:MultiheadAttention", *words, "--format", "json")
    assert (result.status, result.err) == (0, "")
    last = result.trace["outputs"]
    assert [output["name"] for output in last] == ["output[0]", "output[1]"]
    ends = [result.trace["steps"][o["of"]["step"] - 1]["outputs"][o["of"].get("output", 0)]["tensor"] for o in last]
    assert [tensor["signature"] for tensor in ends] == ["B Lq D", "B Lq Lk"]


def test_torch_fused_attention(attnshape: Attnshape):
    words = ["--input", "query: B H Lq Dk", "--input", "key: B H Lk Dk", "--input", "value: B H Lk Dv"]
    found = outputs(attnshape, "torch.nn.functional:scaled_dot_product_attention", *words)
    assert found[-1] == ("B H Lq Dv", (2, 8, 10, 96))


def test_catalog_name(attnshape: Attnshape):
    assert shapes(attnshape, "multiplicative:general", "--d-model", "6", "--d-value", "9")["scores"][0] == "B Lq Lk"


def test_catalog_name_wins_over_a_module(folder: Path, attnshape: Attnshape):
    (folder / "average.py").write_text("raise ValueError\n")
    assert attnshape("trace average").status == 0


# cases


def test_case_with_two_values(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:pair", *SMALL[:6]) == [("B L 2*D", (2, 5, 24))]


def test_case_with_three_values(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:triple", "--queries", "4", "--keys", "6", "--d-head", "3")
    assert found["scaled"] == ("B Lq Lk", (2, 4, 6))


def test_case_with_keyword_arguments_only(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:by_keyword", "--queries", "4", "--keys", "6", "--d-head", "3")
    assert found["scaled"] == ("B Lq Lk", (2, 4, 6))


def test_case_with_a_config_and_a_default(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:configured", *SMALL)[-1] == ("B H L Dk", (2, 3, 5, 4))


def test_case_with_a_list_argument(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:listed", *SMALL[:4]) == [("B 2*L", (2, 10))]


# annotations


def test_annotations_serve_as_inputs(model: str, attnshape: Attnshape):
    result = attnshape("trace model.py:annotated --heads 3 --d-head 5 --queries 4 --keys 6 --format json")
    assert result.status == 0, result.err
    found = {named["name"]: (named["tensor"]["shape"], named["tensor"]["dtype"]) for named in result.trace["inputs"]}
    assert found["query"] == ([2, 3, 4, 5], "float32")
    assert found["mask"] == ([4, 6], "bool")
    assert found["ids"][0] == [2, 4]
    assert found["ids"][1].startswith("int")


def test_annotations_of_forward(model: str, attnshape: Attnshape):
    assert outputs(attnshape, "model.py:Annotated", "--init", "D", *SMALL[:6]) == [("B L D", (2, 5, 12))]


def test_parameters_with_defaults_are_left_out(model: str, attnshape: Attnshape):
    result = attnshape("trace model.py:optional --format json")
    assert [named["name"] for named in result.trace["inputs"]] == ["x"]


def test_inputs_win_over_annotations(model: str, attnshape: Attnshape):
    words = ["--input", "query: B H L Dk", "--input", "mask: bool L L", "--input", "ids: int B L"]
    assert shapes(attnshape, "model.py:annotated", *words)["masked"][0] == "B H L Dk"


# how parameters are passed


def test_keyword_only_parameter(model: str, attnshape: Attnshape):
    words = ["--input", "mask: bool B L", "--input", "x: B L"]
    assert shapes(attnshape, "model.py:keyword_only", *words)["masked"][0] == "B L"


def test_positional_only_parameters_in_any_order(model: str, attnshape: Attnshape):
    words = ["--with", "z=torch.zeros(B, 1)", "--input", "y: B 1", "--input", "x: B L", "--length", "5"]
    assert shapes(attnshape, "model.py:positional_only", *words)["total"] == ("B 2*L+1", (2, 11))


def test_variadic_parameters(model: str, attnshape: Attnshape):
    words = ["--input", "a: B L", "--input", "b: L"]
    for name in ("variadic", "named"):
        assert shapes(attnshape, f"model.py:{name}", *words)["total"][0] == "B L"
    words = ["--input", "first: B L", "--input", "second: L"]
    assert shapes(attnshape, "model.py:both", *words)["total"][0] == "B L"


# contents


def test_contents_of_inputs(model: str, attnshape: Attnshape):
    words = ["--input", "ids: int[V] B L", "--input", "counts: int B L", "--input", "flags: bool B L", "--dim", "V=5"]
    found = outputs(
        attnshape, "model.py:types", *words, "--input", "values: float B L", "--batch", "2000", "--length", "7"
    )
    assert found[-1] == ("B L", (2000, 7))


def test_contents_dtype_and_device_of_arguments(model: str, attnshape: Attnshape):
    many = '{"weights": [torch.ones(L)], "counts": torch.arange(L), "text": "left alone"}'
    words = ["--input", "x: B L", "--with", "mask=torch.ones(L, L).tril().bool()[0]", "--with", f"many={many}"]
    for device in ("cpu", "meta"):
        result = attnshape(
            "trace", "model.py:contents", *words, "--dtype", "float64", "--device", device, "--format", "json"
        )
        assert result.status == 0, result.err
        assert result.trace["complete"] is True
        assert {named["tensor"]["device"] for named in result.trace["inputs"]} == {device}


def test_same_seed_gives_the_same_run(folder: Path, attnshape: Attnshape):
    (folder / "draws.py").write_text(
        "import torch\ndef f(x):\n    n = 1 + int(x.abs().sum() * 1000) % 7\n    return x.repeat(n)\n"
    )

    def length(seed: str) -> int:
        result = attnshape("trace", "draws.py:f", "--input", "x: L", "--seed", seed, "--format", "json")
        return int(result.trace["steps"][-1]["outputs"][0]["tensor"]["shape"][0])

    assert length("1") == length("1")
    assert len({length(seed) for seed in "123456"}) > 1


# sizes


def test_custom_symbols(model: str, attnshape: Attnshape):
    words = ["--init", "C, nh", "--input", "x: B T C"]
    words += ["--dim", "C=nh*hs", "--dim", "T=5", "--dim", "nh=3", "--dim", "hs=4"]
    found = shapes(attnshape, "model.py:Attention", *words)
    assert found["x"] == ("B T C", (2, 5, 12))
    assert found["heads"] == ("B T nh hs", (2, 5, 3, 4))
    result = attnshape("trace", "model.py:Attention", *words, "--format", "json")
    sizes = result.trace["sizes"]
    assert {symbol: sizes[symbol]["size"] for symbol in ("T", "nh", "hs", "C")} == {"T": 5, "nh": 3, "hs": 4, "C": 12}
    assert sizes["C"] == {"size": 12, "from": "derived", "expression": "nh*hs"}
    assert sizes["T"] == {"size": 5, "from": "given"}


def test_custom_width_divisible_by_heads(model: str, attnshape: Attnshape):
    words = ["--init", "C, nh", "--input", "x: B T C", "--dim", "C=12", "--dim", "nh=3", "--dim", "T=5"]
    result = attnshape("trace", "model.py:Attention", *words, "--format", "json")
    assert (result.status, result.err) == (0, "")
    heads = result.tensors["heads"]
    assert heads["shape"] == [2, 5, 3, 4]
    assert [axis["expression"] for axis in heads["axes"]] == ["B", "T", "nh", "C//nh"]
    assert {axis["known"] for axis in heads["axes"]} == {"verified"}
    assert any("nh" in named and "C" in named for named in result.trace["preconditions"])


def test_custom_symbol_in_terms_of_built_in_ones(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:Attention.double", "--input", "x: B Lt", "--dim", "Lt=2*L+1", "--length", "4")
    assert found["doubled"] == ("B Lt", (2, 9))


def test_width_heads_and_head_width_are_independent_when_all_are_given(folder: Path, attnshape: Attnshape):
    (folder / "t5.py").write_text(
        "from torch import nn\n"
        "class T5(nn.Module):\n"
        "    def __init__(self, D, H, Dk):\n"
        "        super().__init__()\n"
        "        self.H, self.Dk = H, Dk\n"
        "        self.q = nn.Linear(D, H * Dk)\n"
        "    def forward(self, x):\n"
        "        B, L, D = x.shape\n"
        "        flat = self.q(x)\n"
        "        query = flat.view(B, L, self.H, self.Dk)\n"
        "        return query\n"
    )
    words = ["--init", "D, H, Dk", "--input", "x: B L D", "--d-model", "10", "--heads", "3", "--d-head", "4"]
    found = shapes(attnshape, "t5.py:T5", *words)
    assert found["x"] == ("B L D", (2, 10, 10))
    assert found["flat"] == ("B L H*Dk", (2, 10, 12))
    assert found["query"] == ("B L H Dk", (2, 10, 3, 4))


def test_width_is_derived_from_heads_and_head_width(model: str, attnshape: Attnshape):
    found = shapes(attnshape, "model.py:Attention", "--init", "D, H", *X, "--heads", "3", "--d-head", "4")
    assert found["x"] == ("B L D", (2, 10, 12))


def test_axis_expressions_in_inputs(model: str, attnshape: Attnshape):
    found = shapes(
        attnshape, "model.py:Attention.double", "--input", "x: Lp+L Dk//2 3*D 7", "--d-head", "6", "--d-model", "4"
    )
    assert found["doubled"] == ("Lp+L Dk//2 3*D 7", (16, 3, 12, 7))


def test_scalar_input(model: str, attnshape: Attnshape):
    assert shapes(attnshape, "model.py:Attention.double", "--input", "x:")["doubled"][1] == ()
