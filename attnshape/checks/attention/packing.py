"""Recognizes sequences that are packed one after the other on one axis, by an argument that says where each lies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16)
_FEWEST = 2
"""How many sequences there are at least."""


@dataclass(frozen=True)
class Packing:
    """The sequences that the tokens of a target belong to."""

    name: str
    """The argument that says so."""
    boundaries: tuple[int, ...]
    """Where each sequence begins, and the number of all tokens in the end."""
    by_lengths: bool = False
    """Whether the argument holds the lengths of the sequences, not their boundaries."""

    @property
    def count(self) -> int:
        """The number of all tokens."""
        return self.boundaries[-1]

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Where each sequence begins and ends, those without tokens left out."""
        return [(begin, end) for begin, end in itertools.pairwise(self.boundaries) if begin < end]

    @property
    def numbers(self) -> list[int]:
        """What the argument holds."""
        lengths = [end - begin for begin, end in itertools.pairwise(self.boundaries)]
        return lengths if self.by_lengths else list(self.boundaries)

    @property
    def together(self) -> Tensor:
        """Which tokens belong to one sequence, (tokens, tokens)."""
        owner = torch.bucketize(torch.arange(self.count), torch.tensor(self.boundaries), right=True)
        return owner[:, None] == owner

    def shifted(self, by: int) -> Packing:
        """Return a packing whose boundaries between two sequences lie so many tokens behind these."""
        inner = (min(max(place + by, 0), self.count) for place in self.boundaries[1:-1])
        return replace(self, boundaries=(0, *inner, self.count))


def token_axis(value: Tensor) -> int | None:
    """Return the axis that may hold packed tokens: the first one, or the one after an axis of size 1.

    >>> token_axis(torch.randn(7, 2, 3)), token_axis(torch.randn(1, 7, 6))
    (0, 1)
    """
    if not value.ndim:
        return None
    return 1 if value.ndim > 1 and value.shape[0] == 1 else 0


def packing_of(inputs: Mapping[str, Tensor]) -> Packing | None:
    """Return how tokens are packed, if an argument has the boundaries, from 0 to the number of tokens, or all lengths.

    >>> x = torch.randn(7, 4, 5)
    >>> packing_of({"x": x, "cu_seqlens": torch.tensor([0, 3, 7])})
    Packing(name='cu_seqlens', boundaries=(0, 3, 7), by_lengths=False)
    >>> packing_of({"x": x, "lengths": torch.tensor([4, 2, 1])})
    Packing(name='lengths', boundaries=(0, 4, 6, 7), by_lengths=True)
    >>> packing_of({"x": x, "lengths": torch.tensor([2, 2, 2, 1])})  # may be those of a batch on axis 1
    """
    first = next((value for value in inputs.values() if value.ndim > 1), None)
    axis = token_axis(first) if first is not None else None
    if first is None or axis is None:
        return None
    count = first.shape[axis]
    for name, value in inputs.items():
        if value.dtype not in _INTEGERS or value.ndim != 1 or len(value) < _FEWEST or int(value.min()) < 0:
            continue
        numbers = tuple(value.tolist())
        if numbers[0] == 0 and len(numbers) > _FEWEST and numbers[-1] == count and numbers == tuple(sorted(numbers)):
            return Packing(name, numbers)
        if numbers[0] and sum(numbers) == count and len(numbers) not in first.shape:
            return Packing(name, (0, *itertools.accumulate(numbers)), by_lengths=True)
    return None
