"""Judges claimed masks by the weights of each softmax whose visible keys aren't known otherwise.

Such a softmax selects keys instead of summing their values, as that of a pointer network does, or what makes its scores
is no product of queries and keys. What a mask hides must get no weight, whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Softmax, softmaxes
from attnshape.checks.attention.elementwise import HIDES, distinct
from attnshape.checks.attention.perturbation import PerturbationDiff, changed_indices, differs, other_numbers
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.visibility import explain_visibility, keeps
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import LOG_SOFTMAXES

_NOTHING = 1e-30
"""Smaller weights, relative to the largest of their row, come from the most negative numbers only."""
_CLEARLY = 1e-3
"""The relative difference of results that a small number, added to a sum that is divided by, doesn't make."""
Judgement = Literal["hides", "hides more", "gives weight", "ignored", "hides late", "leaves no trace", "unknown"]


def placed_axes(mask: tuple[int, ...], weights: tuple[int, ...], keys: int) -> list[int] | None:
    """Return the axis of the weights that each axis of a mask stands for, -1 for those of size 1; None if unclear.

    `keys` is the axis along which the weights sum to one. A mask without an axis of queries hides keys.
    """
    own = [axis for axis, size in enumerate(mask) if size == weights[keys] and size > 1]
    if not own:
        return None
    places: list[int] = []
    for axis, size in enumerate(mask):
        fits = [place for place, number in enumerate(weights) if number == size and place != keys]
        if size > 1 and axis != own[-1] and (len(fits) != 1 or fits[0] in places):
            return None
        places.append(keys if axis == own[-1] else fits[0] if size > 1 else -1)
    return places


