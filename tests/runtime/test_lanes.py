"""Targets that are checked side by side: order, deaths, signals, and what the code prints."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnshape.runtime import lanes
from attnshape.runtime.worker import finish_item, limit_time, start_item
from tests.fuzz.harness import Command, Harness

pytestmark = pytest.mark.skipif(not lanes.can_run_lanes(), reason="lanes need Linux")


def work(numbers: Iterator[int]) -> int:
    """Do items that die in several ways; the others have a result each."""
    limit_time(2.0)
    for number in numbers:
        start_item(number)
        os.write(2, f"item {number}\n".encode())
        if number == 1:
            os._exit(7)
        if number == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 3:
            while True:
                pass
        finish_item(bytes([number]) * 10_000)
    return 0


def outcomes(count: int, at_once: int) -> dict[int, lanes.LaneEvent]:
    """Run the items in a process of its own, since lanes are forked; return the last event of each."""
    found = {}
    for event in lanes.run_lanes(range(count), work, at_once):
        if event.kind != "started":
            assert event.number not in found
            found[event.number] = event
    return found


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_death_costs_only_its_item(at_once: int) -> None:
    found = outcomes(6, at_once)
    assert sorted(found) == list(range(6))
    for number in (0, 4, 5):
        assert found[number].result == bytes([number]) * 10_000
    deaths = {number: event.death for number, event in found.items() if event.death is not None}
    assert {number: death.status for number, death in deaths.items()} == {1: 7, 2: -signal.SIGSEGV, 3: -signal.SIGKILL}
    assert deaths[3].time_limit == 2.0
    printed = b"".join(event.printed for event in found.values())
    assert sorted(printed.splitlines()) == [f"item {number}".encode() for number in range(6)]


def test_a_supervisor_that_is_killed_costs_only_its_item(tmp_path: Path) -> None:
    def kills(numbers: Iterator[int]) -> int:
        for number in numbers:
            start_item(number)
            if number == 1:
                os.kill(os.getppid(), signal.SIGKILL)
                os._exit(0)
            finish_item(b"done")
        return 0

    found = {event.number: event for event in lanes.run_lanes(range(4), kills, 2) if event.kind != "started"}
    assert sorted(found) == [0, 1, 2, 3]
    # of what its supervisor hadn't passed on yet, nobody else knows
    assert {2, 3} <= {number for number, event in found.items() if event.result == b"done"}
    assert found[1].death is not None


def test_items_that_no_worker_reaches_are_not_lost() -> None:
    def broken(numbers: Iterator[int]) -> int:
        raise RuntimeError

    found = [event for event in lanes.run_lanes(range(3), broken, 2) if event.kind != "started"]
    assert sorted(event.number for event in found) == [0, 1, 2]
    assert all(event.death is not None for event in found)


CODE = """
import sys
import time
import torch
import torch.nn.functional as F

print("imported", file=sys.stderr)


def first(query, key, value):
    {body}
    return F.scaled_dot_product_attention(query, key, value)


def second(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def third(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)
"""


@pytest.fixture
def attnshape(harness: Harness) -> Iterator[object]:
    with harness.case_folder({}) as folder:

        def call(body: str, *words: str, **unusual: object) -> object:
            (folder / "mine.py").write_text(CODE.format(body=body))
            return harness.run(Command(words=("check", "mine.py", "--jobs", "2", *words), **unusual), folder)  # type: ignore[arg-type]

        call.folder = folder  # type: ignore[attr-defined]
        yield call


def test_output_is_in_the_order_of_the_targets(attnshape) -> None:
    done = attnshape("time.sleep(0.02)", "--format", "markdown", seconds=90.0)
    assert (done.status, done.left) == (0, ()), done.err
    titles = re.findall("^## (.*)", done.out, re.MULTILINE)
    assert titles == ["mine.py:first", "mine.py:second", "mine.py:third", "Summary"]
    assert done.err.count("imported") == 1, "what several processes print alike is shown once"
    again = attnshape("time.sleep(0.02)", "--format", "json", seconds=90.0)
    assert len(json.loads(again.out)["results"]) == 3


def test_lanes_of_a_command_on_a_terminal(attnshape) -> None:
    done = attnshape("pass", "--format", "text", seconds=90.0, streams=("terminal",) * 3, terminal=True)
    assert (done.status, done.left) == (0, ())
    assert "3 results: 3 fine" in done.terminal_output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_lane(attnshape, number: int) -> None:
    done = attnshape("time.sleep(100)", signals=((4.0, number, "process"),), seconds=60.0)
    assert (done.status, done.left) == (128 + number, ())
    assert done.after_signal is not None
    assert done.after_signal < 3
