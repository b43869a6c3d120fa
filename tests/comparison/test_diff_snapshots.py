"""Snapshots round-trip, contain nothing about the machine, and are refused with file and line if damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from msgspec.structs import replace

import attnshape
from attnshape import AttnshapeError, Trace
from attnshape.comparison.compare import compare
from attnshape.comparison.outline import Outline
from attnshape.comparison.snapshot import COLUMNS, read_snapshot, snapshot_of, write_snapshot
from attnshape.model.difference import OutlineLoop
from tests.comparison.strategies import anything, code
from tests.comparison.traced import version

ROOT = Path(__file__).parents[2]
BLOCK = {"init": "D, H", "inputs": {"x": "B L D"}}


def block() -> Trace:
    return attnshape.trace(f"{ROOT}/examples/torch_multihead.py:Block", **BLOCK)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(anything())
def test_round_trip(outline: Outline) -> None:
    text = write_snapshot(outline)
    assert read_snapshot(text) == outline
    assert all(line.isprintable() for line in text.split("\n"))


@settings(deadline=None, max_examples=50)
@given(code())
@example(Outline(target="", sizes={}))
def test_round_trip_of_code(outline: Outline) -> None:
    assert read_snapshot(write_snapshot(outline)) == outline
    assert read_snapshot(write_snapshot(outline).replace("\n", "\r\n")) == outline


def test_names_by_use_loops_and_failures_round_trip() -> None:
    (first, *others) = snapshot_of(version("Separate")).steps
    named = replace(first.outputs[0], name="q | as k", by_use=True)
    looped = replace(first, outputs=(named,), loops=(OutlineLoop("H", 8), OutlineLoop("-(-L//4)", 3)))
    outline = replace(snapshot_of(version("Separate")), steps=(looped, *others), failure="q @ k")
    text = write_snapshot(outline)
    assert read_snapshot(text) == outline
    assert "×H ×-(-L//4) Wq(x) as q | as k" in text
    assert "\nfails at q @ k\n" in text


@pytest.mark.parametrize("count", [1, 1023, 1024, 6400, 5 * 2**20, 3 * 2**30, 1_624_187_924_480, 2**60])
def test_exact_byte_counts_round_trip(count: int) -> None:
    (first, *others) = snapshot_of(version("Separate")).steps
    changed = replace(first, outputs=(replace(first.outputs[0], bytes=count),))
    outline = replace(snapshot_of(version("Separate")), steps=(changed, *others))
    text = write_snapshot(outline)
    assert read_snapshot(text) == outline
    assert f"new {count:,} B" in text


def cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_table_and_data_lines() -> None:
    text = write_snapshot(snapshot_of(version("Separate")))
    lines = text.splitlines()
    assert lines[0] == "attnshape snapshot 1"
    assert lines[2] == "B=2  H=8  L=10  D=512  Dk=64"
    assert tuple(cells(lines[4])) == COLUMNS
    row = next(line for line in lines if " weights = " in line)
    assert cells(row) == [
        *("13", "weights = scores.softmax(-1)", "12", "float32"),
        *("B H L L", "2 8 10 10", "800 100 10 1", "new 6,400 B"),
    ]
    data = [json.loads(line) for line in lines[lines.index("") :] if line.startswith("{")]
    assert [next(iter(line)) for line in data] == ["trace", "input", *["step"] * 17, "returns"]
    assert len(lines) == 5 + 1 + 17 + 3 + 1 + len(data)


def test_snapshot_has_nothing_about_the_machine() -> None:
    trace = block()
    text = write_snapshot(snapshot_of(trace))
    assert trace.target.startswith("/")
    assert "\ntorch_multihead.py:Block\n" in text
    for private in (trace.torch, trace.python, trace.device, trace.attnshape, str(ROOT)):
        assert private not in text


def test_steps_inside_libraries_are_left_out() -> None:
    trace = block()
    outline = snapshot_of(trace)
    top = [step for step in trace.steps if step.parent is None]
    assert len(trace.steps) > len(outline.steps) == len(top)
    assert [step.operation for step in outline.steps] == ["layer_norm", "MultiheadAttention", "add"]
    assert [reference.step for reference in outline.steps[2].uses if reference.step] == [2]


def test_changed_steps_inside_torch_are_no_difference() -> None:
    trace = block()
    composite = next(step.index for step in trace.steps if step.index in trace.composites)
    inner = [step for step in trace.steps if step.parent is not None]
    rewritten = tuple(
        replace(step, expression=f"other({step.expression})", operation="torch.ops.other") if step in inner else step
        for step in trace.steps
    )
    # only the version of torch and other metadata differ
    other = replace(trace, steps=rewritten, torch="9.9", python="3.99", device="cuda:0", attnshape="7", seed=5)
    assert composite
    assert not compare(snapshot_of(trace), snapshot_of(other))
    assert attnshape.diff(trace, other).kinds == ("steps",)


def test_different_stride_is_found_in_a_snapshot() -> None:
    recorded = read_snapshot(write_snapshot(snapshot_of(version("Separate"))))
    assert not compare(recorded, snapshot_of(version("Separate", seed=9)))
    assert compare(recorded, snapshot_of(version("Fused"))).kinds == ("stride", "steps")
    # the stride formulas in a snapshot give the strides at other sizes
    assert compare(recorded, snapshot_of(version("Separate", L=20))).kinds == ("size",)
    fused = read_snapshot(write_snapshot(snapshot_of(version("Fused"))))
    assert compare(fused, snapshot_of(version("Fused", L=20, D=256))).kinds == ("size",)


DAMAGES = {
    "another version": ("snapshot 1\n", "snapshot 2\n", 1, "expected 'attnshape snapshot 1', found"),
    "merge conflict in the table": ("\n3   q", "\n<<<<<<< HEAD\n3   q", 9, "an unresolved merge conflict"),
    "merge conflict in the data": (
        '{"step": {"index": 2,',
        '>>>>>>> main\n{"step": {"index": 2,',
        31,
        "merge conflict",
    ),
    "edited target": ("versions:Separate\n", "versions:Fused\n", 2, "the table isn't the table of the data"),
    "edited size": ("B=2 ", "B=3 ", 3, "the table isn't the table of the data"),
    "edited shape": ("B L D      2 10 512", "B L D      2 10 513", 6, "the table isn't the table of the data"),
    "removed row": ("\n8   Wv", "\n\n9   Wv", 14, "the table isn't the table of the data"),
    "edited result": ("returns output: 17", "returns output: 16", 25, "the table isn't the table of the data"),
    "edited data": ('"bytes": 6400', '"bytes": 6404', 17, "the table isn't the table of the data"),
    "no data": ("data (attnshape", "(attnshape", 47, "expected 'data (attnshape reads"),
    "no header": ('{"trace": ', '{"returns": {"name": "x", "of": {}}} ', 28, "malformed"),
    "two lines for the trace": (
        '{"trace": ',
        '{"trace": {"target": "x", "sizes": {}}}\n{"trace": ',
        2,
        "the table isn't",
    ),
    "truncated line": ('"kind": "new"}}\n', "", 29, "malformed"),
    "other sizes": ('"B": 2', '"B": "2"', 28, "Expected `int`, got `str` - at `$.trace.sizes[...]`"),
    "missing field": ('"dtype": "float32", ', "", 29, "missing required field `dtype` - at `$.input`"),
    "unknown storage": ('"kind": "view"', '"kind": "vista"', 31, "Invalid enum value 'vista'"),
    "unknown field": ('{"step": ', '{"more": 1, "step": ', 30, "unknown field `more`"),
    "unknown inner field": ('{"index": 1, ', '{"more": 1, "index": 1, ', 30, "the data was edited"),
    "half a surrogate pair": ('"Wq(x)"', '"\\ud800"', 7, "the table isn't the table of the data below"),
    "wrong number of a step": ('"index": 2,', '"index": 3,', 31, "step 3 is out of order"),
    "missing stride": ("[5120, 512, 1]", "[5120, 512]", 29, "a tensor has 3 axes and 2 strides"),
    "missing formula": ('["L*D", "Dk", "D", "1"]', '["L*D", "Dk", "D"]', 32, "4 strides and 3 formulas"),
    "missing step": (
        '"uses": [{"step": 1}]',
        '"uses": [{"step": 99}]',
        31,
        "refers to output 0 of step 99, which doesn't",
    ),
    "missing output": (
        '"of": {"step": 1}',
        '"of": {"step": 1, "output": 4}',
        31,
        "refers to output 4 of step 1, which",
    ),
    "missing result": (
        '"of": {"step": 17}',
        '"of": {"step": 18}',
        47,
        "refers to output 0 of step 18, which doesn't exist",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_snapshot_is_refused_with_its_line(name: str) -> None:
    old, new, line, problem = DAMAGES[name]
    text = write_snapshot(snapshot_of(version("Separate")))
    assert old in text
    with pytest.raises(AttnshapeError, match=re.escape(problem)) as caught:
        read_snapshot(text.replace(old, new, 1), "some/file.txt")
    assert caught.value.message.startswith(f"some/file.txt:{line}: this isn't a valid snapshot: ")
    assert caught.value.hint == "write it again: pytest --shapes-update"


@pytest.mark.parametrize("kept", [0, 1, 3, 7, 25, 27, 28, 29, 40, 46])
def test_truncated_snapshot_is_refused(kept: int) -> None:
    lines = write_snapshot(snapshot_of(version("Separate"))).splitlines(keepends=True)
    assert len(lines) == 47
    with pytest.raises(AttnshapeError, match="this isn't a valid snapshot"):
        read_snapshot("".join(lines[:kept]))


def test_text_after_the_data_is_refused() -> None:
    text = write_snapshot(snapshot_of(version("Separate")))
    for more in ("\nmore\n", '{"returns": {"name": "x", "of": {"step": 1}}}\n', "fails at x\n"):
        with pytest.raises(AttnshapeError, match="this isn't a valid snapshot"):
            read_snapshot(text + more)


def test_column_widths_and_line_endings_are_ignored() -> None:
    outline = snapshot_of(version("Separate"))
    text = write_snapshot(outline)
    head, separator, data = text.partition("data (")
    narrow = "\n".join(" ".join(line.split()) for line in head.split("\n"))
    assert read_snapshot(narrow + separator + data + "\n\n") == outline
