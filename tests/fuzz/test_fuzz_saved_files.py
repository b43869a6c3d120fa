"""Forged and damaged traces and snapshots are shown and compared, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.cases import assert_budget
from tests.fuzz.harness import Command, Harness, Outcome
from tests.fuzz.project import project_files
from tests.fuzz.saved_files import FAMILY, WHOLE, assert_refusal
from tests.robust.output_parsers import assert_drawn


def test_saved_files(harness: Harness):
    assert_budget(FAMILY, harness)


def show(harness: Harness, content: bytes, *words: str) -> Outcome:
    with harness.case_folder({"x.json": content}) as folder:
        done = harness.run(Command(words=("show", "x.json", *words)), folder)
    assert not done.problems((0, 2)), done
    return done


def saved(harness: Harness) -> dict[str, Any]:
    return dict(json.loads(project_files(harness)["heads.json"]))


@pytest.mark.parametrize("content", WHOLE, ids=range(len(WHOLE)))
def test_not_a_trace(content: bytes, harness: Harness):
    assert_refusal(show(harness, content))


@pytest.mark.parametrize("key", ["target", "command", "device"])
def test_lone_surrogate(key: str, harness: Harness):
    content = json.dumps({**saved(harness), key: "a\ud800b"}).encode()
    for format_ in ("table", "markdown", "json"):
        done = show(harness, content, "--format", format_)
        if done.status == 2:
            assert_refusal(done)
        else:
            assert_drawn(format_, done.out, 100)


@pytest.mark.parametrize("where", ["operand", "of", "output", "result"])
@pytest.mark.parametrize("step", [0, 2**62])
def test_references_to_missing_steps(step: int, where: str, harness: Harness):
    trace = saved(harness)
    last = trace["steps"][-1]
    if where == "operand":
        last["operands"][0] = {"step": step}
    elif where == "of":
        last["outputs"][0]["tensor"]["storage"]["of"] = {"step": step}
    elif where == "output":
        last["operands"][0] = {"step": 1, "output": 7}
    else:
        trace["outputs"][0]["of"] = {"step": step}
    assert_refusal(show(harness, json.dumps(trace).encode(), "--explain", "--format", "table"))


@pytest.mark.parametrize("key", ["axes", "shape", "stride", "strides"])
def test_inconsistent_ranks(key: str, harness: Harness):
    trace = saved(harness)
    trace["steps"][-1]["outputs"][0]["tensor"][key].pop()
    assert_refusal(show(harness, json.dumps(trace).encode()))
