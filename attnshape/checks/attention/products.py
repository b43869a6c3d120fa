"""Products of two tensors, and how their axes map to the result's, found by changing one index at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.interventions.replay import OutputRef, Producer, ReplayedCall
from attnshape.tracing.operations import PRODUCTS_WITH_ADDEND


@dataclass(frozen=True)
class Product:
    """Two operands that one call multiplies and sums, or that one call multiplies and the next one sums."""

    first: ReplayedCall
    last: ReplayedCall
    left: int
    """The places of the two operands among those of the first call."""
    right: int

    @property
    def places(self) -> tuple[int, int]:
        """The places of both operands."""
        return self.left, self.right

    @property
    def ref(self) -> OutputRef:
        """The reference to the product's result."""
        return OutputRef(self.last.order)

    @property
    def result(self) -> Tensor:
        """The product's result."""
        return self.last.values[0]

    def operand(self, place: int) -> Tensor:
        """Return an operand's value."""
        return self.first.operand_values[place]

    def sources(self, place: int) -> tuple[Producer, ...]:
        """Return an operand's producers."""
        return self.first.sources[place]

    @property
    def added(self) -> Tensor | float:
        """What the call adds to the product, as baddbmm and addmm do."""
        if self.last.name not in PRODUCTS_WITH_ADDEND:
            return 0.0
        return self.with_operands({self.left: torch.zeros_like(self.operand(self.left))})

    @cached_property
    def axes(self) -> dict[int, tuple[frozenset[int], ...]]:
        """For each operand and each of its axes, the axes of the result to which the axis maps index by index.

        A contracted axis maps to none.
        """
        return {place: tuple(self._axes(place)) for place in self.places}

    def _axes(self, place: int) -> Iterator[frozenset[int]]:
        value = self.operand(place)
        # zeros in the other operand, as in masked weights, would hide changes
        dense = {self.other(place): _dense(self.operand(self.other(place)))}
        base = self.with_operands(dense)
        for axis, size in enumerate(value.shape):
            if size == 1:
                yield frozenset()
                continue
            changed = value.clone()
            part = changed.select(axis, size // 2)
            part.copy_(_other(part))
            result = self.with_operands({place: changed, **dense})
            differs = ~torch.isclose(result, base, rtol=1e-9, atol=1e-12, equal_nan=True)
            same_size = [out for out, length in enumerate(differs.shape) if length == size]
            yield frozenset(out for out in same_size if changed_indices(differs, out) == {size // 2})

    def with_operands(self, replaced: Mapping[int, Tensor]) -> Tensor:
        """Return the product with some operands replaced."""
        product = recompute(self.first, replaced)
        return product if self.last is self.first else recompute(self.last, {0: product})

    def contracted(self, place: int) -> tuple[int, ...]:
        """Return an operand's contracted axes."""
        value = self.operand(place)
        return tuple(axis for axis, stays in enumerate(self.axes[place]) if not stays and value.shape[axis] > 1)

    def free(self, place: int) -> frozenset[int]:
        """Return the axes of the result that come from this operand only."""
        return self._alone(place) - self._alone(self.other(place))

    @property
    def shared(self) -> frozenset[int]:
        """The axes of the result that come from both operands."""
        return self._alone(self.left) & self._alone(self.right)

    def _alone(self, place: int) -> frozenset[int]:
        return frozenset(out for stays in self.axes[place] for out in stays)

    def other(self, place: int) -> int:
        """Return the place of the other operand."""
        return self.right if place == self.left else self.left


def recompute(event: ReplayedCall, replaced: Mapping[int, Tensor], output: int = 0) -> Tensor:
    """Return a result of a call with some operands replaced; `output` tells which, if the call has several."""
    values = iter([replaced.get(place, value) for place, value in enumerate(event.operand_values)])
    args, keywords = tree_map(
        lambda value: next(values) if isinstance(value, Tensor) else value, (event.args, dict(event.keywords))
    )
    with torch.no_grad():
        result = event.function(*args, **keywords)
    return result if isinstance(result, Tensor) else result[output]


def _dense(value: Tensor) -> Tensor:
    """Return random numbers of the same shape and kind."""
    if not value.is_floating_point():
        return value
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64).to(value.dtype)


def _other(part: Tensor) -> Tensor:
    return 1.7 * part + 0.9 if part.is_floating_point() else ~part if part.dtype == torch.bool else part + 1
