"""`--expect`: verdicts, the axis that differs, and invalid expectations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnshape.errors import AttnshapeError
from attnshape.inference.verification import bound, checks_work, holds, kind_of
from tests.tracing.traced_source import trace, write

ROOT = Path(__file__).parents[2]
SOURCE = """
def f(q, k, v):
    scores = q @ k.mT
    weights = scores.softmax(-1)
    context = weights @ v
    return context, weights
"""
INPUTS = ("q: B Lq Dk", "k: B Lk Dk", "v: B Lk Dv")


def verdicts(traced):
    return [(e.name, e.holds) for e in traced.expectations]


@pytest.mark.parametrize(
    "text",
    [
        "scores: B Lq Lk",
        "scores:   B   Lq  Lk",
        "weights: B Lq Lk",
        "context: B Lq Dv",
        "output: B Lq Dv",
        "output[0]: B Lq Dv",
        "output[1]: B Lq Lk",
        "q: B Lq Dk",
        "scores: B Lq 2*Lk//2",
    ],
)
def test_expectation_holds(text, tmp_path):
    traced = trace(tmp_path, SOURCE, *INPUTS, expect=(text,))
    assert [(e.holds, e.why) for e in traced.expectations] == [(True, None)]
    assert not traced.found_something


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scores: B Lk Lq", "axis 1 is Lq=10, expected Lk=16"),
        ("scores: B Lq", "3 axes [2, 10, 16], expected 2"),
        ("output: B Lq Dk", "axis 2 is Dv=96, expected Dk=64"),
        ("scores: B Lq 2*Lk", "axis 2 is Lk=16, expected 2*Lk=32"),
        ("scores: Lq B Lk", "axis 0 is B=2, expected Lq=10"),
        ("output:", "3 axes [2, 10, 96], expected 0"),
    ],
)
def test_failed_expectation_names_the_axis(text, words, tmp_path):
    traced = trace(tmp_path, SOURCE, *INPUTS, expect=(text, "weights: B Lq Lk"))
    assert verdicts(traced) == [(text.partition(":")[0], False), ("weights", True)]
    assert words in traced.expectations[0].why
    assert traced.found_something
    assert traced.complete


@pytest.mark.parametrize(
    "text", ["scores: B Lk Lq", "scores: B Lq Lq", "scores: Lq B Lk", "output: B Lk Dv", "scores: B Lq 7"]
)
def test_wrong_expectation_at_equal_sizes_fails(text, tmp_path):
    traced = trace(tmp_path, SOURCE, *INPUTS, expect=(text,), B=7, Lq=7, Lk=7, Dk=64, Dv=8)
    assert [e.holds for e in traced.expectations] == [False]
    assert "seen at" in traced.expectations[0].why


def test_right_expectation_at_equal_sizes_holds(tmp_path):
    traced = trace(tmp_path, SOURCE, *INPUTS, expect=("scores: B Lq Lk",), B=7, Lq=7, Lk=7, Dk=7, Dv=7)
    assert verdicts(traced) == [("scores", True)]


def test_every_tensor_of_a_name_must_match(tmp_path):
    source = "def f(x):\n    y = x * 2\n    y = y.mT\n    return y * 1"
    assert verdicts(trace(tmp_path, source, "x: Lq Lk", expect=("y: Lq Lk", "output: Lk Lq"))) == [
        ("y", False),
        ("output", True),
    ]


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("score: B Lq Lk", "no tensor has that name", "scores"),
        ("scores: B Lq T", "T isn't a size of this target", None),
        ("scores: B Lq H", "H isn't a size of this target", None),
        ("scores", "isn't 'name: axes'", None),
        ("scores: B Lq Lk+", "isn't an axis expression", None),
        ("scores: B Lq f(Lk)", "isn't an axis expression", None),
        ("scores: B Lq ...", "isn't an axis expression", None),
    ],
)
def test_invalid_expectation_is_an_error(text, words, hint, tmp_path):
    with pytest.raises(AttnshapeError) as caught:
        trace(tmp_path, SOURCE, *INPUTS, expect=(text,))
    assert words in caught.value.message
    assert caught.value.hint
    if hint:
        assert hint in caught.value.hint


def test_unreached_expectation_fails(tmp_path):
    source = "def f(x):\n    a = x * 2\n    b = a.view(3, 5)\n    return b"
    traced = trace(tmp_path, source, "x: B Dk", expect=("a: B Dk", "b: B Dk", "output: B Dk"))
    assert verdicts(traced) == [("a", True), ("b", False), ("output", False)]
    assert traced.expectations[1].why == "the code failed before it was made"


DISABLED = """
import json, sys
from msgspec.structs import replace
from attnshape.errors import AttnshapeError
from attnshape.options.spec import RunOptions, TargetSpec
from attnshape.pipelines.trace import trace_request

