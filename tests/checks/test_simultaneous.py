"""Changes in several attentions at once: contexts are put back, so that a change in one attention reaches no other."""

import torch

from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from tests.checks.subjects import subject_of

INPUTS = {"q": "B H Lq Dk", "k": "B H Lk Dk", "v": "B H Lk Dk"}


def two_layers(q, k, v):
    first = (q @ k.mT).softmax(-1) @ v
    return (first.tanh() @ k.mT).softmax(-1) @ v


def beside(q, k, v):
    scores = q @ k.mT
    return (scores.tanh() @ v @ k.mT).softmax(-1) @ (scores.softmax(-1) @ v).new_ones(v.shape)


def ref_of(subject, name, which=0):
    return [OutputRef(event.order) for event in subject.base.events if event.name == name][which]


def test_change_in_a_layer_reaches_its_own_context_only():
    subject = subject_of(two_layers, INPUTS)
    first, second = (core.context for core in subject.attentions)
    each = subject.perturb_each(Intervention(results={subject.cores[0].scores.ref: other_numbers}))
    assert each.changes(first)
    assert not each.changes(second)
    assert each.diff.has_no_effect
    assert each.is_apart(ref_of(subject, "tanh"))


def test_changed_context_starts_from_that_of_the_unchanged_run():
    subject = subject_of(two_layers, INPUTS)
    first, second = (core.context for core in subject.attentions)

    def add_one(value):
        return value + 1

    each = subject.perturb_each(Intervention(results={subject.cores[0].scores.ref: other_numbers, first: add_one}))
    assert torch.equal(each.run.value(first), subject.base.value(first) + 1)
    assert each.changes(second)
    assert not each.is_apart(ref_of(subject, "tanh"))
    assert torch.equal(each.run.value(second), subject.base.value(second))


def test_change_that_passes_beside_a_context_is_noticed():
    subject = subject_of(beside, INPUTS)
    scores = ref_of(subject, "matmul")
    each = subject.perturb_each(Intervention(results={scores: other_numbers}))
    assert each.is_apart(scores)
    assert not each.is_apart(ref_of(subject, "tanh"))


def test_run_that_takes_another_path_is_not_apart():
    def guarded(q, k, v):
        scores = q @ k.mT
        return (scores * 2 if scores.max() > 1e3 else scores).softmax(-1) @ v

    subject = subject_of(guarded, INPUTS)
    scores = subject.cores[0].scores.ref
    assert not subject.perturb_each(Intervention(results={scores: lambda value: value + 1e6})).is_apart(scores)
