"""Finds out which tokens of the inputs the queries and keys of an attention come from, in any layout.

Every token has a number. For each bit of it, the tokens that have this bit are changed in one run, and those that don't
have it in another: a query that changes in one of the two comes from a token whose number has, or hasn't, this bit. So
the position is known too where attention is folded into windows, rolled, or gathers keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.operands import AttentionOperand, OperandRole, operands
from attnshape.checks.attention.perturbation import differs, others_where
from attnshape.checks.attention.slots import by_pair
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import Replace
from attnshape.checks.interventions.small_sizes import involves
from attnshape.dims.expressions import AxisExpression

NO_TOKEN = -1
"""The position of what comes from no token of the inputs, such as a learned query."""
_WIDTHS = ("D", "Dk", "Dv")


@dataclass(frozen=True)
class TokenAxes:
    """The axes of an input that hold its tokens, which are counted row by row where there are two."""

    shape: tuple[int, ...]
    """The input's shape."""
    axes: tuple[int, ...]
    """In order; those of tokens are adjacent, and one of the batch may come before them."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of these axes."""
        return tuple(self.shape[axis] for axis in self.axes)

    def spread(self, tokens: Tensor) -> Tensor:
        """Return what is known of each token in the shape of the input."""
        laid_out = [size if axis in self.axes else 1 for axis, size in enumerate(self.shape)]
        return tokens.reshape(laid_out).expand(self.shape)


def token_axes(subject: Subject, value: Tensor) -> TokenAxes | None:
    """Return the axes of an input that hold tokens: those of neither batch, heads nor features."""
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    others = {_batch_axis(subject, value, lengths)}
    others |= {axis for axis, size in enumerate(value.shape) if size in subject.head_sizes - lengths}
    axes = [axis for axis in range(value.ndim) if axis not in others]
    # beside a known width, a size that the user wrote as a number counts parts of tokens, as in B L 3 H Dk
    parts = {size for axes in subject.experiment.target.sizes.inputs.values() for size in _numbers(axes)} - lengths
    whole = [axis for axis in axes if value.shape[axis] not in parts]
    if len(whole) > 1 and any(value.shape[axis] in _widths(subject) for axis in whole):
        axes = whole
    if axes and (value.is_floating_point() or value.is_complex()):
        axes.remove(_feature_axis(subject, value, axes))
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    return TokenAxes(tuple(value.shape), tuple(axes))


def _numbers(axes: Iterable[AxisExpression]) -> set[int]:
    """Return the sizes that are written as numbers."""
    return {axis.evaluate({}) for axis in axes if not axis.symbols}


def _element_axes(subject: Subject, value: Tensor) -> TokenAxes | None:
    """Return the axes of an input that hold batch elements and their tokens; None if the batch isn't outside."""
    found = token_axes(subject, value)
    batch = _batch_axis(subject, value, {subject.numbers[symbol] for symbol in subject.lengths})
    if found is None or batch is None or batch > found.axes[0]:
        return None
    return TokenAxes(found.shape, (batch, *found.axes))


def _batch_axis(subject: Subject, value: Tensor, lengths: Collection[int]) -> int | None:
    """Return the axis of the batch, which may be folded with something else."""
    sizes, batch = list(value.shape), subject.batch
    if batch is None:
        return None
    if subject.batch_size in sizes:
        return sizes.index(subject.batch_size)
    folded = (axis for axis, size in enumerate(sizes) if involves(size, batch, subject.numbers) and size not in lengths)
    return next(folded, None)


def _feature_axis(subject: Subject, value: Tensor, axes: Sequence[int]) -> int:
    found = [axis for axis in axes if value.shape[axis] in _widths(subject)]
    if len(found) == 1:
        return found[0]
    return axes[0] if subject.is_channels_first and value.ndim > 2 else axes[-1]


def _widths(subject: Subject) -> list[int]:
    return [subject.numbers[name] for name in _WIDTHS if name in subject.numbers]


@dataclass(frozen=True)
class _Sequence:
    """Inputs whose tokens are counted together: those with the same axes of tokens."""

    sizes: tuple[int, ...]
    start: int
    """The number of the first token."""

    @property
    def count(self) -> int:
        """How many tokens there are."""
        return math.prod(self.sizes)

    def has(self, numbers: Tensor) -> Tensor:
        """Return which numbers are those of its tokens."""
        return (numbers >= self.start) & (numbers < self.start + self.count)


