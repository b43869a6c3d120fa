"""On CUDA the catalog and the examples have the same table as on the CPU, except for the device and its strides."""

import json
from pathlib import Path

import pytest
import torch

from attnshape.model.trace import TensorRecord, Trace
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request
from attnshape.targets.builtin.registry import CATALOG
from attnshape.targets.inputs import torch_dtype
from attnshape.tracing.runner import record
from tests.cost.measuring import subject_of
from tests.cost.test_estimate import LINES
from tests.specs import spec_of

EXAMPLES = json.loads((Path(__file__).parents[1] / "examples" / "expected.json").read_text())

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]


def described(tensor: TensorRecord) -> tuple[object, ...]:
    return tensor.signature, tensor.shape, tensor.dtype, tensor.axes, tensor.checked, tensor.storage.kind


def described_trace(trace: Trace) -> list[object]:
    """Return the facts that must be the same on both devices."""
    steps = [
        (s.expression, s.operation, s.role, s.module, [(o.name, described(o.tensor)) for o in s.outputs])
        for s in trace.steps
    ]
    return [steps, trace.outputs, trace.preconditions, trace.complete]


@pytest.mark.parametrize(
    "request_",
    [TargetSpec(name) for name in CATALOG] + [spec_of(*entry["argv"])[0] for entry in EXAMPLES.values()],
    ids=[*CATALOG, *EXAMPLES],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_table_on_cuda_equals_the_table_on_the_cpu(request_: TargetSpec, dtype: str) -> None:
    on_cpu = trace_request(request_, RunOptions(dtype=dtype))
    on_cuda = trace_request(request_, RunOptions(device="cuda", dtype=dtype))
    assert described_trace(on_cuda) == described_trace(on_cpu)
    devices = {output.tensor.device for step in on_cuda.steps for output in step.outputs}
    assert devices == {"cuda:0"}
    assert all(tensor.tensor.device == "cuda:0" for tensor in on_cuda.inputs)


ENLARGED = {"--batch": "8", "--length": "1000", "--queries": "1500", "--keys": "1600"}


def enlarged(argv: list[str]) -> list[str]:
    """Return a command with larger sizes instead of those that it has."""
    words = [word.replace("T=500", "T=3000") for word in argv]
    return words + [word for flag, size in ENLARGED.items() if flag in argv for word in (flag, size)]


LARGE = {
    name: enlarged(argv)
    for name, argv in LINES.items()
    if name not in ("decoding", "weights alone", "dropout", "gated-delta") and {"--length", "--keys"} & {*argv}
}
"""Commands whose peak is far above cuBLAS's workspace.

Dropout is left out, since its mask is smaller on CUDA, and the gated delta rule, whose loop has a step for each token,
so that its peak is only extrapolated. The length is within the examples' block size of 1,024.
"""


def measured_peak(argv: list[str]) -> int:
    """Return the peak memory of a run on the device, without cuBLAS's workspace."""
    subject = subject_of([*argv, "--device", "cuda"])
    small = torch.ones(64, 64, device="cuda", dtype=torch_dtype(subject.options))
    torch.nn.functional.linear(small @ small, small, small[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runnable = subject.target.build(subject.sizes.numbers, subject.options)
    raw = record(runnable, subject.options.seed, subject.options.grad)
    assert raw.failure is None, raw.failure
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", LARGE)
def test_peak_is_within_five_percent_of_the_estimate(name: str, grad: bool) -> None:
    argv = [*LARGE[name], *["--grad"] * grad]
    estimate = subject_of(argv).estimate(cuda=True)
    assert measured_peak(argv) == pytest.approx(estimate.peak().bytes, rel=0.05)


def test_missing_device_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    from attnshape.cli.app import run

    assert run(["trace", "--device", f"cuda:{torch.cuda.device_count()}"]) == 2
    assert "hint:" in capsys.readouterr().err
