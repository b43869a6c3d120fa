"""Do the results of tokens that are chosen by their numbers go back to the tokens that were chosen?

Informer (Zhou et al. 2021, https://arxiv.org/abs/2012.07436, section 3) lets only the most active queries attend, and
mixture-of-depths (Raposo et al. 2024, https://arxiv.org/abs/2404.02258) only the tokens of the largest scores. Changed
tokens would be chosen otherwise, so what was chosen is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from attnshape.checks.attention.choices import is_choice
from attnshape.checks.attention.operands import AttentionOperand, of_distinct_code
from attnshape.checks.attention.perturbation import PerturbationDiff, constant, others_where
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, Replace, ReplayedCall
from attnshape.tracing import operations as ops

_MOST_PLACES = 6
_MOVES_BY_INDEX = ops.LOOKUPS | ops.ELEMENT_WRITES | ops.INDEXED_WRITES | {"getitem", "masked_select"}


@dataclass(frozen=True)
class PathAxes:
    """The axes of batch elements and of tokens, of one input and of one result."""

    name: str
    result: str
    input_axes: tuple[int, int]
    result_axes: tuple[int, int]


@dataclass(frozen=True)
class Displaced:
    """A query whose context ends up at another token than its own."""

    query: AttentionOperand
    token: tuple[int, int]
    """The batch element and the token from which the query comes."""
    end: tuple[int, int]
    """Those at which its context ends up."""
    at: ReplayedCall
    """The last call that moves contexts to, or from, places that are chosen, else the one that chooses queries."""


def check_chosen(subject: Subject, axes: PathAxes, kept: Mapping[OutputRef, Replace]) -> Iterator[Displaced | None]:
    """Yield a query that is displaced, or None for each attention whose chosen queries all go back to their tokens."""
    for query, *_ in of_distinct_code(subject):
        before = list(subject.graph.upstream(query.sources))
        lookups = _moves_by_choice(subject, before)
        if not lookups:
            continue
        followed = _Followed(subject, query, axes, kept)
        after = subject.graph.downstream_of(query.core.context)
        writes = _moves_by_choice(
            subject, (one for one in reversed(subject.base.events) if one.refs and one.refs[0] in after)
        )
        # the results of the best tokens may be returned from the best one on
        is_ranking = not writes and any(event.name == "topk" for event in before)
        ends = [(place, end) for place in followed.places if (end := followed.end(place)) is not None]
        wrong = [(place, end) for place, end in ends if not followed.comes_from(place, {end})]
        for place, end in wrong:
            token = followed.token(place)
            stays = followed.without_context(token) if token is not None else None
            if token is None or stays is None or end in stays or (is_ranking and not stays):
                continue
            yield Displaced(query, token, end, (writes or lookups)[0])
            return
        if ends and not wrong:
            yield None


def _moves_by_choice(subject: Subject, events: Iterable[ReplayedCall]) -> list[ReplayedCall]:
    """Return the calls that read or write at places, or by a mask, that a comparison of numbers gives."""
    chosen = subject.graph.downstream(_choices(subject))
    return [
        event
        for event in events
        if event.name in _MOVES_BY_INDEX
        and any(
            not value.is_floating_point() and not chosen.isdisjoint(sources)
            for value, sources in zip(event.operand_values[1:], event.sources[1:], strict=True)
        )
    ]


class _Followed:
    """Follows single numbers of one attention's contexts, back to the tokens of their queries and on to the results."""

    def __init__(
        self, subject: Subject, query: AttentionOperand, axes: PathAxes, kept: Mapping[OutputRef, Replace]
    ) -> None:
        self._subject = subject
        self._axes = axes
        self._context = query.core.context
        choices = {ref: constant(subject.base.value(ref)) for ref in _choices(subject)}
        contexts = {
            core.context: constant(subject.base.value(core.context))
            for core in subject.attentions
            if core.context != self._context
        }
        self._kept: dict[OutputRef, Replace] = {**kept, **choices, **contexts}

    @cached_property
    def places(self) -> list[int]:
        """Some places of the context, as indices of its flat numbers."""
        count = self._subject.base.value(self._context).numel()
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(5))
        return shuffled[:_MOST_PLACES].tolist()

    def end(self, place: int) -> tuple[int, int] | None:
        """Return the batch element and the token of the result in which a number of the context ends up."""
        value = self._subject.base.value(self._context)
        is_changed = (torch.arange(value.numel()) == place).reshape(value.shape)
        later = {ref: keep for ref, keep in self._kept.items() if ref.order > self._context.order}
        run = self._subject.perturb(Intervention(results={**later, self._context: others_where(is_changed)}))
        found = self._tokens(run) if run.comparable else None
        return found[0] if found is not None and len(found) == 1 else None

    def _tokens(self, run: PerturbationDiff) -> list[tuple[int, int]] | None:
        mask = dict(run.returned()).get(self._axes.result)
        if mask is None:
            return None
        rows, tokens = self._axes.result_axes
        others = [axis for axis in range(mask.ndim) if axis not in (rows, tokens)]
        by_token = mask.any(dim=others) if others else mask
        by_token = by_token if rows < tokens else by_token.T
        return [(row, token) for row, token in by_token.nonzero().tolist()]

    def _changed(self, tokens: Collection[tuple[int, int]], others: Mapping[OutputRef, Replace]) -> PerturbationDiff:
        """Change tokens of the input, and keep what is chosen, all keys and all values."""
        shape = self._subject.base.inputs[self._axes.name].shape
        rows, along = self._axes.input_axes
        is_changed = torch.zeros(shape[rows], shape[along], dtype=torch.bool)
        for row, token in tokens:
            is_changed[row, token] = True
        laid_out = [size if axis in (rows, along) else 1 for axis, size in enumerate(shape)]
        mask = (is_changed if rows < along else is_changed.T).reshape(laid_out)
        change = Intervention(inputs={self._axes.name: others_where(mask)}, results={**self._kept, **others})
        return self._subject.perturb(change)

    def comes_from(self, place: int, tokens: Collection[tuple[int, int]]) -> bool:
        """Return whether a number of the context depends on the queries of some tokens."""
        run = self._changed(tokens, {})
        return run.comparable and bool(run.mask(self._context).reshape(-1)[place])

    def token(self, place: int) -> tuple[int, int] | None:
        """Return the only token on whose query a number of the context depends; None if these are several."""
        shape = self._subject.base.inputs[self._axes.name].shape
        rows, along = (shape[axis] for axis in self._axes.input_axes)
        left = [(row, token) for row in range(rows) for token in range(along)]
        while len(left) > 1:
            halves = left[: len(left) // 2], left[len(left) // 2 :]
            depends = [self.comes_from(place, half) for half in halves]
            if sum(depends) != 1:
                return None
            left = halves[depends.index(True)]
        return left[0]

    def without_context(self, token: tuple[int, int]) -> list[tuple[int, int]] | None:
        """Return the tokens of the result in which a token itself is found, as where a residual stream is sorted."""
        run = self._changed({token}, {self._context: constant(self._subject.base.value(self._context))})
        return self._tokens(run) if run.comparable else None


def _choices(subject: Subject) -> list[OutputRef]:
    """Return the results that say what was chosen, as indices or as yes and no."""
    return [ref for event in subject.base.events for ref in event.refs if is_choice(event, ref)]
