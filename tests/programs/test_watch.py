"""`attnshape.watch()` in code, and `pytest --attnshape`."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnshape
from attnshape.model.program import CapturedAttention, CapturedTensor, Integer
from attnshape.programs.symbols import describe_target
from attnshape.programs.watch import Watch
from tests.programs.programs import SOURCES, ended, plain


class Attention(nn.Module):
    """Attention with a mask and a dictionary of options."""

    def __init__(self, width: int, *, heads: int = 2, layer_idx: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = (one.view(B, T, self.heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)


class Inherited(Attention):
    """Attention whose forward is inherited."""


@pytest.fixture
def watch():
    watch = Watch()
    watch.install()
    yield watch
    watch.uninstall()


def captured(watch: Watch) -> list[CapturedAttention]:
    captures = watch.captures()
    assert captures.problems == []
    return captures.attentions


def test_everything_is_put_back() -> None:
    before = nn.Module.__init__, nn.Module.__setstate__, vars(Attention)["forward"], dict(vars(nn.MultiheadAttention))
    watch = Watch()
    watch.install()
    for kind in (Attention, Inherited):
        kind(8)(torch.rand(1, 3, 8))
    assert vars(Attention)["forward"] is not before[2]
    assert Attention.forward is before[2]
    assert "forward" in vars(Inherited)
    watch.uninstall()
    after = nn.Module.__init__, nn.Module.__setstate__, vars(Attention)["forward"], dict(vars(nn.MultiheadAttention))
    assert after == before
    assert "forward" not in vars(Inherited)


def test_layers_are_one_attention_and_sizes_are_counted_apart(watch: Watch) -> None:
    layers = [Attention(8, layer_idx=place) for place in range(3)]
    for length in (5, 5, 4):
        for layer in layers:
            layer(torch.rand(2, length, 8))
    (attention,) = captured(watch)
    assert (attention.modules, attention.calls) == (3, 9)
    assert [(seen.shapes["x"], seen.calls) for seen in attention.sizes] == [((2, 5, 8), 6), ((2, 4, 8), 3)]
    assert attention.constructor == {"width": Integer(8)}


def test_other_arguments_are_another_attention(watch: Watch) -> None:
    layer = Attention(8)
    layer(torch.rand(2, 5, 8))
    layer(torch.rand(2, 5, 8), mask=torch.ones(5, 5).tril().bool())
    first, second = captured(watch)
    assert list(first.arguments) == ["x"]
    mask = second.arguments["mask"]
    assert isinstance(mask, CapturedTensor)
    assert mask.pattern == "causal"
    spec = next(describe_target("model.py:Attention", second))
    assert (spec.init, spec.inputs, spec.arguments) == (
        "D",
        {"x": "B L D"},
        {"mask": "torch.ones(L, L).tril().bool()"},
    )
    assert spec.sizes == {"D": 8, "B": 2, "L": 5}


def test_copies_and_saved_modules_are_watched_and_unchanged(watch: Watch) -> None:
    layer = Attention(8)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    assert [list(one._forward_pre_hooks) for one in copies] == [[], []]
    for one in copies:
        one(torch.rand(2, 5, 8))
    (attention,) = captured(watch)
    assert attention.modules == 2
    assert attention.constructor == {"width": Integer(8)}
    stream = io.BytesIO()
    torch.save(layer, stream)
    assert b"attnshape" not in stream.getvalue()


def test_modules_whose_class_a_library_derives_are_watched(watch: Watch) -> None:
    layer = Attention(8)
    layer.__class__ = type("FSDPAttention", (Attention,), {})  # as fully_shard and parametrizations do
    layer(torch.rand(2, 5, 8))
    (attention,) = captured(watch)
    assert (attention.name, attention.constructor, attention.calls) == ("Attention", {"width": Integer(8)}, 1)


def test_results_and_random_states_are_the_same() -> None:
    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False)
        result = model(torch.rand(5, 3, 16), mask=nn.Transformer.generate_square_subsequent_mask(5))
        result.sum().backward()
        return result, torch.rand(3)

    alone = run()
    watch = Watch()
    watch.install()
    try:
        watched = run()
    finally:
        watch.uninstall()
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
    (attention,) = captured(watch)
    assert (attention.name, attention.calls) == ("MultiheadAttention", 2)


def test_modes_of_the_program_see_nothing_of_it(watch: Watch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    class Count(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Count.calls += 1
            return function(*args, **(kwargs or {}))

    layer, x, mask = Attention(8), torch.rand(2, 5, 8), torch.ones(5, 5).tril().bool()
    counts = []
    for _ in range(2):  # the first call is described, the second only counted
        Count.calls = 0
        with Count(), FlopCounterMode(display=False) as flops:
            layer(x, mask)
        counts.append((Count.calls, flops.get_total_flops()))
    assert counts[0] == counts[1]


def test_a_failure_inside_is_reported_and_the_program_goes_on(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("inside")

    layer = Attention(8)
    meta = Attention(8).to("meta")
    assert meta(torch.rand(2, 5, 8, device="meta")).shape == (2, 5, 8)
    watch.forget()
    monkeypatch.setattr(watch, "_capture", fails)
    for _ in range(2):
        assert layer(torch.rand(2, 5, 8)).shape == (2, 5, 8)
    assert watch.captures().problems == ["ValueError: inside"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_is_the_same_and_says_what_is_not_seen(watch: Watch, backend: str) -> None:
    layer = Attention(8)
    x = torch.rand(2, 5, 8)
    expected = layer(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(layer, backend=backend, fullgraph=True)(x), expected)
    captures = watch.captures()
    assert captures.problems == []
    assert captures.is_compiled
    assert [one.calls for one in captures.attentions] == [1]


def test_recomputed_calls_are_counted_apart(watch: Watch) -> None:
    from torch.utils.checkpoint import checkpoint

    layer = Attention(8)
    checkpoint(layer, torch.rand(2, 5, 8, requires_grad=True), use_reentrant=False).sum().backward()
    (attention,) = captured(watch)
    assert (attention.calls, attention.recomputed) == (1, 1)


def test_autocast_is_noted(watch: Watch) -> None:
    layer = Attention(8)
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.rand(2, 5, 8))
    assert captured(watch)[0].autocast == "bfloat16"


def test_quantised_and_wrapped_modules_are_watched(watch: Watch) -> None:
    class Lora(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.down = base, nn.Linear(base.in_features, 2)
            self.up = nn.Linear(2, base.out_features)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    layer = Attention(8)
    layer.qkv = Lora(layer.qkv)  # type: ignore[assignment]
    layer(torch.rand(2, 5, 8))
    quantised = torch.ao.quantization.quantize_dynamic(Attention(8), {nn.Linear}, torch.qint8)
    quantised(torch.rand(2, 5, 8))
    (attention,) = captured(watch)
    assert attention.calls == 2


def test_sizes_of_modules_constructed_before_come_from_their_attributes() -> None:
    layer = Attention(8, heads=4)
    watch = Watch()
    watch.install()
    watch.watch_loaded_classes()
    layer(torch.rand(2, 5, 8))
    watch.uninstall()
    (attention,) = captured(watch)
    assert attention.constructor is None
    spec = next(describe_target("model.py:Attention", attention))
    assert (spec.init, spec.inputs, spec.sizes) == (None, {"x": "B L D"}, {"H": 4, "B": 2, "L": 5, "D": 8})


def test_the_context_reports_modules_that_were_constructed_before(capsys: pytest.CaptureFixture[str]) -> None:
    attention = nn.MultiheadAttention(8, 2)
    x = torch.rand(5, 3, 8)
    with attnshape.watch() as watching:
        attention(x, x, x)
        with pytest.raises(attnshape.AttnshapeError), attnshape.watch():
            pass
    assert watching.summary is not None
    assert watching.summary.attentions[0].captured.calls == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("attnshape: 1 attention in 1 call\n")


TESTS = """
import torch
from model import GPT, GPTConfig

def run():
    model = GPT(GPTConfig(block_size=8, vocab_size=11, n_layer=1, n_head=2, n_embd=8))
    assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, 11)

def test_one():
    run()

def test_two():
    run()
"""


@pytest.mark.parametrize("more", [[], ["-n", "2"]])
def test_pytest_reports_with_the_flag(tmp_path: Path, more: list[str]) -> None:
    shutil.copy(SOURCES / "model.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("")
    words = ["-m", "pytest", "-p", "attnshape.testing.plugin", "-q", "-p", "no:cacheprovider", *more]
    alone, watched = plain(words, tmp_path), ended([sys.executable, *words, "--attnshape"], tmp_path)
    assert alone.status == watched.status == 0, watched.output + watched.errors
    assert "attnshape: 1 attention in 2 calls" in watched.output
    assert "attnshape" not in alone.output
