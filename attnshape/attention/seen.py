"""Explains which keys are seen: by the masks, the causality and the window that are claimed, or by a known mistake."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from attnshape.attention.measured import HIDES
from attnshape.attention.spread import Spread
from attnshape.attention.subject import Subject
from attnshape.attention.visible import Visible

Slip = Literal["inverted", "on queries", "transposed", "batch order", "batch order, heads outside", "ignored"]
"""What may be wrong with one mask."""
_FEWEST = 0.1
"""The part of the rows that a hypothesis must say something about."""


@dataclass(frozen=True)
class Hypothesis:
    """What the visible keys may be made of; without anything, every key is seen."""

    masks: tuple[tuple[str, Slip | None], ...] = ()
    """For each mask that is claimed, what is wrong with it."""
    offset: int | None = None
    """A query i sees keys up to i + offset; None: all."""
    backwards: bool = False
    """Whether it sees those from i + offset on instead."""
    window: int | None = None
    """How many keys a query sees, its own included; None: all."""

    @property
    def slips(self) -> int:
        """How many masks something is wrong with."""
        return sum(slip is not None for _, slip in self.masks)


@dataclass(frozen=True)
class Explained:
    """The hypothesis that makes the very keys that are seen; None where none does."""

    seen: Visible
    right: Hypothesis
    """What is claimed."""
    hypothesis: Hypothesis | None
    wanted: Tensor | None
    """The keys that should be seen by what is claimed; None where a mask can't be laid out."""
    context: Tensor | None
    """The weighted values, (B, H, queries, width), where they can be laid out."""


