"""Features that are exponentials: what is subtracted before an exponential must not change the result.

A maximum is subtracted so that no exponential overflows, and cancels in the ratio of two sums. In attention by random
features (Choromanski et al. 2021, https://arxiv.org/abs/2009.14794, lemma 1) the maximum of a query's features cancels,
as all of its weights have it. That of a key doesn't, unless all keys share it. So it is with the scores of a softmax.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.checks.rules.attention_weights.without_scores import contexts_of_sums, has_sums_of_keys
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_CHANGED = 0.05
"""The relative change of a result that small numbers, which are added to features, don't make."""
_MOST = 8


def check_stabilisers(subject: Subject) -> Iterator[Violation]:
    """Add other numbers to each maximum that is subtracted before an exponential: no result may change."""
    has_exponentials = any(core.softmax.event.name not in ops.SOFTMAXES for core in subject.cores)
    is_attention = has_exponentials or (not subject.attentions and has_sums_of_keys(subject))
    found = list(_subtracted_maxima(subject))[:_MOST] if is_attention else []
    for event in found:
        change = _change(subject, event)
        if change is None or change <= _CHANGED:
            continue
        message = (
            "a maximum that is subtracted before an exponential doesn't cancel: with other numbers in its place "
            f"a result changes by {change:.1%}"
        )
        hint = "subtract one maximum for all keys of a head: amax(dim=(-2, -1), keepdim=True)"
        if has_exponentials:
            hint = "subtract one maximum for all scores of a row: amax(dim=-1, keepdim=True)"
        evidence = "added other numbers to the maxima, each by another amount"
        yield Violation("AS310", message, event.refs[0], hint, evidence)
        return


def _subtracted_maxima(subject: Subject) -> Iterator[ReplayedCall]:
    """Yield the maxima, other than those of softmaxes, that are only subtracted before exponentials."""
    for event in subject.base.events:
        if event.name not in ops.MAXIMA - {"logsumexp"} or not event.values[0].is_floating_point():
            continue
        readers = list(_readers(subject, event))
        if readers and all(one.name in ops.SUBTRACTIONS and _is_exponent(subject, one) for one in readers):
            yield event


def _readers(subject: Subject, event: ReplayedCall) -> Iterator[ReplayedCall]:
    """Yield the calls that compute with a call's result."""
    reached: set[Producer] = {event.refs[0]}
    for reader in subject.base.events[event.order :]:
        if reader.producers & reached:
            if reader.name in ops.SAME_VALUES:
                reached.update(reader.refs)
            else:
                yield reader


def _is_exponent(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether exponentials are the first calls after a subtraction that do more than add to it."""
    adds = ops.SAME_VALUES | ops.ADDITIONS | ops.SUBTRACTIONS
    reached: set[Producer] = set(event.refs)
    readers = []
    for reader in subject.base.events[event.order :]:
        if reader.producers & reached:
            if reader.name in adds:
                reached.update(reader.refs)
            else:
                readers.append(reader)
                break
    return bool(readers) and readers[0].name in ops.EXPONENTIALS


def _change(subject: Subject, event: ReplayedCall) -> float | None:
    """Return by how much contexts and results change, relative to themselves; None if the code takes another path.

    To a result, inputs may be added that are much larger than the context.
    """
    run = subject.experiment.run(Intervention(results={OutputRef(event.order): _other}))
    if not run.follows(subject.base):
        return None
    returned = zip(subject.base.returned, run.returned, strict=True)
    pairs = [(before, after) for (_, before), (_, after) in returned]
    pairs += [(subject.base.value(ref), run.value(ref)) for ref in contexts_of_sums(subject)]
    changes = [
        float((after - before).double().norm() / before.double().norm().clamp(min=1e-30))
        for before, after in pairs
        if before.is_floating_point() and before.shape == after.shape and before.numel()
    ]
    return max(changes) if changes else None


def _other(value: Tensor) -> Tensor:
    """Return numbers that differ by up to one from those of a tensor, each by another amount."""
    generator = torch.Generator().manual_seed(3)
    return value + torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
