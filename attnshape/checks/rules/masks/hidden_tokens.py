"""Changes of the tokens that a mask hides, and where the results must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnshape.checks.attention.perturbation import PerturbationDiff, others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import keeps
from attnshape.checks.interventions.replay import Replace


@dataclass(frozen=True)
class TokenChange:
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
        shapes = {name: value.shape for name, value in subject.inputs.items()}
        laid_out = {name: spread_tokens(subject, self.symbol, self.tokens, shape) for name, shape in shapes.items()}
        return {name: others_where(where) for name, where in laid_out.items() if where is not None}

    def reaches(self, subject: Subject, diff: PerturbationDiff) -> bool | None:
        """Return whether a position changed that must not; None if no result has such positions."""
        looked = False
        for _, mask in diff.returned():
            where = spread_tokens(subject, self.symbol, self.unaffected, mask.shape)
            if where is None and self.by_every_query and subject.numbers[self.symbol] not in mask.shape:
                where = _spread_elements(subject, self.unaffected.any(-1), mask.shape)
            if where is not None:
                looked = True
                if bool((mask & where).any()):
                    return True
        return False if looked and diff.comparable else None


def hidden_from_every_query(subject: Subject, name: str) -> Iterator[TokenChange]:
    """Yield the tokens that a claimed mask hides from every query, if its axes are batch, queries and keys."""
    kept = keeps(subject.base.inputs[name], subject.claims.arguments[name])
    kept = kept.reshape([size for size in kept.shape if size > 1])
    for symbol in subject.lengths:
        number = subject.numbers[symbol]
        shapes = [(number,) * axes for axes in (1, 2)]
        shapes += [(subject.batch_size, *shape) for shape in shapes]
        if subject.is_distinct(symbol) and tuple(kept.shape) in shapes:
            rows = kept.any(-2) if kept.shape[-2:] == (number, number) else kept
            rows = rows.reshape(-1, number)
            if bool((~rows).any()):
                yield TokenChange(symbol, ~rows, rows, by_every_query=True)


def spread_tokens(subject: Subject, symbol: str, tokens: Tensor, shape: torch.Size) -> Tensor | None:
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