request = TargetSpec(sys.argv[1], inputs={"x": "B Dk"}) if ":" in sys.argv[1] else TargetSpec(sys.argv[1])
made = trace_request(request, RunOptions())
tensors = [o.tensor for s in made.steps for o in s.outputs] + [i.tensor for i in made.inputs]
try:
    trace_request(replace(request, expect=(("output", "B Dk"),)), RunOptions())
    refused = None
except AttnshapeError as error:
    refused = [error.message, error.hint]
print(json.dumps([[t.checked for t in tensors], made.found_something, made.notes, refused]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("catalog", [True, False])
def test_disabled_jaxtyping_checks_are_reported(catalog, tmp_path):
    source = """
    from jaxtyping import Float

    def f(x):
        a: Float[Tensor, "B Dk"] = x * 2
        return a
    """
    target = "scaled-dot-product" if catalog else f"{write(tmp_path, source)}:f"
    run = subprocess.run(
        [sys.executable, "-c", DISABLED, target],
        cwd=ROOT,
        env=os.environ | {"JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    checked, found, notes, refused = json.loads(run.stdout)
    assert checked
    assert set(checked) == {None}
    assert not found
    assert any("no signature was checked" in note for note in notes)
    assert refused is not None
    assert "expect can't be verified" in refused[0]
    assert "JAXTYPING_DISABLE" in refused[1]


@pytest.mark.parametrize(
    ("signature", "shape", "dtype", "expected"),
    [
        ("B L", (2, 5), "float32", True),
        ("B L", (5, 2), "float32", False),
        ("B L", (2, 5, 1), "float32", False),
        ("", (), "float32", True),
        ("B L+1", (2, 6), "float32", True),
        ("-(-L//4)*4", (8,), "int64", True),
        ("L//2", (2,), "bool", True),
        ("L//B L", (2, 5), "bfloat16", True),
        ("B*L", (10,), "complex64", True),
        ("1", (1,), "uint8", True),
        ("L//0", (1,), "float32", False),
        ("B (", (2, 5), "float32", False),
        ("B", (2**40,), "float32", False),
        ("9*L", (45,), "float8_e4m3fn", True),
    ],
)
def test_signature_holds(signature, shape, dtype, expected):
    with bound({"B": 2, "L": 5}):
        assert holds(signature, shape, dtype) is expected


def test_symbols_are_bound_only_inside_the_context():
    with bound({"B": 2}):
        assert not holds("B", (3,), "float32")
    with bound({"B": 3}):
        assert holds("B", (3,), "float32")
    assert checks_work()


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "Float"),
        ("float64", "Float"),
        ("bfloat16", "Float"),
        ("float16", "Float"),
        ("float8_e5m2", "Float"),
        ("complex64", "Complex"),
        ("int64", "Int"),
        ("int8", "Int"),
        ("uint8", "UInt"),
        ("bool", "Bool"),
        ("qint8", "Shaped"),
    ],
)
def test_kind_of_a_dtype(dtype, name):
    assert kind_of(dtype).__name__ == name


def test_verdict_at_one_size_says_so(tmp_path):
    source = "def f(q):\n    assert q.shape[1] > 5000\n    a = q @ q.mT\n    return a"
    traced = trace(tmp_path, source, "q: L Dk", expect=("a: L L",), L=8, Dk=6000)
    assert [(expectation.holds, expectation.why) for expectation in traced.expectations] == [
        (True, "at this run's sizes only")
    ]
    assert "only matched" in " ".join(traced.notes)
