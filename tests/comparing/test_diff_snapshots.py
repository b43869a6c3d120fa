"""Snapshots are read back as they were written, say nothing of the machine, and are refused by file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from msgspec.structs import replace

import attnshape
from attnshape import AttnshapeError, Trace
from attnshape.comparing.compare import compare
from attnshape.comparing.outline import Outline, Turns
from attnshape.comparing.snapshot import snapshot_of, write_snapshot
from attnshape.comparing.snapshot_read import read_snapshot
from tests.comparing.drawn import anything, code
from tests.comparing.traced import version

ROOT = Path(__file__).parents[2]
BLOCK = {"init": "D, H", "inputs": {"x": "B L D"}}


def block() -> Trace:
    return attnshape.trace(f"{ROOT}/examples/torch_multihead.py:Block", **BLOCK)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(anything())
def test_what_is_written_is_read_back(outline: Outline) -> None:
    text = write_snapshot(outline)
    assert read_snapshot(text) == outline
    assert all(line.isprintable() for line in text.split("\n"))


@settings(deadline=None, max_examples=50)
@given(code())
@example(Outline(target="", sizes={}))
def test_what_is_written_is_read_back_of_code(outline: Outline) -> None:
    assert read_snapshot(write_snapshot(outline)) == outline
    assert read_snapshot(write_snapshot(outline).replace("\n", "\r\n")) == outline


def test_names_by_use_and_loops_are_read_back() -> None:
    (first, *others) = snapshot_of(version("Separate")).steps
    named = replace(first.outputs[0], name="q | as k", by_use=True)
    looped = replace(first, outputs=(named,), turns=(Turns("H", 8), Turns("-(-L//4)", 3)))
    outline = replace(snapshot_of(version("Separate")), steps=(looped, *others), failure="q @ k")
    assert read_snapshot(write_snapshot(outline)) == outline
    assert "linear ×H=8 ×-(-L//4)=3" in write_snapshot(outline)


@pytest.mark.parametrize("count", [1, 1023, 1024, 6400, 5 * 2**20, 3 * 2**30, 1_624_187_924_480, 2**60])
def test_bytes_are_read_back_to_the_last_one(count: int) -> None:
    (first, *others) = snapshot_of(version("Separate")).steps
    made = replace(first, outputs=(replace(first.outputs[0], bytes=count),))
    outline = replace(snapshot_of(version("Separate")), steps=(made, *others))
    assert read_snapshot(write_snapshot(outline)) == outline


def test_a_snapshot_is_a_small_text() -> None:
    text = write_snapshot(snapshot_of(version("Separate")))
    lines = text.splitlines()
    assert lines[0] == "attnshape snapshot 1"
    assert lines[2] == "sizes: B=2 H=8 L=10 D=512 Dk=64"
    assert [name.strip() for name in lines[4].split("|")][:4] == ["#", "name", "step", "op"]
    assert len(lines) == 5 + 1 + 17 + 2
    row = next(line for line in lines if "weights = " in line or "| weights |" in line)
    assert [cell.strip() for cell in row.split("|")][5:] == [
        "float32",
        "B H L L",
        "2 8 10 10",
        "800 100 10 1",
        "new 6400 B",
    ]


def test_a_snapshot_names_nothing_of_the_machine() -> None:
    trace = block()
    text = write_snapshot(snapshot_of(trace))
    assert trace.target.startswith("/")
    assert "target: torch_multihead.py:Block" in text
    for told in (trace.torch, trace.python, trace.device, trace.attnshape, str(ROOT), "/"):
        assert told not in text


def test_what_lies_inside_of_libraries_is_left_out() -> None:
    trace = block()
    outline = snapshot_of(trace)
    top = [step for step in trace.steps if step.parent is None]
    assert len(trace.steps) > len(outline.steps) == len(top)
    assert [step.operation for step in outline.steps] == ["layer_norm", "MultiheadAttention", "add"]
    assert [one.step for one in outline.steps[2].uses if one.step] == [2]


def test_another_torch_inside_is_no_difference() -> None:
    trace = block()
    composite = next(step.index for step in trace.steps if step.index in trace.composites)
    inner = [step for step in trace.steps if step.parent is not None]
    rewritten = tuple(
        replace(step, expression=f"other({step.expression})", operation="torch.ops.other") if step in inner else step
        for step in trace.steps
    )
    # the same versions of everything, and of torch another
    other = replace(trace, steps=rewritten, torch="9.9", python="3.99", device="cuda:0", attnshape="7", seed=5)
    assert composite
    assert not compare(snapshot_of(trace), snapshot_of(other))
    assert attnshape.diff(trace, other).kinds == ("steps",)


def test_a_stride_that_differs_is_found_in_a_snapshot() -> None:
    recorded = read_snapshot(write_snapshot(snapshot_of(version("Separate"))))
    assert not compare(recorded, snapshot_of(version("Separate", seed=9)))
    assert compare(recorded, snapshot_of(version("Fused"))).kinds == ("stride", "steps")
    # the formulas that a snapshot keeps give the strides at other sizes
    assert compare(recorded, snapshot_of(version("Separate", L=20))).kinds == ("size",)
    fused = read_snapshot(write_snapshot(snapshot_of(version("Fused"))))
    assert compare(fused, snapshot_of(version("Fused", L=20, D=256))).kinds == ("size",)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("attnshape snapshot 1", "attnshape snapshot 2", 1, "expected 'attnshape snapshot 1'"),
        ("target: ", "subject: ", 2, "expected 'target:' first"),
        ("sizes: B=2", "sizes: B=two", 3, "expected NAME=NUMBER"),
        ("sizes: B=2", "sizes: B=" + "9" * 30, 3, "expected NAME=NUMBER"),
        ("| op ", "| operation ", 5, "expected the columns"),
        ("\n1  |", "\n2  |", 7, "expected step 1, found '2'"),
        ("5120 512 1\n", "5120 x 1\n", 6, "expected whole numbers, found '5120 x 1'"),
        ("5120 512 1\n", "5120 512\n", 6, "as many strides as sizes"),
        ("L*D Dk D 1", "L*D Dk D", 9, "as many formulas as strides"),
        ("float32", "", 6, "a tensor has no dtype"),
        ("new 40 KiB", "brand-new 40 KiB", 7, "expected a storage"),
        ("new 40 KiB", "new 999999999999999999 GiB", 7, "is more than any memory"),
        ("new 40 KiB", "new 40 MB", 7, "expected a storage"),
        ("view of 1\n", "view of 99\n", 8, "refers to step 99, which isn't there"),
        ("view of 1\n", "view of 1[4]\n", 8, "refers to step 1, which isn't there"),
        ("| transpose | 2 ", "| | 2 ", 9, "a step has no operation"),
        ("\n3  |", "\n<<<<<<< HEAD\n3  |", 9, "expected step 3"),
        ("Wq(x) ", '"Wq(x) ', 7, "a quote has no end"),
        ("new 40 KiB", 'view of parameter "\\ud800"', 7, "what can't be written"),
        ("| new 40 KiB", "| new 40 KiB | 1 | 2 | 3", 7, "expected 11 columns"),
    ],
)
def test_what_is_no_snapshot_is_refused_by_line(old: str, new: str, line: int, said: str) -> None:
    text = write_snapshot(snapshot_of(version("Separate")))
    assert old in text
    with pytest.raises(AttnshapeError, match=re.escape(said)) as refused:
        read_snapshot(text.replace(old, new, 1), "some/file.txt")
    assert refused.value.message.startswith(f"some/file.txt:{line}: this is no snapshot: ")
    assert refused.value.hint is not None


def test_what_follows_is_refused() -> None:
    text = write_snapshot(snapshot_of(version("Separate")))
    for more, said in (("\nmore\n", "found 'more'"), ("\nfails at: x\nand more\n", "expected nothing more")):
        with pytest.raises(AttnshapeError, match=said):
            read_snapshot(text + more)
    assert read_snapshot(text + "\nfails at: x | y\n".replace(" | ", " @ ")).failure == "x @ y"
