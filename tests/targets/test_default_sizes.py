"""Symbols of the user's own that have a size without `--dim`: bounds of integers, and numbers of layers."""

import pytest

from attnshape.errors import AttnshapeError
from attnshape.options.spec import TargetSpec, parse_inputs
from tests.tracing.traced_source import trace

MODEL = """
from dataclasses import dataclass

vocab = None

@dataclass
class Config:
    vocab_size: int
    n_layer: int

class Model(nn.Module):
    def __init__(self, vocab_size, width, num_layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x

def build(config):
    return Model(config.vocab_size, 8, config.n_layer)
"""


@pytest.mark.parametrize(
    ("target", "init", "ids", "expected"),
    [
        ("Model", "V, D, N", "int[V] B L", {"V": 50, "N": 3}),
        ("Model", "V, D, num_layers=N", "int[V] B L", {"V": 50, "N": 3}),
        ("Model", "vocab, D, n_blocks", "int[vocab] B L", {"vocab": 50, "n_blocks": 3}),
        ("Model", "V, D", "int[V] B L", {"V": 50}),
        ("Model", "70, D", "int[V] B L", {"V": 50}),
        ("Model", "8*V, D", "int[8*V] B L", {"V": 50}),
        ("build", "Config(V, N)", "int[V] B L", None),
        ("build", "Config(V, n_layer=N)", "int[V] B L", {"V": 50, "N": 3}),
        ("build(Config(V, 1))", None, "int[V] B L", {"V": 50}),
    ],
)
def test_symbols_with_a_default(target, init, ids, expected, tmp_path):
    if expected is None:
        with pytest.raises(AttnshapeError, match="name 'N' is not defined"):
            trace(tmp_path, MODEL, f"ids: {ids}", target=target, init=init)
        return
    traced = trace(tmp_path, MODEL, f"ids: {ids}", target=target, init=init)
    own = {name: size for name, size in traced.sizes.items() if name in expected}
    assert {name: (size.size, size.origin) for name, size in own.items()} == {
        name: (size, "default") for name, size in expected.items()
    }
    TargetSpec(inputs=parse_inputs([f"ids: {ids}"])).require_known_symbols()


def test_given_sizes_replace_the_defaults(tmp_path):
    traced = trace(tmp_path, MODEL, "ids: int[V] B L", target="Model", init="V, D, N", dims=("V=20", "N=2"))
    assert {name: (traced.sizes[name].size, traced.sizes[name].origin) for name in "VN"} == {
        "V": (20, "given"),
        "N": (2, "given"),
    }


def test_bound_that_is_an_axis_too_has_no_default():
    spec = TargetSpec(inputs=parse_inputs(["ids: int[V] B L", "table: V D"]))
    with pytest.raises(AttnshapeError, match="V isn't a size symbol"):
        spec.require_known_symbols()


@pytest.mark.parametrize("parameter", ["layer_norm", "block_size", "heads", "max_len"])
def test_other_parameters_have_no_default(parameter, tmp_path):
    source = f"""
    class Model(nn.Module):
        def __init__(self, {parameter}):
            super().__init__()

        def forward(self, x):
            return x * 2
    """
    with pytest.raises(AttnshapeError, match="name 'N' is not defined"):
        trace(tmp_path, source, "x: B L D", target="Model", init="N")


def test_names_of_the_module_are_no_sizes(tmp_path):
    source = "N = 7\n" + MODEL
    traced = trace(tmp_path, source, "ids: int[V] B L", target="Model", init="V, D, N")
    assert "N" not in traced.sizes
    assert [loop.count for loop in traced.loops] == [7]


@pytest.mark.parametrize(
    ("init", "hint"),
    [
        ("d_in, d_out, N", "d_in=4, d_out=4;"),
        ("d_in, max(n for n in (1, 2)), torch.float", "d_in=4;"),
        ("D, heads=abs(heads)", "heads=4;"),
    ],
)
def test_hint_defines_every_unknown_name(init, hint, tmp_path):
    with pytest.raises(AttnshapeError, match="is not defined") as caught:
        trace(tmp_path, "N = 7\n" + MODEL, "ids: int B L", target="Model", init=init)
    assert f"define it: {hint}" in caught.value.hint


@pytest.mark.parametrize(
    ("axes", "message", "hint"),
    [
        ("B n d_in", "n and d_in aren't size symbols", "define them: n=4, d_in=4"),
        ("b l d", "b, l and d aren't size symbols", "did you mean B, L and D? (or define your own: b=4, l=4, d=4)"),
        ("B n n", "n isn't a size symbol", "(or define your own: n=4)"),
    ],
)
def test_unknown_axes_are_listed_together(axes, message, hint):
    with pytest.raises(AttnshapeError) as caught:
        TargetSpec(inputs={"x": axes}).require_known_symbols()
    assert message in caught.value.message
    assert hint in caught.value.hint
