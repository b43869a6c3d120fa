"""Changes that a target makes to the process are undone after each run."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnshape.runtime.isolation import isolated, seed_all
from tests.robust.output_parsers import attnshape

# each entry changes one thing; `keep` holds references to modes that would otherwise end
CHANGES = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "default device": "torch.set_default_device('meta')",
    "grad mode": "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "inference mode": "keep.append(torch.inference_mode()); keep[-1].__enter__()",
    "autocast": "keep.append(torch.autocast('cpu')); keep[-1].__enter__()",
    "function mode": "keep.append(Mode()); keep[-1].__enter__()",
    "dispatch mode": "keep.append(Dispatch()); keep[-1].__enter__()",
    "deterministic": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "threads": "torch.set_num_threads(3 if torch.get_num_threads() != 3 else 1)",
    "print options": "torch.set_printoptions(precision=1, sci_mode=True)",
    "hooks": "nn.modules.module.register_module_forward_hook(lambda *a: None)",
    "fused attention": "torch.backends.cuda.enable_flash_sdp(False)",
    "fast path": "torch.backends.mha.set_fastpath_enabled(False)",
    "seed": "torch.manual_seed(99)",
    "python's seed": "random.seed(99)",
    "numpy's seed": "np.random.seed(99)",
    "folder": "os.chdir('/')",
    "environment": "os.environ.clear(); os.environ['NEW'] = '1'",
    "path": "sys.path.clear()",
    "filters": "warnings.simplefilter('error')",
    "handlers": "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "wakeup": "signal.set_wakeup_fd(-1)",
    "alarm": "signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(1)",
    "recursion": "sys.setrecursionlimit(5000)",
    "collection": "gc.disable() if gc.isenabled() else gc.enable(); gc.set_threshold(5, 5, 5)",
    "tracing": "sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None); threading.setprofile(lambda *a: None)",
}
HEAD = """
import gc, os, random, signal, sys, threading, warnings
import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

keep = []

class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 0 + 77

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
"""


def state() -> dict[str, Any]:
    """Return all state that the changes affect."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": (torch.get_default_device(), torch.ones(1).device),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "function mode": torch.overrides._get_current_function_mode_stack(),
        "dispatch mode": torch._C._len_torch_dispatch_stack(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "anomaly": torch.is_anomaly_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "print options": repr(torch.tensor([1.23456])),
        "hooks": len(nn.modules.module._global_forward_hooks),
        "fused attention": torch.backends.cuda.flash_sdp_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "seed": torch.get_rng_state().tolist(),
        "python's seed": random.getstate(),
        "numpy's seed": [str(part) for part in np.random.get_state()],
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
        "path": list(sys.path),
        "filters": list(warnings.filters),
        "handlers": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
        "wakeup": _wakeup(),
        "alarm": (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0),
        "recursion": sys.getrecursionlimit(),
        "collection": (gc.isenabled(), gc.get_threshold()),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.getprofile()),
    }


def _wakeup() -> int:
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number)
    return number


@pytest.fixture
def awake() -> Any:
    """Set a wakeup descriptor, as the command line does."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    yield
    signal.set_wakeup_fd(before)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_undone(name: str, awake: None):
    names: dict[str, Any] = {}
    exec(HEAD, names)
    before = state()
    with isolated():
        exec(CHANGES[name], names)
        changed = dict(state().items()) if name not in ("function mode", "dispatch mode") else {name: "changed"}
    after = state()
    assert changed[name] != before[name], "the change changes nothing"
    assert after[name] == before[name]
    assert {key: value for key, value in after.items() if value != before[key]} == {}


def test_changes_are_undone_after_an_exception():
    with pytest.raises(SystemExit), isolated():
        torch.set_default_dtype(torch.float64)
        raise SystemExit
    assert torch.get_default_dtype() == torch.float32


def test_inference_mode_does_not_end_when_it_is_collected():
    names: dict[str, Any] = {}
    exec(HEAD, names)
    with isolated():
        torch.set_grad_enabled(False)
        exec(CHANGES["inference mode"], names)
    names.clear()
    gc.collect()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", CHANGES)
def test_target_that_changes_global_state(name: str, here: Path):
    change = CHANGES[name].replace("'/'", repr(str(here)))
    (here / "wild.py").write_text(f"{HEAD}\n\ndef f(x):\n    y = x * 2\n    {change}\n    return y\n")
    before = state()
    done = attnshape("trace", "wild.py:f", "--input", "x: B L", "--format", "markdown")
    assert (done.status, done.err) == (0, ""), done.err
    assert "2/2 axes verified at 7 sets of sizes" in done.out
    assert "x * 2" in done.out
    after = state()
    assert {key: value for key, value in after.items() if value != before[key]} == {}


def test_state_set_on_import_applies_to_every_run(here: Path):
    (here / "double.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "def f(x):\n    y = torch.ones(x.shape[-1])\n    return y\n"
    )
    done = attnshape("trace", "double.py:f", "--input", "x: B L", "--format", "markdown", "--columns", "step,dtype")
    assert "float64" in done.out
    assert "1/1 axes verified" in done.out
    assert torch.get_default_dtype() == torch.float32


def test_random_generators_are_seeded_for_each_run(here: Path):
    (here / "lots.py").write_text(
        "import random\nimport numpy as np\nimport torch\n"
        "def f(x):\n"
        "    for _ in range(random.randrange(5) + np.random.randint(5) + int(torch.randint(5, ()))):\n"
        "        x = x + 1\n"
        "    return x\n"
    )
    outputs = {attnshape("trace", "lots.py:f", "--input", "x: B L", "--format", "markdown").out for _ in range(3)}
    assert len(outputs) == 1
    assert "verified at 7 sets of sizes" in outputs.pop()


def test_seed_all_seeds_every_generator():
    drawn = []
    for _ in range(2):
        seed_all(2**40 + 3)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
