"""The steps inside composites: torch's own functions, library modules, and calls of einops."""

import pytest
import torch

from attnshape.reporters.trace_view import trace_footer
from attnshape.tracing.runner import Runnable, record
from tests.tracing.traced_source import names, trace


def operations_and_depths(traced):
    """Return the short name and the nesting depth of each step's operation."""
    depths = {}
    for step in traced.steps:
        depths[step.index] = depths[step.parent] + 1 if step.parent is not None else 0
    return [(step.operation.rpartition(".")[2], depths[step.index]) for step in traced.steps]


def test_torch_function_has_inner_steps(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    a = F.normalize(x, dim=-1)\n    return a * 2", "x: B Dk")
    assert operations_and_depths(traced) == [
        ("normalize", 0),
        ("norm", 1),
        ("clamp_min", 1),
        ("expand_as", 1),
        ("div", 1),
        ("mul", 0),
    ]
    composite, last = traced.steps[0], traced.steps[4]
    assert composite.outputs[0].name == "a"
    assert composite.outputs[0].inner.step == last.index
    assert traced.steps[5].operands[0].step == composite.index
    assert last.source.file.endswith("functional.py")


def test_composite_of_one_step_becomes_that_step(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    a = F.softmax(x, dim=-1)\n    return F.dropout(a, 0.5, False)", "x: B Dk")
    assert operations_and_depths(traced) == [("softmax", 0), ("dropout", 0)]
    assert [step.outputs[0].tensor.storage.kind for step in traced.steps] == ["new", "same"]
    assert names(traced) == ["a", None]


def test_torch_module_keeps_its_nesting(tmp_path):
    source = """
    class M(nn.Module):
        def __init__(self, D, H):
            super().__init__()
            self.attention = nn.MultiheadAttention(D, H, batch_first=True)

        def forward(self, x):
            out, weights = self.attention(x, x, x)
            return out
    """
    traced = trace(tmp_path, source, "x: B L D", target="M", init="D, H", D=24, H=4)
    found = operations_and_depths(traced)
    assert found[0] == ("MultiheadAttention", 0)
    assert ("multi_head_attention_forward", 1) in found
    assert max(depth for _, depth in found) == 2
    scores = next(step for step in traced.steps if step.role == "scores")
    assert scores.outputs[0].tensor.signature == "B*H L L"
    assert [output.name for output in traced.steps[0].outputs] == ["out", "weights"]


def test_inner_memory_is_counted_once(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    return F.normalize(x, dim=-1)", "x: B Dk", B=4, Dk=256)
    (line,) = [line.text for line in trace_footer(traced, len(traced.steps)) if line.text.startswith("new storage")]
    assert line.startswith("new storage 4 KiB")  # 4096 for the result, 16 and 16 for the norms


def test_einops_calls_have_inner_steps(tmp_path):
    pytest.importorskip("einops")
    source = """
    from einops import rearrange, reduce

    def f(x):
        q, k = (rearrange(t, "b n (h d) -> b h n d", h=2) for t in x.chunk(2, -1))
        pooled = reduce(q @ k.mT, "b h i j -> b i", "mean")
        return rearrange(pooled, "b i -> i b")
    """
    traced = trace(tmp_path, source, "x: B L D", D=16)
    outermost = [(step.operation, step.outputs[0].name) for step in traced.steps if step.parent is None]
    assert outermost == [
        ("torch.Tensor.chunk", None),
        ("einops.rearrange", "q"),
        ("einops.rearrange", "k"),
        ("torch.Tensor.mT", None),
        ("torch.Tensor.matmul", None),
        ("einops.reduce", "pooled"),
        ("torch.Tensor.permute", None),
    ]


def test_printing_records_no_steps(tmp_path):
    traced = trace(tmp_path, "def f(x):\n    a = x * 2\n    str(a)\n    return a + 1", "x: B Dk")
    assert names(traced) == ["a", None]


def test_inner_failure_is_at_the_users_line(tmp_path):
    source = "def f(x, y):\n    a = x * 2\n    return F.multi_head_attention_forward(a, y, y, *g())\n\n\ndef g():\n"
    source += (
        "    w = torch.zeros(3 * 8, 8)\n    return (8, 2, w, None, None, None, False, 0.0, torch.zeros(8, 7), None)"
    )
    traced = trace(tmp_path, source, "x: L B Dk", "y: L B Dk", Dk=8)
    assert traced.failure.source.line == 10
    assert traced.failure.operation == "torch.nn.functional.linear"
    assert all(step.outputs for step in traced.steps)


def test_composites_do_not_change_results():
    x = torch.randn(3, 4, 8)
    weight = torch.randn(24, 8)

    def run():
        arguments = (8, 2, weight, None, None, None, False, 0.0, weight[:8], None)
        return torch.nn.functional.multi_head_attention_forward(x, x, x, *arguments, need_weights=True)

    results = []
    raw = record(Runnable(lambda: results.extend(run())), 0)
    assert raw.broken is None
    assert len(raw.steps) > 20
    assert all(torch.equal(one, other) for one, other in zip(results, run(), strict=True))


def test_module_called_with_keywords_returns_its_operand(tmp_path):
    source = "def f(x):\n    drop = nn.Dropout().eval()\n    a = x * 2\n    return drop(input=a)"
    traced = trace(tmp_path, source, "x: B Dk")
    assert traced.steps[-1].outputs[0].tensor.storage.kind == "same"