@dataclass(frozen=True)
class MaskedWeights:
    """The weights of one softmax, and a claimed mask whose keys they weigh."""

    subject: Subject
    name: str
    softmax: Softmax
    keys: int
    """The axis of the weights that holds the keys."""
    places: tuple[int, ...]
    """The axis of the weights for each axis of the mask; -1 where that has size 1."""

    @property
    def mask(self) -> Tensor:
        """The mask as it is given."""
        return self.subject.base.inputs[self.name]

    @cached_property
    def kept(self) -> Tensor:
        """Where the mask keeps a key, in the shape of the weights."""
        return self._laid_out(keeps(self.mask, self.subject.claims.arguments[self.name]))

    def _laid_out(self, value: Tensor) -> Tensor:
        weights = self.softmax.event.values[0]
        present = [axis for axis, place in enumerate(self.places) if place >= 0]
        value = value.reshape([value.shape[axis] for axis in present])
        order = sorted(range(len(present)), key=lambda index: self.places[present[index]])
        held = {self.places[axis] for axis in present}
        shape = [size if axis in held else 1 for axis, size in enumerate(weights.shape)]
        return value.permute(order).reshape(shape).expand(weights.shape)

    @cached_property
    def _queries(self) -> int | None:
        """The axis of the weights that holds as many queries as there are keys, if there is one."""
        shape = self.softmax.event.values[0].shape
        axes = [axis for axis, size in enumerate(shape) if size == shape[self.keys] and axis != self.keys]
        return axes[0] if len(axes) == 1 else None

    @cached_property
    def own(self) -> Tensor:
        """Where a query meets the key of its own position, in the shape of the weights."""
        shape = self.softmax.event.values[0].shape
        if self._queries is None:
            return torch.zeros(shape, dtype=torch.bool)
        same = torch.eye(shape[self.keys], dtype=torch.bool)
        return same.reshape([n if a in (self._queries, self.keys) else 1 for a, n in enumerate(shape)]).expand(shape)

    @cached_property
    def rows(self) -> Tensor:
        """The entries of the queries that matter: some key is visible to them, and they aren't padding."""
        scores = self.softmax.scores.double()
        rows = self.kept.any(self.keys, keepdim=True).expand(self.kept.shape)
        if scores.shape == rows.shape:
            rows = rows & (scores > HIDES).any(self.keys, keepdim=True)
        if self._queries is not None and self._queries not in self.places:
            rows = rows & self.kept.transpose(self._queries, self.keys)
        return rows

    def given(self, run: ReplayRun) -> Tensor:
        """Return where a key gets weight in a run."""
        weights = run.value(self.softmax.ref).double()
        weights = weights.exp() if self.softmax.event.name in LOG_SOFTMAXES else weights
        # NaN is no small number either
        return ~(weights <= _NOTHING * weights.nan_to_num(0).amax(self.keys, keepdim=True))

    @cached_property
    def runs(self) -> list[ReplayRun]:
        """The unchanged run, and one with other numbers in every input that carries data."""
        other = self.subject.experiment.run(Intervention(inputs=dict.fromkeys(self.subject.inputs, other_numbers)))
        return [self.subject.base, other] if other.follows(self.subject.base) else [self.subject.base]

    @cached_property
    def leaks(self) -> Tensor:
        """Where a hidden key gets weight."""
        return self.rows & ~self.kept & torch.stack([self.given(run) for run in self.runs]).any(0)

    @cached_property
    def _reach_results(self) -> bool:
        """Whether a result depends on the weights of hidden keys, which the code may take away again."""
        leaks = self.leaks & ~self.own
        moved = self.subject.perturb(
            Intervention(results={self.softmax.ref: lambda t: torch.where(leaks, other_numbers(t), t)})
        )
        return moved.comparable and any(bool(mask.any()) for _, mask in moved.returned())

    @cached_property
    def judgement(self) -> Judgement:
        """Whether the mask hides the keys that it should, as far as that can be told."""
        if len(self.runs) == 1:
            return "unknown"
        if not bool(self.leaks.any()):
            given = torch.stack([self.given(run) for run in self.runs]).any(0)
            return "hides" if bool(given[self.rows & self.kept].all()) else "hides more"
        if not bool((self.leaks & ~self.own).any()):
            return "unknown"
        if not self._reach_results:
            return self._judged_by_sum
        if self.subject.perturb(self._flipped(slice(None))).has_no_effect:
            return "ignored"
        return "gives weight" if self._is_applied else "unknown"

    @cached_property
    def _judged_by_sum(self) -> Judgement:
        """Judge a mask that takes away the weights of hidden keys after the softmax, which sums them as well.

        The other weights are divided by their own sum: who does that later gets the same results. Where values are
        summed by weights of pairs, the weights that reach them are checked by themselves.
        """
        base, graph = self.subject.base, self.subject.graph
        is_of_pairs = any(core.softmax.ref == self.softmax.ref for core in self.subject.cores)
        is_logarithm = self.softmax.event.name in LOG_SOFTMAXES
        if is_of_pairs or is_logarithm or not graph.carries_data(self.softmax.sources):
            return "unknown"
        run = self.subject.experiment.run(Intervention(results={self.softmax.ref: self._divided_by_own_sum}))
        if PerturbationDiff(base, run, self.subject.experiment.tolerance).has_no_effect:
            return "leaves no trace"
        clearly = PerturbationDiff(base, run, _CLEARLY)
        return "hides late" if clearly.comparable and not clearly.has_no_effect else "unknown"

    def _divided_by_own_sum(self, weights: Tensor) -> Tensor:
        kept = self.rows & self.kept
        return torch.where(kept, weights / (weights * kept).sum(self.keys, keepdim=True), weights)

    def _flipped(self, indices: slice) -> Intervention:
        """Return the change by which the mask hides at some indices of the keys what it keeps, and the reverse."""
        axis, adds = self.places.index(self.keys), self.subject.claims.arguments[self.name] == "add"
        return Intervention(inputs={self.name: partial(invert, axis=axis, indices=indices, adds=adds)})

    @cached_property
    def _is_applied(self) -> bool:
        """Whether the mask changes the scores of the keys that it hides, and of no other ones."""
        index = self.kept.shape[self.keys] // 2
        run = self.subject.perturb_each(self._flipped(slice(index, index + 1))).run
        if not run.follows(self.subject.base):
            return False
        after = run.event(OutputRef(self.softmax.owner.order)).operand_values[self.softmax.place]
        changed = differs(self.softmax.scores, after, self.subject.experiment.tolerance)
        return changed.ndim == self.kept.ndim and changed_indices(changed, self.keys) == {index}

    @property
    def _application(self) -> OutputRef:
        """The last call before the softmax that combines scores with what comes from the mask alone."""
        graph = self.subject.graph
        for event in graph.upstream(self.softmax.sources):
            alone = [self.name in graph.origins(one) and not graph.carries_data(one) for one in event.sources]
            if any(alone) and any(map(graph.carries_data, event.sources)):
                return event.refs[0]
        return self.softmax.ref

    @property
    def _late_application(self) -> OutputRef:
        """The first call after the softmax that combines weights with what comes from the mask alone."""
        graph = self.subject.graph
        after = graph.downstream_of(self.softmax.ref)
        for event in self.subject.base.events[self.softmax.event.order :]:
            alone = [self.name in graph.origins(one) and not graph.carries_data(one) for one in event.sources]
            if any(alone) and not event.producers.isdisjoint(after):
                return event.refs[0]
        return self.softmax.ref

    def violation(self) -> Violation:
        """Return what is wrong where a hidden key gets weight."""
        if self.judgement == "hides late":
            message = f"{self.name} is applied after the softmax: the keys that it hides still count in the sum"
            hint = "mask the scores with -inf before the softmax, or divide the weights by their sum again"
            evidence = "divided the weights of the other keys by their own sum: results change"
            return Violation("AS303", message, self._late_application, hint, evidence, claims=(self.name,))
        if self.judgement == "ignored":
            message = f"{self.name} has no effect: keys that it should hide get weight"
            hint, evidence = "apply it to the scores before the softmax", f"inverted {self.name}: no result changed"
            return Violation("AS404", message, self.softmax.ref, hint, evidence, claims=(self.name,))
        leaks = self.leaks & ~self.own
        scores = [
            run.event(OutputRef(self.softmax.owner.order)).operand_values[self.softmax.place] for run in self.runs
        ]
        given = torch.cat([one[leaks] for one in scores]) if scores[0].shape == leaks.shape else torch.empty(0)
        places = ", ".join(map(str, leaks.nonzero()[0].tolist()))
        evidence = f"read the weights at the entries that {self.name} hides, also with other inputs"
        if len(fills := distinct(given)) == 1:
            message = f"masked scores become {fills[0] + 0:.4g}, which still gives their keys weight"
            hint = "fill with -inf, as the last step before the softmax: scores.masked_fill(~mask, -torch.inf)"
            return Violation("AS405", message, self._application, hint, evidence, claims=(self.name,))
        message = f"{self.name} doesn't hide every key that it should: the weights are above 0 at index [{places}]"
        hint = f"fill the scores that {self.name} hides with -inf, as the last step before the softmax"
        return Violation("AS407", message, self._application, hint, evidence, claims=(self.name,))


