"""On CUDA the catalog and the examples give the same table as on the CPU, but for the device and its strides."""

import json
from pathlib import Path

import pytest
import torch

from attnshape.catalog.registry import CATALOG
from attnshape.cli.request import Flags, combine
from attnshape.model import TensorRecord, Trace
from attnshape.pipeline import trace_request
from attnshape.settings import Settings
from attnshape.target.request import Request

EXAMPLES = json.loads((Path(__file__).parents[1] / "examples" / "expected.json").read_text())
FLAGS = ("init", "input", "with", "dim", "expect")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]


def request_of(argv: list[str]) -> Request:
    """Return the request that an example's command line stands for."""
    values: dict[str, list[str]] = {flag: [] for flag in FLAGS}
    for flag, value in zip(argv[1::2], argv[2::2], strict=True):
        values[flag.removeprefix("--")].append(value)
    others = (
        "batch",
        "heads",
        "kv-heads",
        "group",
        "past",
        "length",
        "queries",
        "keys",
        "d-model",
        "d-head",
        "d-value",
    )
    more = ("window", "causal", "padding", "mask-value", "dropout", "no-bias", "device", "dtype", "seed", "train")
    request, _ = combine(argv[0], Flags({**values, **{flag: [] for flag in (*others, *more)}}), "")
    return request


def described(tensor: TensorRecord) -> tuple[object, ...]:
    return tensor.signature, tensor.shape, tensor.dtype, tensor.axes, tensor.checked, tensor.storage.kind


def described_trace(trace: Trace) -> list[object]:
    """Return what must be the same on both devices."""
    steps = [
        (s.expression, s.operation, s.role, s.module, [(o.name, described(o.tensor)) for o in s.outputs])
        for s in trace.steps
    ]
    return [steps, trace.outputs, trace.preconditions, trace.complete]


@pytest.mark.parametrize(
    "request_",
    [Request(name) for name in CATALOG] + [request_of(entry["argv"]) for entry in EXAMPLES.values()],
    ids=[*CATALOG, *EXAMPLES],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_table_is_that_of_the_cpu(request_: Request, dtype: str) -> None:
    on_cpu = trace_request(request_, Settings(dtype=dtype))
    on_cuda = trace_request(request_, Settings(device="cuda", dtype=dtype))
    assert described_trace(on_cuda) == described_trace(on_cpu)
    devices = {output.tensor.device for step in on_cuda.steps for output in step.outputs}
    assert devices == {"cuda:0"}
    assert all(tensor.tensor.device == "cuda:0" for tensor in on_cuda.inputs)


def test_a_device_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    from attnshape.cli.run import run

    assert run(["trace", "--device", f"cuda:{torch.cuda.device_count()}"]) == 2
    assert "hint:" in capsys.readouterr().err
