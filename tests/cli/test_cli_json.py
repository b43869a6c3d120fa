"""Saved traces: their content, their JSON Schema, and the round trip."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnshape.model.trace import Trace, decode_trace, json_schema
from tests.cli.running import Attnshape
from tests.sampling import sampled

TARGETS = {
    "default": "trace",
    "cross": "trace --batch 2 --heads 8 --d-model 512 --queries 30 --keys 50",
    "masked": "trace scaled-dot-product:with_heads --causal --padding --dropout .1 --train",
    "scalar": "trace own.py:total --input 'x: B L' --expect 'output: '",
    "failed": "trace own.py:fail --input 'x: B L'",
    "wrong": "trace own.py:total --input 'x: B L' --expect 'rows: L'",
    "costs": "trace multi-head --cost",
    "many": "trace own.py:many --input 'x: B L 2*D' --dim T=L+1",
}
QUICK = ["cross", "failed", "wrong", "costs"]

OWN = """
import torch


def total(x):
    rows = x.sum(-1)
    return rows.sum()


def fail(x):
    return x @ x


def many(x):
    first, second = x.chunk(2, dim=-1)
    first += 1
    mask = torch.ones(3, 3).tril().bool()
    return {"a": first, "b": [second, None, mask], "name": "text"}
"""


@pytest.fixture
def lines(folder: Path) -> dict[str, str]:
    (folder / "own.py").write_text(OWN)
    return TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_trace_matches_its_schema(name: str, lines: dict[str, str], attnshape: Attnshape):
    result = attnshape(f"{lines[name]} --format json")
    assert result.err == ""
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(result.trace, json_schema())


def test_schema_rejects_an_invalid_trace():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "attnshape/trace/2"}, json_schema())


@pytest.mark.parametrize("name", TARGETS)
def test_json_round_trip(name: str, lines: dict[str, str], attnshape: Attnshape):
    text = attnshape(f"{lines[name]} --format json").out
    trace = decode_trace(text)
    assert decode_trace(Trace.to_json(trace)) == trace
    assert Trace.to_json(trace).strip() == text.strip()


@pytest.mark.parametrize("format_", ["table", "markdown", "json", "table --explain", "markdown --columns step,strides"])
@pytest.mark.parametrize("name", sampled(TARGETS, QUICK))
def test_show_equals_the_direct_output(
    name: str, format_: str, lines: dict[str, str], attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "120")
    attnshape(f"{lines[name]} --format json --output saved.json")
    displayed = attnshape(f"show saved.json --format {format_}")
    direct = attnshape(f"{lines[name]} --format {format_}")
    assert displayed.status == 0
    assert without_command(displayed.out) == without_command(direct.out)
    assert "attnshape trace" in displayed.out


def without_command(text: str) -> str:
    """Return the text without the command that reproduces it."""
    if text.startswith("{"):
        return re.sub(r'"command": ".*",', '"command": "",', text)
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if "float32" in line)
    return "\n".join(lines[start:])


# the content, derived by hand


def steps_with_outputs(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**step, **step["outputs"][0]} for step in trace["steps"]]


def test_cross_attention(attnshape: Attnshape):
    trace = attnshape("trace --batch 2 --heads 8 --d-model 512 --queries 30 --keys 50 --format json").trace
    sizes = {symbol: record["size"] for symbol, record in trace["sizes"].items()}
    assert sizes == {"B": 2, "H": 8, "Lq": 30, "Lk": 50, "D": 512, "Dk": 64}
    assert trace["sizes"]["Dk"] == {"size": 64, "from": "derived", "expression": "D//H"}
    assert trace["sizes"]["Lq"] == {"size": 30, "from": "given"}
    assert (trace["schema"], trace["complete"], trace["failure"]) == ("attnshape/trace/1", True, None)
    assert (trace["device"], trace["dtype"], trace["seed"]) == ("cpu", "float32", 0)
    assert trace["command"].startswith("attnshape trace --batch 2 --heads 8")
    named = {step["name"]: step for step in steps_with_outputs(trace) if step["name"]}

    scores = named["scores"]["tensor"]
    assert scores["shape"] == [2, 8, 30, 50]
    assert scores["signature"] == scores["declared"] == "B H Lq Lk"
    assert scores["stride"] == [8 * 30 * 50, 30 * 50, 50, 1]
    assert scores["strides"] == ["H*Lq*Lk", "Lq*Lk", "Lk", "1"]
    assert scores["bytes"] == 2 * 8 * 30 * 50 * 4
    assert (scores["checked"], scores["contiguous"], scores["offset"]) == ("declared", True, 0)
    assert {axis["known"] for axis in scores["axes"]} == {"verified"}

    query = named["query"]["tensor"]
    assert query["signature"] == "B H Lq Dk"
    assert query["shape"] == [2, 8, 30, 64]
    assert query["stride"] == [30 * 512, 64, 512, 1]
    assert query["strides"] == ["Lq*D", "Dk", "D", "1"]
    assert query["storage"]["kind"] == "view"
    assert query["contiguous"] is False
    projection = trace["steps"][query["storage"]["root"]["step"] - 1]
    assert (projection["module"], projection["role"]) == ("Wq", "projection")


def test_merge_copies_once(attnshape: Attnshape):
    trace = attnshape("trace --batch 2 --heads 8 --d-model 512 --queries 30 --keys 50 --format json").trace
    steps = steps_with_outputs(trace)
    place = next(i for i, step in enumerate(steps) if step["operation"].endswith("contiguous"))
    transposed, copied, viewed, projected = steps[place - 1 : place + 3]
    assert transposed["tensor"]["storage"]["kind"] == "view"
    assert transposed["tensor"]["strides"] == ["Lq*D", "Dk", "Lq*Dk", "1"]
    assert copied["tensor"]["storage"] == {"kind": "new", "of": None, "root": None}
    assert copied["tensor"]["signature"] == "B Lq H Dk"
    assert copied["tensor"]["bytes"] == 2 * 30 * 512 * 4
    assert viewed["tensor"]["storage"]["kind"] == "view"
    assert viewed["tensor"]["storage"]["root"] == {"step": copied["index"]}
    assert (viewed["name"], viewed["tensor"]["signature"]) == ("concat", "B Lq D")
    assert (projected["module"], projected["name"], projected["role"]) == ("Wo", "output", "output")
    assert trace["outputs"] == [{"name": "output", "of": {"step": projected["index"]}}]


def test_order_of_roles(attnshape: Attnshape):
    trace = attnshape("trace --causal --format json").trace
    roles = [step["role"] for step in trace["steps"]]
    assert roles == [
        *["projection", "split", "transpose"] * 3,
        *["transpose", "scores", "scale", "mask", "mask", "softmax", "dropout", "context"],
        *["transpose", "merge", "merge", "output"],
    ] or roles == [
        *["projection", "split", "transpose"] * 3,
        *["transpose", "scores", "scale", None, "mask", "softmax", "dropout", "context"],
        *["transpose", "merge", "merge", "output"],
    ]


def test_inputs_operands_and_sources(attnshape: Attnshape, folder: Path):
    (folder / "own.py").write_text(OWN)
    trace = attnshape("trace own.py:many --input 'x: B L 2*D' --format json").trace
    assert [named["name"] for named in trace["inputs"]] == ["x"]
    assert trace["inputs"][0]["tensor"]["signature"] == "B L 2*D"
    chunk, add = trace["steps"][:2]
    assert [output["name"] for output in chunk["outputs"]] == ["first", "second"]
    assert [output["tensor"]["offset"] for output in chunk["outputs"]] == [0, 512]
    assert chunk["operands"][0] == {"input": "x"}
    assert chunk["source"] == {"file": "own.py", "line": 15, "column": 21, "function": "many"}
    assert add["outputs"][0]["tensor"]["storage"]["kind"] == "inplace"
    assert [output["name"] for output in trace["outputs"]] == ["output['a']", "output['b'][0]", "output['b'][2]"]


def test_device_dtype_and_seed(attnshape: Attnshape):
    trace = attnshape("trace --dtype float64 --seed 7 --device meta --format json").trace
    assert (trace["device"], trace["dtype"], trace["seed"]) == ("meta", "float64", 7)
    tensors = [output["tensor"] for step in trace["steps"] for output in step["outputs"]]
    assert {(tensor["device"], tensor["dtype"]) for tensor in tensors} == {("meta", "float64")}
    scores = next(tensor for tensor in tensors if tensor["declared"] == "B H Lq Lk")
    assert scores["bytes"] == 2 * 8 * 10 * 10 * 8


def test_million_tokens_on_the_meta_device(attnshape: Attnshape):
    result = attnshape("trace --batch 1 --length 1000000 --d-model 16384 --device meta --format json")
    assert result.tensors["scores"]["shape"] == [1, 8, 10**6, 10**6]
    assert result.tensors["scores"]["bytes"] == 8 * 10**12 * 4


def test_json_is_utf_8(attnshape: Attnshape, folder: Path):
    attnshape("trace --format json --output saved.json")
    content = (folder / "saved.json").read_bytes()
    assert json.loads(content.decode("utf-8"))["schema"] == "attnshape/trace/1"