def invert(mask: Tensor, axis: int, indices: slice, adds: bool) -> Tensor:
    """Make a mask hide at some indices of an axis what it keeps there, and the reverse."""
    part = mask.movedim(axis, 0)[indices]
    if mask.dtype == torch.bool:
        part.copy_(~part)
    elif adds:
        part.copy_(torch.where(part > HIDES, mask.min().clamp(max=2 * HIDES), 0.0))
    else:
        part.copy_(1 - part)
    return mask


@once
def masked_weights(subject: Subject) -> list[MaskedWeights]:
    """Return each mask's weights in each softmax whose visible keys aren't known otherwise."""
    return list(_masked_weights(subject))


def _masked_weights(subject: Subject) -> Iterator[MaskedWeights]:
    for softmax, keys, name in _candidates(subject):
        places = placed_axes(tuple(subject.base.inputs[name].shape), tuple(softmax.event.values[0].shape), keys)
        if places is not None:
            yield MaskedWeights(subject, name, softmax, keys, tuple(places))


def unplaced_weights(subject: Subject, name: str) -> set[OutputRef]:
    """Return the weights of as many keys as a mask has, of which it can't be told which of them the mask hides."""
    placed = {one.softmax.ref for one in masked_weights(subject) if one.name == name}
    return {
        softmax.ref
        for softmax, keys, other in _candidates(subject)
        if other == name and softmax.event.values[0].shape[keys] in subject.base.inputs[name].shape
    } - placed


def _candidates(subject: Subject) -> Iterator[tuple[Softmax, int, str]]:
    """Yield each softmax whose visible keys aren't known, with the axis of its keys, and each mask."""
    for softmax, keys in unexplained_softmaxes(subject):
        yield from ((softmax, keys, name) for name in subject.claims.masks if name in subject.base.inputs)


def unexplained_softmaxes(subject: Subject) -> Iterator[tuple[Softmax, int]]:
    """Yield each softmax whose visible keys aren't known, with the axis of its keys."""
    explained, _ = explain_visibility(subject)
    known = {one.visible.core.context for one in explained}
    refs = {core.softmax.ref for core in subject.cores if core.context in known}
    for softmax in softmaxes(subject.graph):
        if softmax.ref not in refs and len(softmax.axes) == 1:
            (keys,) = softmax.axes
            yield softmax, keys
