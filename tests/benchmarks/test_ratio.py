"""Arithmetic and layout of the benchmark tables; nothing here is timed."""

import pytest

from benchmarks import peer, peers
from benchmarks.measure import NotMeasuredError, Options, interleaved, output_of
from benchmarks.ratio import Budget, Row, Table, duration, factor, least_ratio, paired_ratio, render, verdict


def test_paired_ratio_is_the_median_of_each_rounds_ratio():
    # The machine runs at half speed in the last two rounds; the ratio of the medians would be 2.2.
    assert paired_ratio([1.1, 2.2, 2.2], [1.0, 2.0, 2.0]) == pytest.approx(1.1)
    assert paired_ratio([1.0, 4.0], [1.0, 2.0]) == pytest.approx(1.5)


def test_paired_ratio_needs_equally_many_timings():
    with pytest.raises(ValueError, match="3 timings can't be paired with 2"):
        paired_ratio([1, 2, 3], [1, 2])


def test_least_ratio():
    assert least_ratio([3.0, 2.2, 9.0], [2.0, 5.0]) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.3456, "12.346 s"), (1.0, "1.000 s"), (0.25, "250.0 ms"), (0.001, "1.0 ms"), (0.00006, "60.0 µs")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.813, "0.81"), (1.1, "1.10"), (38.04, "38.0"), (260.4, "260")])
def test_factor(ratio, text):
    assert factor(ratio) == text


def test_verdict():
    base = {"plain": [1.0, 1.0, 1.0]}
    assert verdict(Row("a", [1.0, 1.1, 9.0], base)) == ""
    assert verdict(Row("a", [1.0, 1.1, 9.0], base, Budget(1.1, "plain"))) == "≤ 1.10 × plain: kept"
    assert verdict(Row("a", [1.2, 1.2, 1.0], base, Budget(1.1, "plain"))) == "≤ 1.10 × plain: MISSED"
    assert verdict(Row("a", [1.0, 1.0, 1.0], {}, Budget(1.1, "plain"))) == "≤ 1.10 × plain: not measured"
    assert verdict(Row("a", [0.2, 0.25, 0.9], budget=Budget(0.25))) == "≤ 250.0 ms: kept"


def test_render():
    plain = [1.0, 1.2, 1.1]
    rows = [
        Row("plain", plain, {"plain": plain}),
        Row("trace", [1.05, 1.26, 1.155], {"plain": plain}, Budget(1.1, "plain")),
        Row("help", [0.2, 0.3, 0.21], budget=Budget(0.25)),
    ]
    assert render(Table("startup", rows, {"torchlens": "not installed"})).splitlines() == [
        "startup",
        "           median       min      × plain  budget",
        "  plain   1.100 s   1.000 s  1.00 (1.00)",
        "  trace   1.155 s   1.050 s  1.05 (1.05)  ≤ 1.10 × plain: kept",
        "  help   210.0 ms  200.0 ms               ≤ 250.0 ms: kept",
        "  torchlens: not measured (not installed)",
    ]


def test_render_empty_table():
    assert render(Table("peers", [], {"a": "b"})).splitlines()[-1] == "  a: not measured (b)"


def test_quick_runs_fewer_rounds():
    assert Options(quick=False, attnshape=()).rounds(20) == 20
    assert Options(quick=True, attnshape=()).rounds(20) == 5
    assert Options(quick=True, attnshape=()).rounds(4) == 2


def test_interleaved_alternates_and_skips_failures():
    calls = []

    def sample(label):
        calls.append(label)
        return len(calls)

    def failing():
        raise NotMeasuredError("no such tool")

    measured = interleaved({"a": lambda: sample("a"), "bad": failing, "b": lambda: sample("b")}, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert measured.samples == {"a": [3, 5], "b": [4, 6]}
    assert measured.missing == {"bad": "no such tool"}


def test_missing_command_is_not_measured():
    with pytest.raises(NotMeasuredError, match="no-such-command"):
        output_of(["no-such-command"])


def test_every_listed_peer_can_be_run():
    assert tuple(peer.PEERS) == peers.NAMES