@dataclass(frozen=True)
class PairPositions:
    """Where the query and the key of each weight come from, (B, H, queries, keys); `NO_TOKEN` where from none."""

    queries: Tensor
    keys: Tensor
    counts: tuple[int, int]
    """How many positions the sequences of queries and of keys have."""
    own: Tensor
    """Where both come from the same token."""

    @cached_property
    def known(self) -> Tensor:
        """Where both come from tokens."""
        return (self.queries != NO_TOKEN) & (self.keys != NO_TOKEN)

    @property
    def are_in_order(self) -> bool:
        """Whether the axes of queries and keys hold the tokens in their order."""
        rows, columns = self.queries.shape[-2:]
        return bool((self.queries == torch.arange(rows)[:, None]).all() and (self.keys == torch.arange(columns)).all())

    @property
    def keys_before(self) -> int | None:
        """How many keys there are before that of the first query's own token, if queries and their keys lie abreast.

        Keys must be in the order of their tokens, which those of a ring buffer aren't.
        """
        keys = self.keys[0, 0, 0]
        keys = keys[keys != NO_TOKEN]
        if not bool((self.own == self.own[:1, :1]).all()) or bool((keys.diff() <= 0).any()):
            return None
        own = self.own[0, 0]
        rows, columns = own.nonzero(as_tuple=True)
        abreast = torch.equal(rows, torch.arange(len(own))) and len(set((columns - rows).tolist())) == 1
        return int(columns[0]) if abreast else None

    def at(self, table: Tensor) -> Tensor:
        """Return the entry of a table (query positions, key positions) for each weight; False where a token lacks."""
        return table[self.queries.clamp(min=0), self.keys.clamp(min=0)] & self.known

    def where(self, weights: Tensor) -> Tensor:
        """Return a table of the pairs of positions of the given weights."""
        table = torch.zeros(self.counts, dtype=torch.bool)
        chosen = weights & self.known
        table[self.queries[chosen], self.keys[chosen]] = True
        return table


