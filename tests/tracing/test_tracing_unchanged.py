"""Recording doesn't change results, global state or return types."""

import dataclasses
import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.targets.builtin.registry import CATALOG, load
from attnshape.targets.find import find_target
from attnshape.tracing.runner import Runnable, record
from tests.specs import spec_of
from tests.tracing.traced_source import trace

ROOT = Path(__file__).parents[2]
EXPECTED = json.loads((ROOT / "tests" / "examples" / "expected.json").read_text(encoding="utf-8"))
CASES = [(name, case) for name in CATALOG for case in load(name)]


def equal(first: object, second: object) -> bool:
    if isinstance(first, Tensor):
        return (
            isinstance(second, Tensor)
            and first.dtype == second.dtype
            and first.stride() == second.stride()
            and torch.equal(
                first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8)
            )
        )
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    return first == second


def recorded_and_plain(request: TargetSpec, train: bool) -> tuple[object, object]:
    """Return the results of a target with and without recording."""
    target = find_target(request)
    sizes = target.sizes
    options = RunOptions(train=train)
    results = []

    def build():
        torch.manual_seed(0)
        return target.build(sizes.numbers, options)

    runnable = build()
    function = runnable.function

    class Keep(Runnable):
        def call(self):
            results.append(super().call())
            return results[-1]

    raw = record(Keep(function, runnable.args, runnable.kwargs), 7)
    assert raw.failure is None
    assert raw.broken is None
    assert raw.steps
    plain = build()
    torch.manual_seed(7)
    return results[0], plain.call()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_recording_does_not_change_results_of_the_catalog(name, case, train):
    recorded, plain = recorded_and_plain(TargetSpec(target=f"{name}:{case}"), train)
    assert equal(recorded, plain)


@pytest.mark.parametrize("file", EXPECTED)
def test_recording_does_not_change_results_of_the_examples(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    recorded, plain = recorded_and_plain(spec_of(*EXPECTED[file]["argv"])[0], False)
    assert equal(recorded, plain)


def test_recording_restores_global_state(tmp_path):
    before = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.overrides._get_current_function_mode(),
        random.getstate(),
        dict(nn.modules.module._global_forward_hooks),
        dict(nn.modules.module._global_forward_pre_hooks),
    )
    source = """
    class M(nn.Module):
        def __init__(self, fails):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.fails = fails

        def forward(self, x):
            y = self.fc(x)
            if self.fails:
                raise ValueError
            return y
    """
    for fails in ("False", "True"):
        traced = trace(tmp_path, source, "x: B 4", target="M", init=fails)
        assert (traced.failure is not None) == (fails == "True")
        after = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.overrides._get_current_function_mode(),
            random.getstate(),
            dict(nn.modules.module._global_forward_hooks),
            dict(nn.modules.module._global_forward_pre_hooks),
        )
        assert after == before


@pytest.mark.parametrize("enabled", [True, False])
def test_recording_keeps_the_grad_mode(enabled):
    with torch.set_grad_enabled(enabled):
        record(Runnable(lambda x: x * 2, (torch.ones(2),)), 0)
        assert torch.is_grad_enabled() is enabled


class Pair(NamedTuple):
    first: Tensor
    second: object


@dataclasses.dataclass
class Result:
    context: Tensor
    weights: Tensor | None = None
    more: object = None


A, B = torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (A, ["output"]),
        (None, []),
        (3, []),
        ("text", []),
        ((A, B), ["output[0]", "output[1]"]),
        ([A, None, B], ["output[0]", "output[2]"]),
        ((A, (B, None)), ["output[0]", "output[1][0]"]),
        ({"k": A, 1: B}, ["output['k']", "output[1]"]),
        (Pair(A, [B]), ["output.first", "output.second[0]"]),
        (Result(A), ["output.context"]),
        (Result(A, B, {"x": A}), ["output.context", "output.weights", "output.more['x']"]),
        (Result, []),
        ({"r": Result(A, B)}, ["output['r'].context", "output['r'].weights"]),
        ((), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_paths_of_outputs(value, expected):
    results = []

    def f(x):
        results.append(value)
        return value

    raw = record(Runnable(f, (A,)), 0)
    assert raw.failure is None
    assert results[0] is value
    assert [path for path, _ in raw.returned] == expected


def test_outputs_refer_to_their_steps(tmp_path):
    source = "def f(x):\n    a = x * 2\n    b, c = a.chunk(2, -1)\n    return {'c': c, 'x': x, 'a': (a,)}"
    traced = trace(tmp_path, source, "x: B Dk")
    found = {output.name: (output.of.step, output.of.output, output.of.input) for output in traced.outputs}
    assert found == {"output['c']": (2, 1, None), "output['x']": (None, 0, "x"), "output['a'][0]": (1, 0, None)}


def test_inputs_within_containers_and_defaults(tmp_path):
    source = """
    def case(B, Dk):
        pair = (torch.ones(B), torch.ones(Dk))
        return f, (pair,), {"options": {"scale": torch.ones(1)}, "t": torch.ones(B, Dk)}


    def f(pair, *, options, t):
        return t * pair[1] * options["scale"] + pair[0][:, None]
    """
    traced = trace(tmp_path, source, target="case")
    assert [(named.name, named.tensor.signature) for named in traced.inputs] == [
        ("pair[0]", "B"),
        ("pair[1]", "Dk"),
        ("options['scale']", "1"),
        ("t", "B Dk"),
    ]
    assert traced.steps[0].operands[1].input == "pair[1]"
