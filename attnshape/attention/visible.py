"""Which keys each query of an attention sees, and what is added to its scores, as batch × heads × queries × keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.attention.core import Core, FusedCore
from attnshape.attention.following import along
from attnshape.attention.measured import HIDES, MeasuredCore
from attnshape.attention.subject import Subject
from attnshape.replaying.bench import Change
from attnshape.replaying.replay import Address


class UnseenError(Exception):
    """Which keys are visible can't be told; the message says why."""


@dataclass(frozen=True)
class Visible:
    """What lies between the scores of one attention and its weights; all tensors are (B, H, queries, keys)."""

    core: Core | FusedCore
    added: Tensor
    """What is added to the scores."""
    replaced: Tensor
    """Where a score itself no longer matters, though the key is seen."""
    dropped: Tensor
    """Where the weight is put to zero behind the softmax."""

    @cached_property
    def keys(self) -> Tensor:
        """Where a key is seen: what is added isn't far below the most that is added in its row."""
        most = self.added.nan_to_num(posinf=1e300).amax(-1, keepdim=True)
        behind = self.added.nan_to_num(posinf=1e300, neginf=-1e300) - most
        empty = most <= HIDES
        return ((behind > HIDES) | empty) & ~self.dropped

    @property
    def weak(self) -> Tensor:
        """Where a score is replaced by a number that leaves its key weight, in rows where other scores matter."""
        replaced = self.replaced & self.keys
        return replaced & ~(self.replaced | ~self.keys).all(-1, keepdim=True)

    @property
    def is_weak(self) -> bool:
        """Whether there are such scores."""
        return bool(self.weak.any())

    @cached_property
    def empty(self) -> Tensor:
        """The rows in which every key is hidden, as (B, H, queries)."""
        return (self.added <= HIDES).all(-1)


def visible(subject: Subject, measured: MeasuredCore) -> Visible:
    """Return what a core's queries see. Raises UnseenError where that can't be told."""
    core, before, behind = measured.core, measured.before, measured.behind
    if len(core.key_axes) != 1 or before is None:
        raise UnseenError("the keys of an attention lie along more than one axis")
    if (core.more_scores or core.positional) and core.softmax.given.numel() != core.scores.result.numel():
        raise UnseenError("scores of several products are joined before the softmax")
    weights = core.weights
    added, factor = before.added, before.factor
    dropped = torch.zeros(weights.shape, dtype=torch.bool)
    if behind is not None and behind.elementwise and behind.source.shape == weights.shape:
        source = behind.source
        if bool((source < 0).all()):
            raise UnseenError("what lies behind the softmax changes every weight")
        dropped = (behind.factor == 0) & (source < 0)
        if core.softmax.masked:
            dropped = dropped | (core.softmax.event.values[0].flatten()[source.clamp(min=0)] == 0)
        index = torch.where(source < 0, torch.arange(source.numel()).reshape(source.shape) % added.numel(), source)
        added, factor = added.flatten()[index], factor.flatten()[index]
    if added.shape != weights.shape:
        raise UnseenError("what lies behind the softmax mixes the weights")
    free = core.value.free(core.weights_place)
    queries = _query_axis(subject, core)
    if queries is None:
        raise UnseenError(f"no axis of the weights stands for queries ({len(free)} do)")
    heads, lengths = subject.numbers.get("H", 0), {subject.numbers[letter] for letter in subject.lengths}
    number = weights.shape[queries]
    if heads > 1 and number not in lengths and number % heads == 0 and number // heads in lengths:
        raise UnseenError("queries and heads lie along one axis")
    layout = _Layout(subject, core.scores.address, tuple(weights.shape), queries, core.key_axes[0])
    empty = _unfilled(core.value.given(core.values_place), weights.shape[core.key_axes[0]])
    replaced = (factor == 0) & (added > HIDES)
    return _without(empty, Visible(core, *(layout.canonical(t) for t in (added, replaced, dropped))))


def visible_fused(subject: Subject, core: FusedCore) -> Visible:
    """Return what the queries of a fused attention see. Raises UnseenError where that can't be told."""
    if core.hides_its_mask:
        raise UnseenError("its mask is of a kind that has no numbers of its own")
    added = core.added
    layout = _Layout(subject, core.context, tuple(added.shape), added.ndim - 2, added.ndim - 1)
    nothing = torch.zeros(added.shape, dtype=torch.bool)
    seen = Visible(core, layout.canonical(added), layout.canonical(nothing), layout.canonical(nothing))
    return _without(_unfilled(core.tensor("value"), added.shape[-1]), seen)


def _unfilled(values: Tensor, keys: int) -> int:
    """Return how many of the last keys have values of zero everywhere: the places of a cache that aren't in use yet."""
    axis = next((axis for axis in reversed(range(values.ndim)) if values.shape[axis] == keys), None)
    if axis is None:
        return 0
    rest = [one for one in range(values.ndim) if one != axis]
    used = (values != 0).any(dim=rest).nonzero().flatten()
    return keys - 1 - int(used[-1]) if used.numel() else 0


def _without(empty: int, seen: Visible) -> Visible:
    """Return what is seen without the last keys, where no query sees any of these."""
    if not empty or bool(seen.keys[..., -empty:].any()):
        return seen
    left = slice(None, -empty)
    return Visible(seen.core, seen.added[..., left], seen.replaced[..., left], seen.dropped[..., left])


def _query_axis(subject: Subject, core: Core) -> int | None:
    """Return the axis of the weights that stands for the queries: the one of their number, where heads share too."""
    stays = core.value.axes[core.weights_place]
    free = core.value.free(core.weights_place)
    axes = [axis for axis, found in enumerate(stays) if found & free]
    tokens = [axis for axis in axes if core.weights.shape[axis] in {subject.numbers[one] for one in subject.lengths}]
    return next(iter([*tokens, *axes[::-1]]), None)


class _Layout:
    """How the axes of weights are brought into the order batch, heads, queries, keys."""

    def __init__(self, subject: Subject, scores: Address, shape: tuple[int, ...], queries: int, keys: int) -> None:
        self._subject = subject
        self._scores = scores
        self._shape = shape
        self._order = [axis for axis in range(len(shape)) if axis not in (queries, keys)]
        batch = subject.numbers.get(subject.batch or "", 0)
        exact = next((axis for axis in self._order if shape[axis] == batch), None)
        if exact is not None:
            self._order.remove(exact)
            self._order.insert(0, exact)
        self._folded = exact is None and len(self._order) == 1 and batch > 1 and shape[self._order[0]] % batch == 0
        self._batch = batch if exact is not None or self._folded else 1
        self._order += [queries, keys]

    @cached_property
    def _heads_first(self) -> bool:
        """Whether a folded axis has the heads outside and the batch inside."""
        subject, letter = self._subject, self._subject.batch
        if letter is None:
            return False
        moved = subject.moved(Change(inputs=subject.at_index(letter, 1)))
        mask = moved.mask(self._scores)
        axis = next((a for a, size in enumerate(mask.shape) if size == self._shape[self._order[0]]), None)
        found = sorted(along(mask, axis)) if axis is not None else []
        return len(found) > 1 and found[1] - found[0] > 1

    def canonical(self, value: Tensor) -> Tensor:
        """Return a tensor of the weights' shape as (B, H, queries, keys)."""
        ordered = value.permute(self._order)
        queries, keys = ordered.shape[-2:]
        if self._folded and self._heads_first:
            return ordered.reshape(-1, self._batch, queries, keys).transpose(0, 1)
        return ordered.reshape(self._batch, -1, queries, keys)
