"""`attnshape.trace` and `attnshape.record` leave the state of the caller's process unchanged."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import attnshape


def changes_global_state(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    sys.path.insert(0, "/nowhere")
    print("printed by the code")
    return x + 1


def state() -> tuple[object, ...]:
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        list(sys.path),
        sys.stdout,
    )


def test_trace_restores_global_state() -> None:
    before = state()
    attnshape.trace(changes_global_state, inputs={"x": "B L"})
    assert state() == before
    assert torch.ones(1).device.type == "cpu"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_default_device_stays_set(device: str) -> None:
    torch.set_default_device(device)
    try:
        attnshape.trace(changes_global_state, inputs={"x": "B L"})
        assert torch.ones(1).device.type == device
    finally:
        torch.set_default_device(None)


def test_refused_request_restores_global_state() -> None:
    def case(B: int) -> None:
        changes_global_state(torch.ones(B))
        raise ValueError("no")

    before = state()
    with pytest.raises(attnshape.AttnshapeError):
        attnshape.trace(case)
    assert state() == before


def test_printed_output_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    attnshape.trace(changes_global_state, inputs={"x": "B L"})
    print("printed by the caller")
    captured = capsys.readouterr()
    assert captured.out == "printed by the caller\n"
    assert "printed by the code" in captured.err


def test_recording_does_not_redirect_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with attnshape.record():
        print("printed inside")
    assert capsys.readouterr().out == "printed inside\n"


def test_recording_keeps_the_callers_grad_mode() -> None:
    weight = torch.ones(3, requires_grad=True)
    with attnshape.record(sizes={"D": 3}):
        (weight * 2).sum().backward()
    assert weight.grad is not None


def test_recording_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    plain = torch.randn(4)
    torch.manual_seed(3)
    with attnshape.record(sizes={"D": 4}) as recording:
        recorded = torch.randn(4)
    assert torch.equal(plain, recorded)
    assert recording.trace.seed == 3
    torch.manual_seed(3)
    with attnshape.record():
        torch.randn(4)
    after = torch.randn(4)
    torch.manual_seed(3)
    torch.randn(4)
    assert torch.equal(after, torch.randn(4))


def test_importing_the_package_is_lazy() -> None:
    code = (
        "import sys, attnshape; dir(attnshape); attnshape.AttnshapeError; "
        "print([name for name in ('torch', 'msgspec', 'rich', 'jaxtyping', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_reading_a_saved_trace_does_not_import_torch() -> None:
    text = attnshape.trace("scaled-dot-product").to_json()
    code = (
        "import sys, attnshape; trace = attnshape.Trace.from_json(sys.stdin.read()); print(trace); "
        "trace._repr_html_(); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert "weights = " in done.stdout