class TokenNumbers:
    """The runs in which tokens are changed by the bits of their numbers."""

    def __init__(self, subject: Subject, axes_of: Callable[[Subject, Tensor], TokenAxes | None] = token_axes) -> None:
        """`axes_of` returns the axes of an input along which its tokens are counted."""
        self._subject = subject
        self._axes = {
            name: axes for name, value in subject.inputs.items() if (axes := axes_of(subject, value)) is not None
        }
        every = dict.fromkeys(axes.sizes for axes in self._axes.values())
        self._sequences: dict[tuple[int, ...], _Sequence] = {}
        start = 0
        for sizes in sorted(every, key=lambda sizes: sizes != (subject.past_size,)):  # cached tokens first
            self._sequences[sizes] = _Sequence(sizes, start)
            start += math.prod(sizes)
        bits = range(max(start - 1, 0).bit_length())
        self._changed = [(self._changed_by(bit, 0), self._changed_by(bit, 1)) for bit in bits]

    def _changed_by(self, bit: int, half: int) -> dict[tuple[int, OperandRole], Tensor] | None:
        """Change the tokens whose bit is `half`, and return where queries and keys change; None if that isn't known.

        They are found by the call that reads them, since several attentions may make one context together. The contexts
        are put back, so that layers don't mix tokens.
        """

        inputs: dict[str, Replace] = {}
        for name, axes in self._axes.items():
            sequence = self._sequences[axes.sizes]
            numbers = torch.arange(sequence.start, sequence.start + sequence.count)
            inputs[name] = others_where(axes.spread(numbers >> bit & 1 == half))
        moved = self._subject.perturb_each(Intervention(inputs=inputs)).run
        if not moved.follows(self._subject.base):
            return None
        return {
            (operand.event.order, operand.role): differs(
                operand.value, operand.of(moved), self._subject.experiment.tolerance
            )
            for operand in operands(self._subject)
            if operand.role != "value"
        }

    def numbers(self, operand: AttentionOperand, arranged: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """Return the number of the token from which each query or key comes; None if some come from several."""
        found: Tensor | None = None
        for bit, halves in enumerate(self._changed):
            changed = []
            for half in halves:
                mask = half[operand.event.order, operand.role] if half is not None else None
                pairs = by_pair(self._subject, operand, mask) if mask is not None else None
                laid_out = arranged(pairs) if pairs is not None else None
                if laid_out is None:
                    return None
                changed.append(laid_out)
            without, has = changed
            from_none = ~without & ~has
            if found is None:
                found = torch.where(from_none, NO_TOKEN, 0)
            if bool((without & has).any()) or not torch.equal(from_none, found == NO_TOKEN):
                return None
            found = torch.where(from_none, found, found + (has.long() << bit))
        return found

    def positions(self, numbers: Tensor, role: OperandRole, queries: Tensor) -> tuple[Tensor, int] | None:
        """Return the positions of tokens in their sequence, and its length; None if they are of several sequences.

        Keys are counted from the first cached one. Those of two sequences, such as a memory in front of the tokens, are
        counted in the order in which they stand beside each other. What has `queries` isn't cached.
        """
        sequences = list(self._sequences.values())
        is_cached = sequences[0].sizes == (self._subject.past_size,) and not sequences[0].has(queries).any()
        if role == "key" and len(sequences) == 2 and is_cached:
            return numbers, sum(one.count for one in sequences)
        columns = {one: _columns(numbers, one) for one in sequences}
        present = sorted((one for one in sequences if columns[one]), key=lambda one: columns[one][0])
        one_after_another = all(columns[a][-1] < columns[b][0] for a, b in itertools.pairwise(present))
        if not present or (len(present) > 1 and (role != "key" or not one_after_another)):
            return None
        found, count = torch.full_like(numbers, NO_TOKEN), 0
        for one in present:
            found = torch.where(one.has(numbers), numbers - one.start + count, found)
            count += one.count
        return found, count

    def within(self, numbers: Tensor, sizes: tuple[int, ...]) -> Tensor | None:
        """Return the positions of tokens in the sequence of these sizes, `NO_TOKEN` for others; None without one."""
        one = self._sequences.get(sizes)
        if one is None:
            return None
        return torch.where(one.has(numbers), numbers - one.start, NO_TOKEN)

    def are_joined(self, tokens: Tensor, sizes: tuple[int, ...], role: OperandRole) -> bool:
        """Return whether several inputs have these sizes, and several queries or keys come from one position."""
        axis = -2 if role == "query" else -1
        ordered = tokens.sort(axis).values
        is_repeated = (ordered.diff(dim=axis) == 0) & (ordered.narrow(axis, 1, ordered.shape[axis] - 1) != NO_TOKEN)
        return sum(axes.sizes == sizes for axes in self._axes.values()) > 1 and bool(is_repeated.any())


def _columns(numbers: Tensor, sequence: _Sequence) -> list[int]:
    """Return where on the last axis of `numbers`, (B, H, queries, keys), tokens of a sequence are, in order."""
    is_token = sequence.has(numbers)
    return is_token.flatten(0, 2).any(0).nonzero().flatten().tolist()


@once
def _token_numbers(subject: Subject) -> TokenNumbers:
    return TokenNumbers(subject)


@once
def _element_numbers(subject: Subject) -> TokenNumbers:
    return TokenNumbers(subject, _element_axes)


def pair_positions(
    subject: Subject, core: Core | FusedCore, arranged: Callable[[Tensor], Tensor | None]
) -> PairPositions | None:
    """Return where the queries and keys of an attention come from; None if that isn't one token each.

    `arranged` lays out what is known of each weight as (B, H, queries, keys). All attentions share the runs.
    """
    tokens: dict[OperandRole, Tensor] = {}
    for operand in operands(subject):
        if operand.core is core and operand.role != "value":
            numbers = _token_numbers(subject).numbers(operand, arranged)
            if numbers is None:
                return None
            tokens[operand.role] = numbers
    found = []
    for role in ("query", "key"):
        positions = _token_numbers(subject).positions(tokens[role], role, tokens["query"])
        if positions is None:
            return None
        found.append(positions)
    (queries, of_queries), (keys, of_keys) = found
    own = (tokens["query"] == tokens["key"]) & (tokens["query"] != NO_TOKEN)
    return PairPositions(queries, keys, (of_queries, of_keys), own)


@dataclass(frozen=True)
class FollowedTokens:
    """From which tokens of the inputs the queries or the keys of an attention come."""

    tokens: Tensor
    """The token's number, (B, H, queries, keys), counted row by row; `NO_TOKEN` for what comes from elsewhere."""
    count: int
    """How many tokens there are."""
    are_joined: bool
    """Whether they may come from several inputs of these sizes, joined along the sequence.

    Then one of these can't be told from the others by their tokens' numbers.
    """


def tokens_of(
    subject: Subject,
    core: Core | FusedCore,
    role: OperandRole,
    sizes: tuple[int, ...],
    arranged: Callable[[Tensor], Tensor | None],
    of_elements: bool = False,
) -> FollowedTokens | None:
    """Return which token of the inputs whose tokens have these sizes each query or key comes from.

    With `of_elements`, the first size is that of the batch, and the tokens of all elements are counted. None if the
    tokens aren't known, or if all queries or keys come from elsewhere.
    """
    numbers_of = (_element_numbers if of_elements else _token_numbers)(subject)
    operand = next((one for one in operands(subject) if one.core is core and one.role == role), None)
    numbers = numbers_of.numbers(operand, arranged) if operand is not None else None
    tokens = numbers_of.within(numbers, sizes) if numbers is not None else None
    if tokens is None or bool((tokens == NO_TOKEN).all()):
        return None
    return FollowedTokens(tokens, math.prod(sizes), numbers_of.are_joined(tokens, sizes, role))
