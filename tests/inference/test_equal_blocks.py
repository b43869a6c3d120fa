"""Equal blocks, such as a model's layers, are folded whether or not their number is a size; others aren't."""

from pathlib import Path

import pytest

from attnshape.model.trace import Trace
from tests.tracing.traced_source import trace

MODEL = """
class Layer(nn.Module):
    def __init__(self, D, bias=True):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=bias)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT
        weights = scores.masked_fill(mask, -1e9).softmax(-1)
        return x + weights @ v


class Model(nn.Module):
    def __init__(self, D, layers=3, every=100):
        super().__init__()
        self.layers = nn.ModuleList([Layer(D) for _ in range(layers)])
        self.every = every

    def forward(self, x):
        L = x.shape[1]
        full = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        local = full | torch.ones(L, L, dtype=torch.bool, device=x.device).tril(-3)
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, full if number % self.every == 0 else local)
        return x


class Different(Model):
    def __init__(self, D):
        super().__init__(D)
        self.layers[1].qkv = nn.Linear(D, 6 * D)


class First(Model):
    def forward(self, x):
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
        first = x
        for layer in self.layers:
            x = layer(x, mask) + first
        return x


class Back(Model):
    def forward(self, x):
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
        made = [x]
        for number, layer in enumerate(self.layers):
            made.append(layer(made[number // 2], mask))
        return made[-1]


class Wrapped(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.outer = nn.Sequential(Model(D))

    def forward(self, x):
        return self.outer(x)
"""


def traced(folder: Path, target: str = "Model", init: str = "D", *, source: str = MODEL, **sizes: int) -> Trace:
    return trace(folder, source, "x: B L D", target=target, init=init, **sizes)


def loops(of: Trace) -> list[tuple[int, int, int, tuple[str, str]]]:
    return [(loop.first, loop.last, loop.count, loop.modules) for loop in of.loops]  # type: ignore[misc]


def test_layers_are_folded_and_verified(tmp_path: Path) -> None:
    model = traced(tmp_path)
    assert loops(model) == [(6, 13, 3, ("layers.0", "layers.2"))]
    assert model.loops[0].expression == "3"
    assert len(model.steps) == 13
    assert all(output.tensor.held_out for step in model.steps for output in step.outputs)
    assert model.outputs[0].of.step == 13


def test_a_number_of_layers_that_is_a_size_has_its_symbol(tmp_path: Path) -> None:
    model = traced(tmp_path, init="D, N", N=5)
    assert [(loop.count, loop.expression, loop.known) for loop in model.loops] == [(5, "N", "verified")]
    assert model.loops[0].modules == ("layers.0", "layers.4")


def test_layers_that_read_different_masks_differ(tmp_path: Path) -> None:
    assert loops(traced(tmp_path, init="D, 2, 2")) == []
    assert loops(traced(tmp_path, init="D, 3, 3")) == [(6, 13, 2, ("layers.0", "layers.1"))]
    assert loops(traced(tmp_path, init="D, 7, 3")) == [
        (6, 21, 2, ("layers.0", "layers.5")),
        (6, 13, 2, ("layers.0", "layers.1")),
    ]


def test_layers_of_different_widths_differ(tmp_path: Path) -> None:
    source = MODEL.replace("q, k, v = self.qkv(x).chunk(3, -1)", "q, k, v, *_ = self.qkv(x).split(x.shape[-1], -1)")
    assert loops(traced(tmp_path, "Different", source=source)) == []


def test_a_result_that_all_layers_read_is_no_previous_layer(tmp_path: Path) -> None:
    # the first layer reads the input as its own and as the first; the others don't
    assert loops(traced(tmp_path, "First", "D, 4")) == [(11, 19, 3, ("layers.1", "layers.3"))]
    assert loops(traced(tmp_path, "Back", "D, 4")) == [
        (2, 9, 2, ("layers.0", "layers.1")),
        (10, 17, 2, ("layers.2", "layers.3")),
    ]


def test_layers_inside_another_list(tmp_path: Path) -> None:
    assert loops(traced(tmp_path, "Wrapped"))[0][3] == ("outer.0.layers.0", "outer.0.layers.2")


def test_short_repetitions_stay(tmp_path: Path) -> None:
    short = """
    def f(x):
        x = x * 2
        x = x * 2
        for _ in range({}):
            x = x + 1
        return x
    """
    assert len(trace(tmp_path, short.format(3), "x: B L").steps) == 5
    assert [loop.count for loop in trace(tmp_path, short.format(4), "x: B L").loops] == [4]


def test_a_failure_leaves_every_layer(tmp_path: Path) -> None:
    source = MODEL.replace("        return x\n\n\nclass Different", "        return x @ x\n\n\nclass Different")
    model = traced(tmp_path, source=source)
    assert model.failure is not None
    assert loops(model) == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_peak_memory_is_at_a_step_that_is_shown(tmp_path: Path, device: str) -> None:
    from attnshape.options.spec import RunOptions, TargetSpec
    from attnshape.pipelines.trace import trace_request
    from tests.tracing.traced_source import write

    spec = TargetSpec(f"{write(tmp_path, MODEL)}:Model", init="D, 6", inputs={"x": "B L D"}, sizes={"L": 3000, "D": 64})
    model = trace_request(spec, RunOptions(device=device))
    assert [loop.count for loop in model.loops] == [6]
    assert model.peak and model.peak.step is not None and model.peak.step <= len(model.steps)
    assert model.peak.known == "verified"
