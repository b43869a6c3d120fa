"""A rule that fails, or whose time is over, leaves its topic undecided and keeps what it found."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Budget
from attnshape.checks.rules import guard
from attnshape.checks.rules.guard import guarded
from attnshape.checks.rules.protocol import Outcome, Undecided, Verification, Violation
from tests.checks.subjects import subject_of

FOUND = Violation("AS101", "found first", None, "a hint", "evidence")


@pytest.fixture
def subject() -> Subject:
    subject = subject_of(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, {"q": "B L Dk", "k": "B L Dk", "v": "B L Dk"})
    assert subject.is_deterministic
    return subject


def endless(subject: Subject) -> Iterator[Outcome]:
    yield FOUND
    yield Verification("what precedes the rest")
    for _ in itertools.count():
        pass


def failing(subject: Subject) -> Iterator[Outcome]:
    yield FOUND
    raise ValueError("no such axis")


@pytest.mark.parametrize("seconds", [0.05, -1.0], ids=["runs out", "is spent"])
def test_a_rule_that_computes_for_too_long_is_ended(
    subject: Subject, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_LEAST_SECONDS", 0.1)
    subject.experiment.budget = Budget(seconds)
    started = time.monotonic()
    undecided = Undecided("a topic", guard.OUT_OF_TIME, incomplete=True)
    assert list(guarded(subject, "a topic", endless)) == [FOUND, undecided]
    assert time.monotonic() - started < 10


def test_a_rule_that_fails_keeps_what_it_found(subject: Subject) -> None:
    found, undecided = guarded(subject, "a topic", failing)
    assert found == FOUND
    assert isinstance(undecided, Undecided)
    assert undecided.incomplete
    assert undecided.reason == f"{guard.CHECK_FAILED}ValueError: no such axis"
