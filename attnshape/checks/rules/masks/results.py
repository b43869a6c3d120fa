"""Judges claimed masks by the results, where neither visible keys nor weights tell what they hide.

Keys may have several axes, or no softmax may weigh them. Then the tokens that a mask hides are changed in the inputs:
the results must stay the same at every position from which it hides them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import PerturbationDiff, differs, other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import keeps
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Replace
from attnshape.checks.rules.masks.weights import invert
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words


@dataclass(frozen=True)
class _Change:
    """Tokens of the inputs that are changed, and the positions that must not depend on them."""

    symbol: str
    tokens: Tensor
    """The tokens, (B or 1, tokens)."""
    unaffected: Tensor
    """The positions of the results, (B or 1, tokens)."""
    by_every_query: bool
    """Whether no query may see the tokens, so that results with other positions must not depend on them either."""

    def inputs(self, subject: Subject) -> Mapping[str, Replace]:
        """Return the replacements of the inputs that have such tokens."""

        def change(value: Tensor) -> Tensor:
            where = _spread(subject, self.symbol, self.tokens, value.shape)
            return value if where is None else torch.where(where, other_numbers(value), value)

        shapes = {name: value.shape for name, value in subject.inputs.items()}
        fitting = (n for n, shape in shapes.items() if _spread(subject, self.symbol, self.tokens, shape) is not None)
        return dict.fromkeys(fitting, change)

    def reaches(self, subject: Subject, diff: PerturbationDiff) -> bool | None:
        """Return whether a position changed that must not; None if no result has such positions."""
        looked = False
        for _, mask in diff.returned():
            where = _spread(subject, self.symbol, self.unaffected, mask.shape)
            if where is None and self.by_every_query and subject.numbers[self.symbol] not in mask.shape:
                where = _spread_elements(subject, self.unaffected.any(-1), mask.shape)
            if where is not None:
                looked = True
                if bool((mask & where).any()):
                    return True
        return False if looked and diff.comparable else None


def _spread(subject: Subject, symbol: str, tokens: Tensor, shape: torch.Size) -> Tensor | None:
    """Return a mask of tokens, (B or 1, tokens), in the shape of a tensor; None if its axes aren't certain."""
    number, batch = subject.numbers[symbol], subject.batch_size
    sizes = list(shape)
    if sizes.count(number) != 1 or (tokens.shape[0] > 1 and sizes.count(batch) != 1):
        return None
    axis = sizes.index(number)
    if tokens.shape[0] == 1:
        return tokens[0].reshape([number if place == axis else 1 for place in range(len(sizes))]).expand(shape)
    rows = sizes.index(batch)
    laid_out = tokens if rows < axis else tokens.T
    return laid_out.reshape([size if place in (rows, axis) else 1 for place, size in enumerate(sizes)]).expand(shape)


def _spread_elements(subject: Subject, elements: Tensor, shape: torch.Size) -> Tensor | None:
    """Return a mask of elements of the batch, (B or 1), in the shape of a tensor; None if its axes aren't certain."""
    if len(elements) == 1:
        return elements.expand(shape)
    if list(shape).count(subject.batch_size) != 1:
        return None
    axis = list(shape).index(subject.batch_size)
    return elements.reshape([size if place == axis else 1 for place, size in enumerate(shape)]).expand(shape)


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


def _shows_at(subject: Subject, name: str, one: _Change) -> bool:
    """Return whether such tokens do reach such positions if the mask keeps what it hides."""
    adds = subject.claims.arguments[name] == "add"
    inverted = {name: partial(invert, axis=0, indices=slice(None), adds=adds)}
    before, after = (
        subject.experiment.run(Intervention(inputs={**inverted, **inputs})) for inputs in ({}, one.inputs(subject))
    )
    return one.reaches(subject, PerturbationDiff(before, after, subject.experiment.tolerance)) is True


def _changes(subject: Subject, name: str) -> Iterator[_Change]:
    """Yield what to change: all hidden tokens at once, or one after the other if the mask has an axis of queries."""
    kept = keeps(subject.base.inputs[name], subject.claims.arguments[name])
    kept = kept.reshape([size for size in kept.shape if size > 1])
    batch = subject.batch_size
    for symbol in subject.lengths:
        number = subject.numbers[symbol]
        if not subject.is_distinct(symbol):
            continue
        if tuple(kept.shape) in ((number,), (batch, number)):
            rows = kept.reshape(-1, number)
            if bool((~rows).any()):
                yield _Change(symbol, ~rows, rows, by_every_query=True)
        elif tuple(kept.shape) in ((number, number), (batch, number, number)):
            pairs = kept.reshape(-1, number, number)
            for token in range(number):
                others = torch.arange(number) != token
                unaffected = ~pairs[:, :, token] & pairs.any(-1) & others
                if bool(unaffected.any()):
                    yield _Change(symbol, ~others[None].expand(len(pairs), -1), unaffected, by_every_query=False)


def _violation(subject: Subject, name: str, one: _Change, change: Intervention) -> Violation | None:
    """Return what is wrong if the only attention makes a result depend on hidden tokens, else None."""
    if len(subject.attentions) != 1 or not _arrives_alone(subject, subject.attentions[0], one, change):
        return None
    if one.reaches(subject, subject.perturb_each(change).diff) is not False:
        return None
    at = MaskLines(subject, subject.attentions[0]).last_change(name)
    message = f"{name} doesn't hide every key that it should: results depend on tokens that it hides from them"
    hint = f"follow {name} to the scores: the order of its axes, its values, and what is combined with it"
    evidence = f"changed such tokens of {join_words(sorted(change.inputs))}, and compared the other positions"
    return Violation("AS407", message, at, hint, evidence, claims=(name,))


def _arrives_alone(subject: Subject, core: Core | FusedCore, one: _Change, change: Intervention) -> bool:
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
        where = _spread(subject, one.symbol, one.tokens, before.shape)
        if bool((changed if where is None else changed & ~where).any()):
            return False
    return True
