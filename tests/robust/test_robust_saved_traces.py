"""Damaged or forged saved traces are displayed or refused, without a traceback or a broken table."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.robust.output_parsers import FORMATS, ROOT, assert_drawn, assert_refused, attnshape

HOSTILE = (
    "[bold red]x[/]",
    "a|b\\|`c`",
    "\x1b[31mred\x1b[0m\x07",
    "<script>alert(1)</script> &amp;",
    "one\ntwo\r\n\n| x | y |\n",
    "\u202eabc\u2066",
    "注意力机制 👩‍👩‍👧",
    "**b** _i_ [l](http://x)",
    "(" * 80,
    "x" * 500,
    "B " * 300,
    "",
    "𝓍" * 40,
)
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=20),
    st.sampled_from(
        [0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400, 0.5, 1e308, True, None, [], {}, [[]], {"a": 1}]
    ),
    st.sampled_from(
        ["verified", "literal", "view", "inplace", "scores", "softmax", "B H L L", "H*Dk", "L**9**9", "0//0"]
    ),
    st.builds(lambda number: {"step": number}, st.integers(-2, 40)),
    st.builds(lambda number: {"step": 1, "output": number}, st.integers(-2, 4)),
)


class Saved(list[Any]):
    """Traces, with a short repr for failing tests."""

    def __repr__(self) -> str:
        return "saved"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Traces with every kind of content: several outputs, a failure, expectations, notes, fused attention."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "fails.py").write_text("def f(x):\n    y = x * 2\n    return y @ x\n")
    lines = [
        ["multi-head", "--causal", "--expect", "scores: B H L L", "--expect", "output: B L 7"],
        [f"{ROOT}/examples/fused_qkv.py:FusedSelfAttention", "--init", "D, H", "--input", "x: B L D"],
        [f"{ROOT}/examples/sdpa.py:FlashSelfAttention", "--init", "D, H", "--input", "x: B L D"],
        [f"{folder}/fails.py:f", "--input", "x: B L D"],
    ]
    return Saved(json.loads(attnshape("trace", *line, "--format", "json").out) for line in lines)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every item inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, ...]] = []
    for key, item in items:
        found += [(*path, key), *paths_in(item, (*path, key))]
    return found


def drawn_item(value: Any, data: st.DataObject) -> tuple[Any, Any, Any]:
    """Draw an item, with all kinds of items equally likely; return its container, its key and its value."""
    kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in paths_in(value):
        kinds.setdefault(tuple("*" if type(key) is int else key for key in path), []).append(path)
    of_kind = list(kinds.values())[data.draw(st.integers(0, len(kinds) - 1))]
    path = of_kind[data.draw(st.integers(0, len(of_kind) - 1))]
    owner = value
    for key in path[:-1]:
        owner = owner[key]
    return owner, path[-1], owner[path[-1]]


def forged(trace: Any, data: st.DataObject) -> Any:
    """Replace up to three texts or numbers, so that the trace mostly stays valid."""
    value = copy.deepcopy(trace)
    for _ in range(data.draw(st.integers(1, 3))):
        owner, key, now = drawn_item(value, data)
        if isinstance(now, str):
            owner[key] = data.draw(st.sampled_from(HOSTILE))
        elif type(now) is int:
            owner[key] = data.draw(st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**63 - 1, 2**64])))
        elif isinstance(now, list) and now:
            del owner[key][-1]
    return value


def damaged(trace: Any, data: st.DataObject) -> Any:
    """Replace, remove, repeat or rename up to three items of the trace."""
    value = copy.deepcopy(trace)
    for _ in range(data.draw(st.integers(1, 3))):
        owner, key, now = drawn_item(value, data)
        how = data.draw(st.sampled_from(["replace", "remove", "repeat"]))
        if how == "replace":
            owner[key] = data.draw(VALUES)
        elif how == "remove":
            del owner[key]
        elif isinstance(owner, list):
            owner.insert(key, copy.deepcopy(now))
        else:
            owner[data.draw(st.sampled_from(HOSTILE))] = owner.pop(key)
    return value


CHOICES = (
    [],
    ["--explain"],
    ["--match", "scores,softmax"],
    ["--columns", "step,name,role,op,signature,strides,shape,stride,offset,dtype,bytes,storage,module,source,checked"],
)


BUDGET = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@BUDGET
@given(data=st.data())
def test_damaged_trace(data: st.DataObject, saved: Saved, tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.getbasetemp() / "damaged.json"
    change = forged if data.draw(st.integers(0, 3)) else damaged
    file.write_text(json.dumps(change(saved[data.draw(st.integers(0, len(saved) - 1))], data)), encoding="utf-8")
    choice = data.draw(st.sampled_from(CHOICES))
    width = data.draw(st.sampled_from([40, 80, 100, 300]))
    for format_ in FORMATS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            done = attnshape("show", str(file), "--format", format_, *choice)
        if done.status == 2:
            assert_refused(done)
        else:
            assert (done.status, done.err) == (0, ""), done.err
            assert_drawn(format_, done.out, width, "--explain" in choice)


@settings(BUDGET, max_examples=60)
@given(data=st.data())
def test_truncated_trace_or_changed_bytes(data: st.DataObject, saved: Saved, tmp_path_factory: pytest.TempPathFactory):
    content = bytearray(json.dumps(saved[0], ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "bytes.json"
    file.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    done = attnshape("show", str(file), "--format", "markdown")
    if done.status == 2:
        assert_refused(done)
    else:
        assert_drawn("markdown", done.out, 100)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b'{"schema": NaN}',
        b'"\\ud800"',
        b'{"schema": "\\ud800"}',
        b"\xff\xfe\x00",
        b"",
        b"null",
        b"1e999999",
        b"9" * 5000,
    ],
    ids=range(11),
)
def test_not_a_trace(content: bytes, tmp_path: Path):
    (tmp_path / "x.json").write_bytes(content)
    assert_refused(attnshape("show", str(tmp_path / "x.json")))


@pytest.mark.parametrize("key", ["target", "command", "device"])
def test_lone_surrogate(key: str, saved: Saved, tmp_path: Path):
    (tmp_path / "x.json").write_text(json.dumps({**saved[0], key: "a\ud800b"}))
    for format_ in FORMATS:
        done = attnshape("show", str(tmp_path / "x.json"), "--format", format_)
        if done.status == 2:
            assert_refused(done)
        else:
            assert_drawn(format_, done.out, 100)


@pytest.mark.parametrize("step", [0, -1, 99, 2**62])
def test_references_to_missing_steps(step: int, saved: Saved, tmp_path: Path):
    for where in ("operand", "of", "output", "result"):
        trace = copy.deepcopy(saved[0])
        last = trace["steps"][-1]
        if where == "operand":
            last["operands"][0] = {"step": step}
        elif where == "of":
            last["outputs"][0]["tensor"]["storage"]["of"] = {"step": step}
        elif where == "output":
            last["operands"][0] = {"step": 1, "output": 7}
        else:
            trace["outputs"][0]["of"] = {"step": step}
        (tmp_path / "x.json").write_text(json.dumps(trace))
        assert_refused(attnshape("show", str(tmp_path / "x.json"), "--explain", "--format", "table"))


@pytest.mark.parametrize("key", ["axes", "shape", "stride", "strides"])
def test_inconsistent_ranks(key: str, saved: Saved, tmp_path: Path):
    trace = copy.deepcopy(saved[0])
    trace["steps"][-1]["outputs"][0]["tensor"][key].pop()
    (tmp_path / "x.json").write_text(json.dumps(trace))
    assert_refused(attnshape("show", str(tmp_path / "x.json")))
