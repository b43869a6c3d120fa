"""Does attention use the cached keys and values that a call gets, and does the call return them with the new ones?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.operands import operands
from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.caches.parts import unused_parts
from attnshape.checks.rules.caches.positions import restarted_positions
from attnshape.checks.rules.caches.sharing import shared_caches
from attnshape.checks.rules.caches.steps import step_by_step
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import JOINS

CODES: tuple[str, ...] = ("AS804", "AS905", "AS907", "AS908")
TOPIC = "caches"
_HINT = "return what was joined: the cache and the new keys or values"


def check(subject: Subject) -> Iterator[Outcome]:
    """Follow each cached input into attention, and compare it with what the call returns."""
    past = subject.past_size
    cached = [name for name, value in subject.inputs.items() if past > 1 and past in value.shape and value.ndim >= 3]
    read = [operand.sources for operand in operands(subject)]
    products = (product for core in subject.cores for product in (*core.more_scores, *core.positional))
    read += [product.sources(place) for product in products for place in product.places]
    origins = {name for sources in read for name in subject.graph.origins(sources)}
    for name in cached if subject.attentions else ():
        joined = _joined(subject, name)
        if joined is None:
            continue
        if name not in origins:
            message = f"attention doesn't use the cache {name}: it is only joined with what is new, and returned"
            hint = "attend with the joined keys and values"
            evidence = f"followed {name} through the calls"
            yield Violation("AS804", message, joined, hint, evidence, "measured")
            return
        elif (path := _returned_as_it_came(subject, name)) is not None:
            message = f"the call returns the cache {name} as it came, as {path}: the new tokens are missing from it"
            evidence = f"compared {name} with the results"
            made = _results(subject).get(path)
            at = made if made in subject.graph.downstream_of(joined) else joined
            yield Violation("AS905", message, at, _HINT, evidence, "measured")
            return
    wrong = [*unused_parts(subject, cached), *shared_caches(subject)] if subject.attentions else []
    yield from wrong
    if not wrong:
        yield from _without_new(subject, cached)
        yield from step_by_step(subject)
        yield from restarted_positions(subject)


def _joined(subject: Subject, name: str) -> OutputRef | None:
    """Return the first call that joins a cache with something else."""
    joins = (event for event in subject.base.events if event.name in JOINS)
    return next((event.refs[0] for event in joins if name in subject.graph.origins(tuple(event.producers))), None)


def _returned_as_it_came(subject: Subject, name: str) -> str | None:
    value = subject.base.inputs[name]
    alike = (path for path, other in subject.base.returned if other.shape == value.shape and torch.equal(other, value))
    return next(alike, None)


def _without_new(subject: Subject, caches: Collection[str]) -> Iterator[Outcome]:
    """Change what isn't cached, and look at the results that consist of cached keys and values alone."""
    joins = list(_joins_with_new(subject))
    if not joins:
        return
    names = {join.name for join in joins}
    uses_all = names.issuperset(caches) and _change_contexts(subject, joins)
    cached = torch.cat([subject.base.inputs[name].flatten() for name in sorted(names)])
    parts = [path for path, value in subject.base.returned if _has_numbers_of(value, cached)]
    if not parts:
        if uses_all:
            yield Verification("attention uses the caches")
        return
    varied = sorted(set[str]().union(*(join.tokens for join in joins)) - names)
    moved = subject.perturb(Intervention(inputs=dict.fromkeys(varied, other_numbers)))
    changed = [path for path, mask in moved.returned() if bool(mask.any())] if moved.comparable else []
    if set(parts) <= set(changed) and uses_all:
        yield Verification("attention uses the caches, and none is returned without the new tokens")
    elif changed and set(parts).isdisjoint(changed) and not _is_kept_apart(subject, changed, joins):
        results = _results(subject)
        for path in parts:
            if results.get(path) in subject.graph.downstream(join.ref for join in joins):
                message = f"{path} has cached keys or values, and nothing of the new tokens with which they are joined"
                evidence = f"changed {join_words(varied)}: {path} stays the same"
                yield Violation("AS905", message, results[path], _HINT, evidence)
                return


def _change_contexts(subject: Subject, joins: Sequence[_Join]) -> bool:
    """Return whether each attention depends on its cache; a mask may hide what is joined with new keys."""
    inputs = dict.fromkeys((join.name for join in joins), other_numbers)
    changed = subject.perturb_each(Intervention(inputs=inputs))
    return changed.run.follows(subject.base) and all(changed.changes(join.context) for join in joins)


@dataclass(frozen=True)
class _Join:
    """A call that joins keys or values that are an input with computed ones, for attention."""

    ref: OutputRef
    name: str
    tokens: frozenset[str]
    """The inputs from which the others are computed."""
    context: OutputRef


def _joins_with_new(subject: Subject) -> Iterator[_Join]:
    """Yield the calls that join keys or values that are an input with computed ones.

    Attention reads the input's numbers as they are: what it projects first may be the memory of something else.
    """
    inputs, graph = subject.base.inputs, subject.graph
    own = [operand for operand in operands(subject) if operand.role != "query"]
    for event in subject.base.events:
        if event.name not in JOINS:
            continue
        origins = [graph.origins(sources) for sources in event.sources]
        computed = [
            tokens & inputs.keys()
            for tokens, value in zip(origins, event.operand_values, strict=True)
            if tokens & subject.inputs.keys() and not any(_has_numbers_of(value, given) for given in inputs.values())
        ]
        given = {name for tokens in origins if len(tokens) == 1 for name in tokens & subject.inputs.keys()}
        readers = [operand for operand in own if event in graph.upstream(operand.sources)] if computed and given else []
        for name in sorted(given):
            reader = next((operand for operand in readers if _has_numbers_of(operand.value, inputs[name])), None)
            if reader is not None and _has_numbers_of(event.values[0], inputs[name]):
                tokens = frozenset[str]().union(*computed)
                yield _Join(event.refs[0], name, tokens, reader.core.context)


def _has_numbers_of(value: Tensor, other: Tensor) -> bool:
    """Return whether some numbers of a tensor are also in another one."""
    if not value.is_floating_point() or value.dtype != other.dtype:
        return False
    return bool(torch.isin(value, other[other != 0]).any())


def _results(subject: Subject) -> dict[str, OutputRef]:
    """Return the calls that return the target's results, by their paths; none if a result can't be read."""
    if subject.base.unread_results:
        return {}
    made = {
        id(output): OutputRef(event.order, n) for event in subject.base.events for n, output in enumerate(event.outputs)
    }
    paths = zip(subject.base.returned, subject.base.results, strict=True)
    return {path: made[id(tensor)] for (path, _), tensor in paths if id(tensor) in made}


def _is_kept_apart(subject: Subject, changed: Iterable[str], joins: Iterable[_Join]) -> bool:
    """Return whether a changed result isn't made from a context, and may be the new keys or values by themselves."""
    results = _results(subject)
    contexts = subject.graph.downstream(join.context for join in joins)
    return not all(results.get(path) in contexts for path in changed)
