"""Targets that aren't plain functions of tensors: what they run is recorded, and what they hold is named."""

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


def traced(target: str, *words: str, status: int = 0) -> dict[str, Any]:
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
def test_what_runs_is_recorded(target: str, expected: list[str], outputs: list[str], code: Path):
    made = traced(target)
    assert steps(made) == expected
    assert [output["name"] for output in made["outputs"]] == outputs
    assert made["notes"] == []
    assert known(made) <= {"verified", "literal"}


def test_a_generator_that_never_ends(code: Path):
    made = traced("endless")
    assert len(made["steps"]) == 1000
    assert any("generator was stopped after 1000" in note for note in made["notes"])


def test_a_set_has_no_order_but_its_tensors_are_outputs(code: Path):
    assert [output["name"] for output in traced("returns_a_set")["outputs"]] == ["output{0}", "output{1}"]


def test_modules_that_a_callable_holds_are_its_own(code: Path):
    """They are in evaluation mode, on the device, in the dtype, and their parameters have names."""
    for target, weight, sizes in (
        ("holder", "layers['first'].0.weight", "x: B 4"),
        ("closing()", "inner.weight", "x: B 4"),
    ):
        made = traced(target, "--input", sizes, "--dtype", "float64")
        assert {"parameter": weight} in [operand for step in made["steps"] for operand in step["operands"]]
        assert made["steps"][-1]["outputs"][0]["tensor"]["dtype"] == "float64"
    dropout = traced("holder", "--input", "x: B 4")["steps"][-1]
    assert dropout["outputs"][0]["tensor"]["storage"]["kind"] == "same"
    partial = traced("partial_module", "--input", "input: B 4")
    assert partial["steps"][-1]["outputs"][0]["tensor"]["storage"]["kind"] == "same"


def test_a_partial_s_own_arguments(code: Path):
    made = traced("partial", "--input", "input: B 4")
    assert made["steps"][0]["outputs"][0]["tensor"]["signature"] == "B 3"


def test_what_arguments_and_results_hold(code: Path):
    made = traced("cached", "--batch", "2", "--past", "3", "--length", "5", "--d-model", "8")
    assert [one["name"] for one in made["inputs"]] == ["x", "cache.keys[0]", "cos_sin[0]", "cos_sin[1]"]
    assert [one["tensor"]["signature"] for one in made["inputs"]] == ["B L D", "B Lp D", "D", "D"]
    operands = [operand for step in made["steps"] for operand in step["operands"]]
    assert {"input": "cache.keys[0]"} in operands
    assert {"parameter": "layer.weight"} in operands
    assert [one["name"] for one in made["outputs"]] == [
        "output.result.pair.keys",
        "output.result.more['nested'][0]['x']",
    ]
    assert made["outputs"][1]["of"] == {"input": "x"}
    assert made["steps"][-1]["outputs"][0]["tensor"]["signature"] == "B Lp+L D"
    assert known(made) == {"verified"}
    double = traced("cached", "--d-model", "8", "--dtype", "float64")
    assert double["steps"][-1]["outputs"][0]["tensor"]["dtype"] == "float64"


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("exits", "SystemExit: 3"),
        ("raises_keyboard_interrupt", "KeyboardInterrupt"),
        ("raises_base", "Base: of its own"),
    ],
)
def test_exceptions_that_are_no_errors_are_failures_like_any(target: str, error: str, code: Path):
    made = traced(target, status=1)
    assert steps(made) == ["x * 2"]
    assert made["failure"]["error"] == error
    assert known(made) <= {"verified", "literal"}


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(3)", "GeneratorExit", "BaseException('own')"])
def test_exceptions_at_import_and_while_building(error: str, here: Path):
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


def test_work_in_other_threads_is_not_passed_over_in_silence(code: Path):
    made = traced("in_a_thread")
    assert steps(made) == ["threading.Thread", "made[0] * 2"]
    assert any("another thread" in note for note in made["notes"])


@pytest.mark.slow
def test_a_run_that_is_endless_at_small_sizes_is_ended(code: Path):
    started = time.monotonic()
    made = traced("slow_at_small_sizes", "--input", "x: B L", "--length", "10")
    assert time.monotonic() - started < 40
    assert steps(made) == ["x * 2"]
    assert "matched" in known(made)
    assert made["notes"]


def test_imports_while_it_is_built_on_meta_make_real_tensors(here: Path):
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
def test_inputs_that_no_parameter_is_named_after(target: str, signature: str, code: Path):
    made = traced(target, "--input", "a: B L", "--input", "b: L")
    assert made["steps"][-1]["outputs"][0]["tensor"]["signature"] == signature


def test_a_letter_that_would_hide_torch(here: Path):
    done = attnshape("trace", "average", "--dim", "torch=3")
    assert_refused(done)
    assert "torch" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a compiler")
@pytest.mark.slow
def test_compiled_code_runs_as_it_was_written(here: Path):
    (here / "compiled_.py").write_text(
        "import torch\nfrom torch import nn\n\n\n@torch.compile\ndef f(x):\n    y = x * 2\n    return y\n\n\n"
        "class M(nn.Module):\n    def forward(self, x):\n        return f(x) + 1\n\n\nmodule = torch.compile(M())\n"
    )
    # in a process of its own, since the compiler's import takes a second and changes the process
    for target, count in (("f", 1), ("module", 2)):
        line = [sys.executable, "-m", "attnshape", "trace", f"compiled_.py:{target}", "--input", "x: B L"]
        done = subprocess.run([*line, "--format", "json"], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(json.loads(done.stdout)["steps"]) == count


def test_a_pushed_mode_does_not_stay(code: Path):
    before = torch.overrides._get_current_function_mode_stack()
    traced("in_a_thread")
    assert torch.overrides._get_current_function_mode_stack() == before
