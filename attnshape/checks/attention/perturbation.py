"""Changes numbers, and follows the change through a run: which indices of each result differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnshape.checks.interventions.experiment import ReplayRun, UnreadableError
from attnshape.checks.interventions.replay import OutputRef, Producer, Replace, ReplayedCall
from attnshape.checks.interventions.small_sizes import involves
from attnshape.inference.dataflow import reads_numbers
from attnshape.tracing.operations import EXPANSIONS


def is_pattern(value: Tensor) -> bool:
    """Return whether a tensor holds at most two different numbers, as masks and constants do."""
    if value.dtype == torch.bool:
        return True
    if not value.numel():
        return False
    if value.is_complex():
        flat = value.reshape(-1)
        others = flat[flat != flat[0]]
        return not others.numel() or bool((others == others[0]).all())
    if not value.is_floating_point():
        return False
    return bool(((value == value.min()) | (value == value.max())).all())


def other_numbers(value: Tensor) -> Tensor:
    """Return numbers of the same kind that differ everywhere."""
    if not value.numel():
        return value.clone()
    if value.is_complex():
        value = value.resolve_conj()
        return torch.complex(other_numbers(value.real), other_numbers(value.imag)).to(value.dtype)
    if value.is_floating_point():
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return (0.5 * value.double() + noise + 0.3).to(value.dtype)
    if value.dtype == torch.bool:
        return ~value
    numbers = value.to(torch.int64)  # torch computes little with unsigned ones
    most = int(numbers.max())
    return ((numbers + 1) % (most + 1) if most > 0 else numbers + 1).to(value.dtype)


def other_pattern(value: Tensor) -> Tensor:
    """Return a mask of the same kind with another pattern: every second element is 0, or 1 where it was 0 before."""
    flat = value.flatten().clone()
    flat[::2] = flat[::2] == 0
    return flat.reshape(value.shape)


def constant(value: Tensor) -> Replace:
    """Return a replacement by a tensor, whatever is replaced."""
    return lambda _: value.clone()


def others_where(mask: Tensor) -> Replace:
    """Return a replacement that changes the numbers where a mask is true, and leaves the others alone."""
    return lambda value: torch.where(mask, other_numbers(value), value)


def others_at(axis: int, begin: int, count: int = 1, outside: bool = False) -> Replace:
    """Return a replacement that changes `count` indices of an axis, from `begin` on; with `outside`, all but these."""

    def change(value: Tensor) -> Tensor:
        part = value.narrow(axis, begin, count)
        kept = part.clone() if outside else other_numbers(part)
        if outside:
            value.copy_(other_numbers(value))
        part.copy_(kept)
        return value

    return change


def others_at_each(rows: int, tokens: int, indices: Sequence[int]) -> Replace:
    """Return a replacement that changes one of these indices of axis `tokens` at each index of axis `rows`."""

    def change(value: Tensor) -> Tensor:
        is_changed = torch.tensor(indices)[:, None] == torch.arange(value.shape[tokens])
        is_changed = is_changed if rows < tokens else is_changed.T
        shape = [size if axis in (rows, tokens) else 1 for axis, size in enumerate(value.shape)]
        return others_where(is_changed.reshape(shape))(value)

    return change


class PerturbationDiff:
    """The elements in which the results of a changed run differ from those of the unchanged run."""

    def __init__(self, base: ReplayRun, changed: ReplayRun, tolerance: float) -> None:
        self.base = base
        self.changed = changed
        self._tolerance = tolerance
        self._masks: dict[OutputRef, Tensor] = {}

    @cached_property
    def comparable(self) -> bool:
        """Whether the changed run made the same calls."""
        return self.changed.follows(self.base)

    def mask(self, ref: OutputRef) -> Tensor:
        """Return a mask of a result's shape: which elements differ."""
        if ref not in self._masks:
            self._masks[ref] = differs(self.base.value(ref), self.changed.value(ref), self._tolerance)
        return self._masks[ref]

    def any(self, ref: OutputRef) -> bool:
        """Return whether any element of a result differs."""
        return bool(self.mask(ref).any())

    @property
    def has_no_effect(self) -> bool:
        """Whether the change leaves the calls and all tensors that the target returned as they were."""
        return self.comparable and not any(bool(mask.any()) for _, mask in self.returned())

    def returned(self) -> list[tuple[str, Tensor]]:
        """Return for each tensor that the target returned, with its path, which elements differ; none of empty ones."""
        self.base.results_are_compared = True
        after = dict(self.changed.returned)
        return [
            (path, differs(value, after[path], self._tolerance))
            for path, value in self.base.returned
            if path in after and after[path].shape == value.shape and value.numel()
        ]


def differs(before: Tensor, after: Tensor, tolerance: float) -> Tensor:
    """Return which elements of two tensors of one shape differ; NaN equals itself."""
    if before.shape != after.shape:
        return torch.ones(before.shape, dtype=torch.bool)
    if not before.is_floating_point() and not before.is_complex():
        return before != after
    if torch.equal(before, after):
        return torch.zeros(before.shape, dtype=torch.bool)
    scale = float(before.abs().max())
    if not math.isfinite(scale):
        finite = before[torch.isfinite(before)]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
    return ~torch.isclose(before, after, rtol=tolerance, atol=tolerance * max(min(scale, 1e3), 1e-3), equal_nan=True)


