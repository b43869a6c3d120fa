"""Targets that aren't plain functions of tensors: their steps are recorded, and the tensors they hold are named."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.robust.output_parsers import assert_refused, attnshape

CODE = """
import asyncio, functools, sys, threading, types
import torch
from dataclasses import dataclass
from typing import NamedTuple
from torch import Tensor, nn

def generator(x):
    a = x * 2
    yield a
    b = a + 1
    yield b

def returning_generator(x):
    yield x * 2
    return x + 1

def endless(x):
    while True:
        yield x * 2

async def coroutine(x):
    await asyncio.sleep(0)
    y = x * 3
    return y

async def asynchronous_generator(x):
    y = x * 3
    yield y

def lazily(x):
    return map(lambda t: t * 2, [x, x])

plain = lambda x: x * 2 + 1
partial = functools.partial(nn.functional.linear, weight=torch.ones(3, 4))
partial_module = functools.partial(nn.Dropout(0.5))

class Holder:
    def __init__(self):
        self.layers = {"first": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))}
    def __call__(self, x):
        y = self.layers["first"](x)
        return y
    @staticmethod
    def static(x):
        return x * 2
    @classmethod
    def of_class(cls, x):
        return x * 3

holder = Holder()

def closing():
    inner = nn.Linear(4, 4)
    def call(x):
        return inner(x)
    return call

class Cache:
    __slots__ = ("keys", "seen", "owner")
    def __init__(self, *size):
        self.keys, self.seen, self.owner = [torch.zeros(size)], 0, self
    def update(self, key):
        self.keys.append(key)
        return torch.cat(self.keys, 1)

class Pair(NamedTuple):
    keys: Tensor
    count: int

@dataclass
class Result:
    pair: Pair
    more: dict
    none: None = None

class Plain:
    def __init__(self, **values):
        self.__dict__.update(values)

def cached(B, Lp, L, D):
    def run(x, *, cache, cos_sin, scale, config, layer):
        cos, sin = cos_sin
        keys = cache.update(layer(x) * cos + sin) * scale[1]
        return Plain(result=Result(Pair(keys, 3), {"nested": [{"x": x}]}), config=config)
    others = dict(cos_sin=(torch.ones(D), torch.zeros(D)), scale=[1, 2], layer=nn.Linear(D, D))
    config = Plain(width=D, names=["a"], module=types)
    return run, (torch.randn(B, L, D),), dict(cache=Cache(B, Lp, D), config=config, **others)

def returns_a_set(x):
    return {x * 2, (x * 2).sum(0)}

def returns_nothing(x):
    y = x * 2

def exits(x):
    y = x * 2
    sys.exit(3)

def raises_keyboard_interrupt(x):
    y = x * 2
    raise KeyboardInterrupt

class Base(BaseException):
    pass

def raises_base(x):
    y = x * 2
    raise Base("of its own")

def in_a_thread(x):
    made = []
    thread = threading.Thread(target=lambda: made.append(x @ x.mT))
    thread.start()
    thread.join()
    y = made[0] * 2
    return y

def idle_thread(x):
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return x * 2

def imports(x):
    import imported_inside
    return x + imported_inside.TABLE[0]

def slow_at_small_sizes(x):
    while x.shape[1] != 10:
        pass
    return x * 2

def leaves_a_timer(x):
    import signal
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return x * 2

def to_args(*tensors, **unused):
    first, second = tensors
    return first * second

def to_keywords(*tensors, **named):
    return named["a"] * named["b"]

def both_ways(*tensors, **named):
    return (lambda: named["a"] * named["b"])()
