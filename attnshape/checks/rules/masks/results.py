"""Judges claimed masks by the results, where neither visible keys nor weights tell what they hide.

Keys may have several axes, or no softmax may weigh them. Then the tokens that a mask hides are changed in the inputs:
the results must stay the same at every position from which it hides them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from attnshape.checks.attention.cores import Core, FusedCore, product
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import PerturbationDiff, differs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import keeps
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.masks.hidden_tokens import TokenChange, hidden_from_every_query, spread_tokens
from attnshape.checks.rules.masks.weights import invert
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.tracing.operations import CHANNEL_NORMS, CONVOLUTIONS, MAXIMA, POOLINGS, PRODUCTS, RUNNING, SUMS

_MIX_ANYWAY = CONVOLUTIONS | POOLINGS | CHANNEL_NORMS


def judge_by_results(subject: Subject, name: str) -> Outcome | None:
    """Return whether a mask hides tokens from the results; None if that can't be told."""
    changes = list(_changes(subject, name))
    varied: set[str] = set()
    for one in changes:
        inputs = one.inputs(subject)
        change = Intervention(inputs=inputs)
        reached = one.reaches(subject, subject.perturb(change)) if inputs else None
        if reached:
            return _violation(subject, name, one, change)
        if reached is None:
            return None
        varied |= inputs.keys()
    if not varied or not _shows_at(subject, name, changes[0]):
        return None
    text = f"no position of the results depends on a token that {name} hides from it"
    return Verification(f"{text} (varied: {join_words(sorted(varied))})", (name,))


def _shows_at(subject: Subject, name: str, one: TokenChange) -> bool:
    """Return whether such tokens do reach such positions if the mask keeps what it hides."""
    adds = subject.claims.arguments[name] == "add"
    inverted = {name: partial(invert, axis=0, indices=slice(None), adds=adds)}
    before, after = (
        subject.experiment.run(Intervention(inputs={**inverted, **inputs})) for inputs in ({}, one.inputs(subject))
    )
    return one.reaches(subject, PerturbationDiff(before, after, subject.experiment.tolerance)) is True


def _changes(subject: Subject, name: str) -> Iterator[TokenChange]:
    """Yield what to change: all hidden tokens at once, or one after the other if the mask has an axis of queries."""
    kept = keeps(subject.base.inputs[name], subject.claims.arguments[name])
    kept = kept.reshape([size for size in kept.shape if size > 1])
    distinct = {symbol: subject.numbers[symbol] for symbol in subject.lengths if subject.is_distinct(symbol)}
    of_pairs = [number for number in distinct.values() if kept.ndim > 1 and kept.shape[-2:] == (number, number)]
    if not of_pairs:
        yield from hidden_from_every_query(subject, name)
    for symbol, number in distinct.items():
        if tuple(kept.shape) in ((number, number), (subject.batch_size, number, number)):
            pairs = kept.reshape(-1, number, number)
            for token in range(number):
                others = torch.arange(number) != token
                unaffected = ~pairs[:, :, token] & pairs.any(-1) & others
                if bool(unaffected.any()):
                    yield TokenChange(symbol, ~others[None].expand(len(pairs), -1), unaffected, by_every_query=False)


def _violation(subject: Subject, name: str, one: TokenChange, change: Intervention) -> Violation | None:
    """Return what is wrong if the only attention makes a result depend on hidden tokens, else None.

    Without a softmax it is what sums hidden tokens up with others.
    """
    if not subject.attentions:
        total = _first_mixing(subject, one, change)
        return _leak(name, total, change) if total is not None else None
    if len(subject.attentions) != 1 or not _arrives_alone(subject, subject.attentions[0], one, change):
        return None
    if one.reaches(subject, subject.perturb_each(change).diff) is not False:
        return None
    return _leak(name, MaskLines(subject, subject.attentions[0]).last_change(name), change)


def _leak(name: str, at: OutputRef, change: Intervention) -> Violation:
    message = f"{name} doesn't hide every key that it should: results depend on tokens that it hides from them"
    hint = f"follow {name} to what reads it: the order of its axes, its values, and what is combined with it"
    evidence = f"changed such tokens of {join_words(sorted(change.inputs))}, and compared the other positions"
    return Violation("AS407", message, at, hint, evidence, claims=(name,))


def _first_mixing(subject: Subject, one: TokenChange, change: Intervention) -> OutputRef | None:
    """Return the first call that sums hidden tokens up with others.

    None if convolutions or norms mix them before, which do so whatever a mask says.
    """
    moved = subject.perturb(change)
    for event in subject.base.events if moved.comparable else ():
        for ref, value in zip(event.refs, event.values, strict=True):
            where = spread_tokens(subject, one.symbol, one.tokens, value.shape)
            changed = moved.mask(ref)
            if not bool((changed if where is None else changed & ~where).any()):
                continue
            if event.name in _MIX_ANYWAY:
                return None
            if _sums_tokens(subject, event, subject.numbers[one.symbol]):
                return ref
    return None


def _sums_tokens(subject: Subject, event: ReplayedCall, count: int) -> bool:
    """Return whether a call sums over an axis of so many tokens, or takes their maximum as a softmax does."""
    if event.name in SUMS | RUNNING | MAXIMA:
        return True
    if event.name in PRODUCTS and len(event.operand_values) == 1:  # an einsum that sums its only operand
        return count in event.operand_values[0].shape and count not in event.values[0].shape
    found = product(event, subject.graph)
    return found is not None and any(
        found.operand(place).shape[axis] == count for place in found.places for axis in found.contracted(place)
    )


def _arrives_alone(subject: Subject, core: Core | FusedCore, one: TokenChange, change: Intervention) -> bool:
    """Return whether queries, keys and values differ at the changed tokens only, so that no earlier call mixes them."""
    moved = subject.perturb(change)
    if not moved.comparable:
        return False
    if isinstance(core, FusedCore):
        read = [(core.event, place) for place in range(3)]
    else:
        products = [core.scores, *core.more_scores, *core.positional]
        read = [(product.first, place) for product in products for place in product.places]
        read.append((core.value.first, core.values_place))
    for event, place in read:
        before, after = event.operand_values[place], moved.changed.event(event.refs[0]).operand_values[place]
        changed = differs(before, after, subject.experiment.tolerance)
        where = spread_tokens(subject, one.symbol, one.tokens, before.shape)
        if bool((changed if where is None else changed & ~where).any()):
            return False
    return True
