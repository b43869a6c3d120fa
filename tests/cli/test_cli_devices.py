"""`--device`, `--dtype`, `--train` and `--grad`."""

import pytest


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("half", "float16"),
        ("bf16", "bfloat16"),
        ("double", "float64"),
        ("torch.float16", "float16"),
        ("Float32", "float32"),
        ("flaot64", "float64"),
    ],
)
def test_dtype_alias_is_suggested(attnshape, typed, suggestion):
    done = attnshape("trace", "--dtype", typed)
    assert done.status == 2
    expected = "expected float32, float64, float16, bfloat16"
    assert done.err == f"error: --dtype is {typed!r}, {expected}\nhint: did you mean {suggestion}?\n"


@pytest.mark.parametrize("typed", ["int8", "complex64", "x"])
def test_unsupported_dtype_lists_the_choices(attnshape, typed):
    done = attnshape("trace", "--dtype", typed)
    assert done.status == 2
    assert "hint: choose from: float32, float64, float16, bfloat16" in done.err


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtype_applies_to_all_tensors(attnshape, dtype):
    tensors = attnshape("trace", "--dtype", dtype, "--format", "json").tensors
    assert {tensor["dtype"] for tensor in tensors.values()} == {dtype}


def test_kernel_without_the_dtype_is_a_failure_of_the_step(attnshape, folder):
    (folder / "model.py").write_text("import torch\n\ndef f(x):\n    y = x + x\n    return torch.linalg.inv(y)\n")
    done = attnshape("trace", "model.py:f", "--input", "x: D D", "--d-model", "4", "--dtype", "float16")
    assert done.status == 1
    assert "✗ failed at model.py:5" in done.out
    assert "Traceback" not in done.out + done.err


MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self, D):
        super().__init__()
        self.proj = torch.nn.Linear(D, D)
    def forward(self, x):
        assert torch.is_grad_enabled() == EXPECTED
        y = self.proj(x)
        assert y.requires_grad == EXPECTED
        assert not x.requires_grad
        return y.exp().exp()
def function(x):
    assert x.requires_grad == EXPECTED
    return x.exp().exp()
"""


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("target", ["Model", "function"])
def test_grad_is_enabled_only_with_the_flag(attnshape, folder, grad, target):
    (folder / "model.py").write_text(MODEL.replace("EXPECTED", str(grad)))
    init = ["--init", "D"] if target == "Model" else []
    done = attnshape(
        "trace", f"model.py:{target}", *init, "--input", "x: B L D", *["--grad"] * grad, "--format", "json"
    )
    assert done.status == 0, done.out
    assert done.trace.get("grad", False) is grad
    assert ("peak" in done.trace) is grad


def test_grad_is_shown_in_the_header_and_the_footer(attnshape):
    out = attnshape("trace --grad --format table").out
    assert "multi-head · cpu · float32 · with gradients" in out
    assert "\npeak of live memory 4.4 MiB at step 19 (verified)\n" in out
    assert "gradients" not in attnshape("trace --format table").out.partition("\n")[2]


def test_grad_can_be_set_in_pyproject(attnshape, folder):
    (folder / "model.py").write_text(MODEL.replace("EXPECTED", "True"))
    (folder / "pyproject.toml").write_text(
        '[tool.attnshape.targets.one]\ntarget = "model.py:Model"\ninit = "D"\ninput = "x: B L D"\n'
        'grad = true\ndtype = "float64"\ndevice = "cpu"\n'
    )
    trace = attnshape("trace one --format json").trace
    assert (trace["grad"], trace["dtype"]) == (True, "float64")


def test_saved_peak_is_shown_and_must_refer_to_a_step(attnshape, folder):
    saved = attnshape("trace --grad --format json").out
    (folder / "saved.json").write_text(saved)
    assert "peak of live memory 4.4 MiB at step 19 (verified)" in attnshape("show saved.json --format table").out
    (folder / "saved.json").write_text(saved.replace('"step": 19,\n  "parameters"', '"step": 91,\n  "parameters"'))
    done = attnshape("show saved.json")
    assert done.status == 2
    assert "step 91" in done.err
