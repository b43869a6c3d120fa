"""`--inside`: one module of a target, with the arguments that it gets in a run of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnshape as package
from attnshape.errors import AttnshapeError
from tests.cli.running import Attnshape

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask=None, scale=1.0):
        B, L, D = x.shape
        q, k, v = (t.view(B, L, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * (D // self.heads) ** -0.5 * scale
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        context = weights @ v
        return self.out(context.transpose(1, 2).reshape(B, L, D))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = Attention(width, heads)

    def forward(self, x, mask):
        try:
            return x + self.attn(self.norm(x), mask=mask)
        except Exception:
            raise ValueError("the block failed")


class Model(nn.Module):
    def __init__(self, width, heads, layers=3):
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.unused = nn.Linear(width, width)
        self.shared = self.blocks[1].attn

    def forward(self, ids, fail=False):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        x = self.embed(ids)
        if fail:
            raise RuntimeError("it was told to fail")
        for block in self.blocks:
            x = block(x, mask)
        return x


def function(x):
    return x * 2
"""
TARGET = ("whole_model.py:Model", "--init", "D, H", "--input", "ids: int[64] B L")


@pytest.fixture(autouse=True)
def model(folder: Path) -> None:
    (folder / "whole_model.py").write_text(MODEL)


def test_its_inputs_are_what_it_gets_under_the_symbols_of_the_target(attnshape: Attnshape) -> None:
    result = attnshape("trace", *TARGET, "--inside", "blocks.1.attn", "--format", "json")
    trace = result.trace
    assert trace["target"] == "whole_model.py:Model inside blocks.1.attn"
    assert [(one["name"], one["tensor"]["signature"]) for one in trace["inputs"]] == [("x", "B L D"), ("mask", "L L")]
    assert trace["inputs"][1]["tensor"]["dtype"] == "bool"
    assert result.tensors["weights"]["signature"] == "B H L L"
    assert {step["module"] for step in trace["steps"]} == {None, "qkv", "out"}
    assert all(axis["known"] == "verified" for one in trace["inputs"] for axis in one["tensor"]["axes"])


def test_its_first_step_is_the_first_of_the_module(attnshape: Attnshape) -> None:
    whole = attnshape("trace", *TARGET, "--format", "json").trace
    inside = attnshape("trace", *TARGET, "--inside", "blocks.0.attn", "--format", "json").trace
    expected = [step for step in whole["steps"] if (step["module"] or "").startswith("blocks.0.attn")]
    assert [step["expression"] for step in inside["steps"]] == [step["expression"] for step in expected]
    for step, other in zip(inside["steps"], expected, strict=True):
        assert [one["tensor"]["signature"] for one in step["outputs"]] == [
            one["tensor"]["signature"] for one in other["outputs"]
        ]


def test_a_module_of_several_names_has_each(attnshape: Attnshape) -> None:
    assert attnshape("trace", *TARGET, "--inside", "shared").status == 0


def test_the_path_of_a_target_that_holds_a_module(attnshape: Attnshape, folder: Path) -> None:
    (folder / "case.py").write_text(
        "import torch\nfrom whole_model import Model\n\n\n"
        "def case(B, L, D, H):\n"
        "    model = Model(D, H)\n"
        "    return (lambda ids: model(ids)), (torch.randint(64, (B, L)),), {}, ['causal']\n"
    )
    result = attnshape("check", "case.py:case", "--inside", "model.blocks.0.attn")
    assert result.status == 0, result.out
    assert "claimed: causal" in result.out


def test_claims_are_checked_on_the_module_alone(attnshape: Attnshape, folder: Path) -> None:
    given = ("check", *TARGET, "--inside", "blocks.0.attn", "--format", "json")
    assert attnshape(*given, "--claim", "causal").status == 0
    assert attnshape(*given, "--claim", "mask=keep").status == 1
    (folder / "wrong.py").write_text(MODEL.replace("(D // self.heads) ** -0.5", "D ** -0.5"))
    wrong = attnshape("check", "wrong.py:Model", *given[2:])
    assert wrong.status == 1
    assert '"AS201"' in wrong.out


def test_annotations_are_those_of_the_module(attnshape: Attnshape) -> None:
    result = attnshape("annotate", *TARGET, "--inside", "blocks.0.attn")
    assert result.status == 0, result.err
    added = [line for line in result.out.splitlines() if line.startswith("+ ")]
    assert len(added) == 4
    assert 'x: Float[torch.Tensor, "B L D"], mask: Bool[torch.Tensor, "L L"] | None = None' in added[0]