class Explainer:
    """Looks for what makes the keys that one attention sees."""

    def __init__(self, subject: Subject, seen: Visible) -> None:
        self._subject = subject
        self._seen = seen
        self._batch, self._heads, self._queries, self._keys = seen.keys.shape
        self._spread = Spread(*seen.keys.shape)
        claims = subject.claims
        self.masks = {
            name: subject.base.inputs[name]
            for name, meaning in claims.arguments.items()
            if meaning in ("keep", "drop", "add") and name in subject.base.inputs
        }
        window = claims.window.evaluate(subject.numbers) if claims.window is not None else None
        self.aligned = self._keys - self._queries
        self.right = Hypothesis(
            tuple((name, None) for name in self.masks), self.aligned if claims.causal else None, window=window
        )

    def explain(self) -> Explained:
        """Return the hypothesis with the fewest mistakes."""
        every = itertools.chain([self.right], self._others())
        found = next((hypothesis for hypothesis in every if self._makes(hypothesis)), None)
        return Explained(self._seen, self.right, found, self.expected(self.right), self._context())

    def _context(self) -> Tensor | None:
        """Return the weighted values, where batch, heads and queries lie in this order."""
        context = self._subject.base.value(self._seen.core.context)
        shape = (self._batch, self._heads, self._queries)
        fits = context.shape[-2] == self._queries and context.numel() % (math.prod(shape) or 1) == 0
        return context.reshape(*shape, -1) if fits else None

    def expected(self, hypothesis: Hypothesis) -> Tensor | None:
        """Return the keys that a hypothesis has seen, (B, H, queries, keys); None where it has no meaning here."""
        keys = torch.ones(self._seen.keys.shape, dtype=torch.bool)
        for name, slip in hypothesis.masks:
            kept = self._kept(name, slip)
            if kept is None:
                return None
            keys = keys & kept
        i, j = torch.arange(self._queries)[:, None], torch.arange(self._keys)[None, :]
        if hypothesis.offset is not None:
            keys = keys & (j >= i + hypothesis.offset if hypothesis.backwards else j <= i + hypothesis.offset)
        if hypothesis.window is not None:
            distance = i + self.aligned - j
            causal = hypothesis.offset is not None
            keys = keys & ((distance if causal else distance.abs()) < hypothesis.window)
        return keys

    def _makes(self, hypothesis: Hypothesis) -> bool:
        expected = self.expected(hypothesis)
        if expected is None:
            return False
        if hypothesis == self.right:
            # what a query without any key, or one that is padding, sees doesn't matter
            rows = expected.any(-1) & ~self._seen.empty & ~self._padded()
            return float(rows.float().mean()) > 0 and bool((expected == self._seen.keys)[rows].all())
        keys = self._seen.keys & ~self._seen.empty.unsqueeze(-1)
        i = torch.arange(self._queries)
        # what a triangle leaves without any key is often given one
        reached = hypothesis.offset is None or hypothesis.backwards or (i + hypothesis.offset >= 0)
        few = (keys.sum(-1) <= 1) | keys.all(-1)
        same = (expected == keys).all(-1) | (~torch.as_tensor(reached) & few)
        return bool(same.all()) and float(expected.any(-1).float().mean()) >= _FEWEST

    def _padded(self) -> Tensor:
        """Return the queries whose own key a mask hides: what they see doesn't matter."""
        hidden = torch.zeros(self._seen.empty.shape, dtype=torch.bool)
        if self._queries != self._keys:
            return hidden
        for name in self.masks:
            kept = self._kept(name, None)
            if kept is not None and bool((kept == kept[:, :, :1]).all()):
                hidden = hidden | ~kept[:, :, 0]
        return hidden

    def _others(self) -> Iterator[Hypothesis]:
        """Yield hypotheses with one mistake, then those with two; where nothing is claimed, what may be meant."""
        if self.right == Hypothesis():
            yield from self._meanings()
            return
        slips: tuple[Slip, ...] = get_args(Slip)
        one_mask = [
            replace(self.right, masks=tuple((n, slip if n == name else None) for n in self.masks))
            for name in self.masks
            for slip in slips
        ]
        yield from one_mask
        for base in (self.right, *one_mask):
            for offset in self._offsets():
                yield replace(base, offset=offset)
                yield replace(base, offset=offset, backwards=True)
            if self.right.window is not None:
                for window in (None, *range(1, self._keys + 1)):
                    yield replace(base, window=window)
                for offset, width in itertools.product(self._offsets(), (None, *range(1, self._keys + 1))):
                    yield replace(base, offset=offset, window=width)

    def _meanings(self) -> Iterator[Hypothesis]:
        for offset in self._offsets():
            yield Hypothesis(offset=offset)
        for window in range(1, self._keys + 1):
            yield Hypothesis(window=window)
            yield Hypothesis(offset=self.aligned, window=window)

    def _offsets(self) -> list[int | None]:
        """Return every offset of a causal mask, the nearest to the right one first."""
        every = range(-self._queries, self._keys)
        near = sorted(every, key=lambda offset: (abs(offset - self.aligned), offset))
        return [None, *near]

    def _kept(self, name: str, slip: Slip | None) -> Tensor | None:
        """Return which keys a mask keeps, (B, H, queries, keys), as it is meant or with something wrong."""
        if slip == "ignored":
            return torch.ones(self._seen.keys.shape, dtype=torch.bool)
        mask = self.masks[name]
        meaning = self._subject.claims.arguments[name]
        kept = mask > HIDES if meaning == "add" else mask > 0.5 if mask.dtype != torch.bool else mask
        if meaning == "drop":
            kept = ~kept
        if slip == "inverted":
            kept = ~kept
        roles = self._spread.roles(tuple(kept.shape))
        if roles is None:
            return None
        if slip == "on queries":
            if "q" in roles:
                return None
            roles = ["q" if role == "k" else role for role in roles]
        if slip == "transposed":
            if "q" not in roles:
                return None
            swap = {"q": "k", "k": "q"}
            roles = [swap.get(role, role) for role in roles]
        laid_out = self._spread.laid_out(kept, roles)
        if laid_out is None or slip not in ("batch order", "batch order, heads outside"):
            return laid_out
        return self._spread.misordered(laid_out, slip == "batch order") if {"b", "bh"} & set(roles) else None