"""


@pytest.fixture
def code(here: Path) -> Path:
    (here / "awkward.py").write_text(CODE)
    (here / "imported_inside.py").write_text("import torch\nTABLE = (torch.ones(3) * 2).cumsum(0)\n")
    return here


def trace_json(target: str, *words: str, status: int = 0) -> dict[str, Any]:
    done = attnshape("trace", f"awkward.py:{target}", *(words or ("--input", "x: B L 4")), "--format", "json")
    assert (done.status, done.err) == (status, ""), done.err
    return dict(json.loads(done.out))


def steps(trace: dict[str, Any]) -> list[str]:
    return [step["expression"] for step in trace["steps"]]


def known(trace: dict[str, Any]) -> set[str]:
    outputs = [output["tensor"] for step in trace["steps"] for output in step["outputs"]]
    return {axis["known"] for tensor in outputs for axis in tensor["axes"]}


@pytest.mark.parametrize(
    ("target", "expected", "outputs"),
    [
        ("generator", ["x * 2", "a + 1"], ["output[0]", "output[1]"]),
        ("returning_generator", ["x * 2", "x + 1"], ["output[0]", "output[1]"]),
        ("coroutine", ["x * 3"], ["output"]),
        ("asynchronous_generator", ["x * 3"], ["output[0]"]),
        ("lazily", ["t * 2", "t * 2"], ["output[0]", "output[1]"]),
        ("plain", ["x * 2", "x * 2 + 1"], ["output"]),
        ("Holder.static", ["x * 2"], ["output"]),
        ("Holder.of_class", ["x * 3"], ["output"]),
        ("returns_nothing", ["x * 2"], []),
        ("imports", ["imported_inside.TABLE[0]", "x + imported_inside.TABLE[0]"], ["output"]),
        ("idle_thread", ["x * 2"], ["output"]),
        ("leaves_a_timer", ["x * 2"], ["output"]),
    ],
)
def test_steps_of_unusual_callables(target: str, expected: list[str], outputs: list[str], code: Path):
    traced = trace_json(target)
    assert steps(traced) == expected
    assert [output["name"] for output in traced["outputs"]] == outputs
    assert traced["notes"] == []
    assert known(traced) <= {"verified", "literal"}


def test_endless_generator(code: Path):
    traced = trace_json("endless")
    assert [(loop["first"], loop["last"], loop["count"]) for loop in traced["loops"]] == [(1, 1, 1000)]
    assert any("generator was stopped after 1000" in note for note in traced["notes"])


def test_tensors_in_a_returned_set_are_outputs(code: Path):
    assert [output["name"] for output in trace_json("returns_a_set")["outputs"]] == ["output{0}", "output{1}"]


def test_modules_held_by_a_callable(code: Path):
    """They are in evaluation mode, have the device and the dtype, and their parameters have names."""
    for target, weight, sizes in (
        ("holder", "layers['first'].0.weight", "x: B 4"),
        ("closing()", "inner.weight", "x: B 4"),
    ):
        traced = trace_json(target, "--input", sizes, "--dtype", "float64")
        assert {"parameter": weight} in [operand for step in traced["steps"] for operand in step["operands"]]
        assert traced["steps"][-1]["outputs"][0]["tensor"]["dtype"] == "float64"
    dropout = trace_json("holder", "--input", "x: B 4")["steps"][-1]
    assert dropout["outputs"][0]["tensor"]["storage"]["kind"] == "same"
    partial = trace_json("partial_module", "--input", "input: B 4")
    assert partial["steps"][-1]["outputs"][0]["tensor"]["storage"]["kind"] == "same"


def test_arguments_of_a_partial(code: Path):
    traced = trace_json("partial", "--input", "input: B 4")
    assert traced["steps"][0]["outputs"][0]["tensor"]["signature"] == "B 3"


def test_tensors_in_arguments_and_results(code: Path):
    traced = trace_json("cached", "--batch", "2", "--past", "3", "--length", "5", "--d-model", "8")
    assert [named["name"] for named in traced["inputs"]] == ["x", "cache.keys[0]", "cos_sin[0]", "cos_sin[1]"]
    assert [named["tensor"]["signature"] for named in traced["inputs"]] == ["B L D", "B Lp D", "D", "D"]
    operands = [operand for step in traced["steps"] for operand in step["operands"]]
    assert {"input": "cache.keys[0]"} in operands
    assert {"parameter": "layer.weight"} in operands
    assert [named["name"] for named in traced["outputs"]] == [
        "output.result.pair.keys",
        "output.result.more['nested'][0]['x']",
    ]
    assert traced["outputs"][1]["of"] == {"input": "x"}
    assert traced["steps"][-1]["outputs"][0]["tensor"]["signature"] == "B Lp+L D"
    assert known(traced) == {"verified"}
    double = trace_json("cached", "--d-model", "8", "--dtype", "float64")
    assert double["steps"][-1]["outputs"][0]["tensor"]["dtype"] == "float64"


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("exits", "SystemExit: 3"),
        ("raises_keyboard_interrupt", "KeyboardInterrupt"),
        ("raises_base", "Base: of its own"),
    ],
)
def test_base_exceptions_are_failures(target: str, error: str, code: Path):
    traced = trace_json(target, status=1)
    assert steps(traced) == ["x * 2"]
    assert traced["failure"]["error"] == error
    assert known(traced) <= {"verified", "literal"}


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(3)", "GeneratorExit", "BaseException('own')"])
def test_base_exceptions_at_import_and_while_building(error: str, here: Path):
    (here / "at_import.py").write_text(f"raise {error}\n")
    (here / "building.py").write_text(f"class A:\n    def __init__(self, D):\n        raise {error}\n")
    (here / "case_.py").write_text(f"def case(B):\n    raise {error}\n")
    (here / "argument.py").write_text(f"def f(x):\n    return x\ndef g():\n    raise {error}\n")
    for words in (
        ["at_import.py:f"],
        ["building.py:A", "--init", "D", "--input", "x: B"],
        ["case_.py:case"],
        ["argument.py:f", "--with", "x=g()"],
    ):
        done = attnshape("trace", *words)
        assert_refused(done)
        assert error.partition("(")[0] in done.err


def test_work_in_other_threads_is_noted(code: Path):
    traced = trace_json("in_a_thread")
    assert steps(traced) == ["threading.Thread", "made[0] * 2"]
    assert any("another thread" in note for note in traced["notes"])


@pytest.mark.slow
def test_endless_small_run_is_ended(code: Path):
    started = time.monotonic()
    traced = trace_json("slow_at_small_sizes", "--input", "x: B L", "--length", "10")
    assert time.monotonic() - started < 40
    assert steps(traced) == ["x * 2"]
    assert "matched" in known(traced)
    assert traced["notes"]


def test_imports_while_building_on_meta_create_real_tensors(here: Path):
    (here / "late_import.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass A(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        import late_table\n"
        "        self.table = late_table.TABLE\n\n"
        "    def forward(self, x):\n        return x + self.table[0].item()\n"
    )
    (here / "late_table.py").write_text("import torch\nTABLE = torch.ones(3)\n")
    done = attnshape("trace", "late_import.py:A", "--input", "x: B L", "--device", "meta", "--format", "json")
    assert (done.status, done.err) == (0, "")
    assert "verified" in known(json.loads(done.out))


@pytest.mark.parametrize(("target", "signature"), [("to_args", "B L"), ("to_keywords", "B L"), ("both_ways", "B L")])
def test_inputs_for_variadic_parameters(target: str, signature: str, code: Path):
    traced = trace_json(target, "--input", "a: B L", "--input", "b: L")
    assert traced["steps"][-1]["outputs"][0]["tensor"]["signature"] == signature


def test_symbol_that_would_shadow_torch(here: Path):
    done = attnshape("trace", "average", "--dim", "torch=3")
    assert_refused(done)
    assert "torch" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a compiler")
@pytest.mark.slow
def test_compiled_code_is_traced_as_written(here: Path):
    (here / "compiled_.py").write_text(
        "import torch\nfrom torch import nn\n\n\n@torch.compile\ndef f(x):\n    y = x * 2\n    return y\n\n\n"
        "class M(nn.Module):\n    def forward(self, x):\n        return f(x) + 1\n\n\nmodule = torch.compile(M())\n"
    )
    # in a separate process, since importing the compiler takes a second and changes the process
    for target, count in (("f", 1), ("module", 2)):
        line = [sys.executable, "-m", "attnshape", "trace", f"compiled_.py:{target}", "--input", "x: B L"]
        done = subprocess.run([*line, "--format", "json"], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(json.loads(done.stdout)["steps"]) == count


def test_function_mode_is_removed_after_a_trace(code: Path):
    before = torch.overrides._get_current_function_mode_stack()
    trace_json("in_a_thread")
    assert torch.overrides._get_current_function_mode_stack() == before