def test_a_target_of_pyproject_names_it(attnshape: Attnshape, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.attnshape.targets.attn]\ntarget = "whole_model.py:Model"\ninit = "D, H"\n'
        'inputs = ["ids: int[64] B L"]\ninside = "blocks.0.attn"\n'
    )
    assert attnshape("trace", "attn", "--format", "json").trace["target"] == "whole_model.py:Model inside blocks.0.attn"
    typed = attnshape("trace", "attn", "--inside", "blocks.2.norm", "--format", "json").trace
    assert typed["target"] == "whole_model.py:Model inside blocks.2.norm"


def test_the_inputs_of_the_target_are_worked_out(attnshape: Attnshape) -> None:
    result = attnshape("trace", "whole_model.py:Model", "--inside", "blocks.0.attn", "--format", "json")
    assert result.trace["inputs"][0]["tensor"]["signature"] == "B L D"
    assert "--input" in result.trace["found"]


def test_on_meta_at_large_sizes(attnshape: Attnshape) -> None:
    sizes = ("--device", "meta", "--length", "100000")
    trace = attnshape("trace", *TARGET, "--inside", "blocks.2.attn", *sizes, "--format", "json").trace
    assert trace["inputs"][0]["tensor"]["shape"] == [2, 100_000, 512]
    assert trace["inputs"][0]["tensor"]["device"] == "meta"


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("blocks.0.atn", "whole_model.py:Model has no module 'blocks.0.atn'", "did you mean blocks.0.attn?"),
        ("", "whole_model.py:Model has no module ''", "its modules are: blocks.0.attn, blocks.0.attn.out, "),
        ("\x1b[31m", "has no module '\\x1b[31m'", "blocks.0.attn"),
        ("blocks", "blocks of whole_model.py:Model is a ModuleList, which is never called", "name one in it: blocks.0"),
        ("unused", "a run of whole_model.py:Model doesn't call unused", "name a module that it calls"),
    ],
)
def test_errors_name_the_module(attnshape: Attnshape, path: str, message: str, hint: str) -> None:
    result = attnshape("trace", *TARGET, "--inside", path)
    assert result.status == 2
    error, advice = result.err.splitlines()
    assert message in error
    assert hint in advice


def test_other_errors(attnshape: Attnshape) -> None:
    failed = attnshape("trace", *TARGET, "--with", "fail=True", "--inside", "blocks.0")
    assert failed.status == 2
    assert "fails before it calls blocks.0: RuntimeError: it was told to fail" in failed.err
    assert "hint: attnshape trace without --inside shows where and why" in failed.err
    plain = attnshape("trace", "whole_model.py:function", "--input", "x: B L", "--inside", "layer")
    assert "hint: name a module, or a case that returns one" in plain.err
    builtin = attnshape("trace", "multi-head", "--inside", "layer")
    assert "--inside is for your own targets; multi-head is built in" in builtin.err


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x[:, :4])) + self.layer(x[:, 4:8])


def test_in_python() -> None:
    model = Twice()
    trace = package.trace(model, inputs={"x": torch.ones(3, 10, 8)}, inside="layer", B=3, D=8)
    assert trace.inputs[0].tensor.shape == (3, 4, 8)
    assert "inside='layer'" in trace.command
    assert package.check(model, inputs={"x": "B L 8"}, inside="layer").target.endswith("Twice inside layer")
    with pytest.raises(AttnshapeError, match="has no module 'nothing'"):
        package.trace(model, inputs={"x": "B L 8"}, inside="nothing")


def test_hooks_of_the_module_run_once() -> None:
    model = Twice()
    model.layer.register_forward_pre_hook(lambda _, args: (args[0][:, 1:],))
    trace = package.trace(model, inputs={"x": torch.ones(3, 10, 8)}, inside="layer", B=3)
    assert [step.outputs[0].tensor.shape[1] for step in trace.steps] == [3, 3]


class Outer(nn.Module):
    """Has an input of the same name as the module inside, with other axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        return self.layer(torch.cat([input, input], 1))


def test_the_users_symbols_count_but_not_the_axes_of_an_input_of_the_same_name() -> None:
    trace = package.trace(Outer(), inputs={"input": "B L C"}, inside="layer", C="D")
    assert [named.tensor.signature for named in trace.inputs] == ["B 2*L C"]


class Padded(nn.Module):
    """An encoder that packs its input for torch's native kernels, unless a function mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]).expand(x.shape[:2]) == x.shape[1] - 1
        return self.encoder(x, src_key_padding_mask=padding)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_its_inputs_are_those_of_the_path_that_a_trace_shows() -> None:
    trace = package.trace(Padded(), inputs={"x": "B L 16"}, inside="encoder.layers.1")
    signatures = {named.name: named.tensor.signature for named in trace.inputs}
    assert signatures == {"src": "B L 16", "src_key_padding_mask": "B L"}
