"""Measures the behaviour of one version of attention code, so that it can be compared with another version's.

The properties are those of which rules report facts and mistakes. Nothing is claimed here, and nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attnshape.checks.attention.key_patterns import key_patterns
from attnshape.checks.attention.subject import Subject
from attnshape.checks.behaviour.dependence import inputs, randomness
from attnshape.checks.behaviour.numbers import results
from attnshape.checks.behaviour.positions import positions
from attnshape.checks.behaviour.visible import visible_keys
from attnshape.checks.interventions.experiment import Experiment, OutOfTimeError
from attnshape.checks.rules import (
    attention_weights,
    batch,
    grouped_heads,
    head_merge,
    head_mixing,
    head_split,
    scale,
    token_order,
    tokens,
)
from attnshape.checks.rules.guard import guarded
from attnshape.checks.rules.layered import with_layers
from attnshape.checks.rules.protocol import Observation, Outcome, Rule, Undecided, Verification, Violation
from attnshape.model.behaviour import Behaviour, Property, ResultsRun, Statement, Topic
from attnshape.runtime.time_limit import TooLong

Observer = Callable[[Subject], Iterator[Outcome]]
_RULES: tuple[tuple[Topic, tuple[Rule, ...]], ...] = (
    ("scale", (scale,)),
    ("weights", (attention_weights,)),
    ("heads", (head_split, head_mixing, head_merge, grouped_heads)),
    ("tokens", (batch, tokens, token_order)),
)


def behaviour(subject: Subject, training: Experiment | None) -> Behaviour:
    """Return the behaviour of a subject; `training` is the same target in training mode, None if it doesn't run so."""
    observers: list[tuple[Topic, tuple[Observer, ...]]] = [
        ("visible keys", (visible_keys,)),
        *((topic, tuple(rule.check for rule in rules)) for topic, rules in _RULES),
        ("positions", (positions,)),
        ("inputs", (inputs,)),
        ("randomness", (lambda subject: randomness(subject, training),)),
    ]
    properties = [
        _property(subject, topic, [one for observer in some for one in guarded(subject, topic, observer)])
        for topic, some in observers
    ]
    parameters, runs = _results(subject)
    return Behaviour(
        sizes=dict(subject.experiment.numbers),
        properties=tuple(properties),
        visible=key_patterns(subject),
        parameters=parameters,
        results=runs,
        exact=subject.experiment.tolerance < 1e-6,
    )


def _property(subject: Subject, topic: Topic, outcomes: Sequence[Outcome]) -> Property:
    """Return what outcomes say about a topic."""
    observed = [one for one in outcomes if isinstance(one, Observation)]
    statements = [Statement(text) for _, text in with_layers(subject, observed)]
    statements += [Statement(_fact(one)) for one in outcomes if isinstance(one, Violation)]
    statements += [Statement(one.text, verified=True) for one in outcomes if isinstance(one, Verification)]
    unknown = [one.reason for one in outcomes if isinstance(one, Undecided)]
    return Property(topic=topic, statements=tuple(dict.fromkeys(statements)), unknown=tuple(dict.fromkeys(unknown)))


def _fact(violation: Violation) -> str:
    """Return what a violation says about the code, without what is expected."""
    return violation.message.partition(", expected ")[0]


def _results(subject: Subject) -> tuple[dict[str, tuple[int, ...]], tuple[ResultsRun, ...]]:
    """Return the summaries of the results, none where the time is over or they are random."""
    try:
        return results(subject) if subject.is_deterministic else ({}, ())
    except (OutOfTimeError, TooLong):
        return {}, ()