def changed_indices(mask: Tensor, axis: int) -> set[int]:
    """Return the indices of an axis at which a mask has a true element."""
    others = [other for other in range(mask.ndim) if other != axis % mask.ndim]
    return set((mask.any(dim=others) if others else mask).nonzero().flatten().tolist())


@dataclass(frozen=True)
class Divergence:
    """The first result in which a change reaches indices that it should not."""

    event: ReplayedCall
    ref: OutputRef
    axis: int
    """The axis that has the symbol's size."""
    indices: tuple[int, ...]
    """The indices of that axis that differ."""
    summary: ReplayedCall | None = None
    """An earlier call that reduced the symbol's axis, if there is one."""
    given: int = 1
    """How many indices of an axis of that size differ in what the call reads: several where tokens are folded."""

    @property
    def indices_text(self) -> str:
        """The indices in words, at most six of them, such as "index 3" or "indices 0, 2"."""
        listed = ", ".join(map(str, self.indices[:6])) + (", …" if len(self.indices) > 6 else "")
        return f"index {listed}" if len(self.indices) == 1 else f"indices {listed}"


def is_at_one_index(mask: Tensor, symbol: str, index: int, numbers: Mapping[str, int]) -> tuple[bool | None, int]:
    """Return whether only one index of the symbol's axis differs, and which axis that is.

    None if no axis has the symbol's size. An axis of unexplained size, such as one of cached and new tokens, may
    be the symbol's as well.
    """
    wrong = None
    for axis, size in enumerate(mask.shape):
        if not involves(size, symbol, numbers):
            continue
        changed = changed_indices(mask, axis)
        number = numbers[symbol]
        rest = size // number
        # the axis may fold the symbol's with others, outside and inside it
        strides = (inner for inner in range(1, rest + 1) if rest % inner == 0)
        if any({place // inner % number for place in changed} == {index} for inner in strides):
            return True, axis
        if wrong is None or size == number:
            wrong = axis
    if wrong is None:
        return None, -1
    others = (
        axis
        for axis, size in enumerate(mask.shape)
        if size > numbers[symbol] and not any(involves(size, other, numbers) for other in numbers)
    )
    return any(len(changed_indices(mask, axis)) == 1 for axis in others), wrong


def _most_changed(diff: PerturbationDiff, producers: Iterable[Producer], size: int) -> int:
    """Return at how many indices of an axis of a size some results differ, at least 1."""
    masks = [diff.mask(one) for one in producers if isinstance(one, OutputRef)]
    axes = ((mask, axis) for mask in masks for axis, number in enumerate(mask.shape) if number == size)
    return max((len(changed_indices(mask, axis)) for mask, axis in axes), default=1) or 1


def divergences(
    diff: PerturbationDiff, symbol: str, index: int, numbers: Mapping[str, int], start: Iterable[Producer]
) -> Iterator[Divergence]:
    """Yield the first results in which a change at one index of a symbol reaches other indices.

    `start` is what was changed at the one index: nothing else in it differs, whatever it depends on. Results that
    depend on a divergence are skipped, since nothing more can be concluded from them.

    Raises UnreadableError if a change may have reached other indices in a result whose numbers can't be compared.
    """
    changed = set(start)
    aligned = set(changed)
    diverged: set[Producer] = set()
    summaries: dict[Producer, ReplayedCall] = {}
    unread: dict[Producer, OutputRef] = {}
    """For each result that depends on one that can't be compared, the first of these."""
    for event in filter(reads_numbers, diff.base.events):
        producers = event.producers
        hidden = next((unread[producer] for producer in producers if producer in unread), None)
        if not producers & (aligned | diverged):
            readable = (ref for ref in event.refs if ref.output not in event.unread)
            if event.unusual is not None and event.operands and any(map(diff.any, readable)):
                raise UnreadableError(event.refs[0], "the data reaches it by a call that can't be seen")
            continue
        summary = next((summaries[producer] for producer in producers if producer in summaries), None)
        for ref in event.refs:
            if ref.output in event.unread:
                unread[ref] = hidden or ref
                aligned.add(ref)
                continue
            if ref in changed or not diff.any(ref):
                continue
            if producers & diverged:
                diverged.add(ref)
                continue
            alone, axis = is_at_one_index(diff.mask(ref), symbol, index, numbers)
            expands = summary is not None and event.name in EXPANSIONS
            if alone is False and not expands:
                if hidden is not None:
                    raise UnreadableError(hidden, diff.base.event(hidden).unread[hidden.output])
                indices = tuple(sorted(changed_indices(diff.mask(ref), axis)))
                given = _most_changed(diff, producers & aligned, diff.mask(ref).shape[axis])
                yield Divergence(event, ref, axis, indices, summary, given)
                diverged.add(ref)
                continue
            aligned.add(ref)
            if alone is None or expands:
                summaries[ref] = summary or event
