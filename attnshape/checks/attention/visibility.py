"""Which keys each query sees, and what explains it: the claimed masks, causality and window, or a known mistake."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore
from attnshape.checks.attention.elementwise import HIDES, MeasuredCore
from attnshape.checks.attention.mask_layouts import MaskLayout, fold_otherwise, swap_queries_and_keys
from attnshape.checks.attention.mistake_lines import masks_of_others
from attnshape.checks.attention.operands import OperandRole, has_lone_query
from attnshape.checks.attention.perturbation import changed_indices
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.token_positions import (
    NO_TOKEN,
    FollowedTokens,
    PairPositions,
    pair_positions,
    tokens_of,
)
from attnshape.checks.interventions.experiment import Intervention, ReplayRun
from attnshape.checks.interventions.replay import OutputRef
from attnshape.options.claimed_axes import ClaimedAxis
from attnshape.options.claims import Meaning


class UndecidableVisibilityError(Exception):
    """Which keys are visible is undecidable; the message says why."""


@dataclass(frozen=True)
class VisibleKeys:
    """Which keys each query of an attention sees; all tensors are (B, H, queries, keys)."""

    core: Core | FusedCore
    added: Tensor
    """What is added to the scores."""
    replaced: Tensor
    """Where a number replaces the score, though the key is visible."""
    dropped: Tensor
    """Where the weight is set to zero after the softmax."""
    layout: _Layout | None = None
    """Arranges the axes of the weights."""

    def laid_out(self, value: Tensor) -> Tensor | None:
        """Return what has the scores' axes, or fewer, as (B, H, queries, keys); None if the layout is unknown."""
        if self.layout is None or len(value.shape) > len(self.layout.shape):
            return None
        sizes = zip(value.shape[::-1], self.layout.shape[::-1], strict=False)
        if any(size not in (1, whole) for size, whole in sizes):
            return None
        return self.layout.canonical(value.expand(self.layout.shape))[..., : self.keys.shape[-1]]

    def scores_in(self, run: ReplayRun) -> Tensor | None:
        """Return the scores of another run, with all that is added to them, (B, H, queries, keys); None if unknown."""
        core = self.core
        if self.layout is None:
            return None
        if isinstance(core, FusedCore):
            fused = FusedCore(run.events[core.event.order - 1])
            query, key = fused.tensor("query").double(), fused.tensor("key").double()
            if query.ndim > 2 and query.shape[-3] % key.shape[-3] == 0:
                key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            return self.layout.canonical(query @ key.mT * fused.scale + fused.added)[..., : self.keys.shape[-1]]
        owner = run.events[core.softmax.owner.order - 1].operand_values[core.softmax.place].double()
        if owner.shape != core.weights.shape or owner.shape != self.layout.shape:
            return None
        return self.layout.canonical(owner)[..., : self.keys.shape[-1]]

    def arranged(self, pairs: Tensor) -> Tensor | None:
        """Return what is known of each weight as (B, H, queries, keys); None if the axes are unknown.

        Also if it is known of other weights, as where several attentions make one context together.
        """
        if self.layout is None or pairs.numel() != math.prod(self.layout.shape):
            return None
        # a single query may have no axis of its own
        return self.layout.canonical(pairs.reshape(self.layout.shape))[..., : self.keys.shape[-1]]

    @cached_property
    def keys(self) -> Tensor:
        """Where a key is visible: what is added isn't far below the largest that is added in its row."""
        most = self.added.nan_to_num(posinf=1e300).amax(-1, keepdim=True)
        margin = self.added.nan_to_num(posinf=1e300, neginf=-1e300) - most
        return ((margin > HIDES) | (most <= HIDES)) & ~self.dropped

    @property
    def weak(self) -> Tensor:
        """Where a number replaces the score but leaves its key weight, in rows in which other scores matter."""
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


def visible_keys(subject: Subject, measured: MeasuredCore) -> VisibleKeys:
    """Return which keys a core's queries see. Raises UndecidableVisibilityError if that is undecidable."""
    core, before, after_softmax = measured.core, measured.scores_map, measured.weights_map
    key_axes = core.key_axes or _axes_of_one_key(core)
    if len(key_axes) != 1 or before is None:
        raise UndecidableVisibilityError("the keys span more than one axis")
    if (core.more_scores or core.positional) and core.softmax.scores.numel() != core.scores.result.numel():
        raise UndecidableVisibilityError("scores of several products are joined before the softmax")
    weights = core.weights
    added, factor = before.added, before.factor
    if before.always_hidden is not None:  # the scores decide: which keys are hidden whatever they are, and here
        given = core.softmax.event.values[0]
        if given.shape != added.shape:
            raise UndecidableVisibilityError("the scores decide which keys are hidden")
        added = torch.zeros_like(added).masked_fill(before.always_hidden & (given == 0), -torch.inf)
        factor = torch.ones_like(factor)
    dropped = torch.zeros(weights.shape, dtype=torch.bool)
    if after_softmax is not None and after_softmax.elementwise and after_softmax.source.shape == weights.shape:
        source = after_softmax.source
        if int(source.max()) >= added.numel():
            raise UndecidableVisibilityError("the softmax reads one number for several keys")
        if bool((source < 0).all()):
            raise UndecidableVisibilityError("the code after the softmax changes every weight")
        dropped = (after_softmax.factor == 0) & (source < 0)
        if core.softmax.masked:
            dropped = dropped | (core.softmax.event.values[0].flatten()[source.clamp(min=0)] == 0)
        index = torch.where(source < 0, torch.arange(source.numel()).reshape(source.shape) % added.numel(), source)
        added, factor = added.flatten()[index], factor.flatten()[index]
    if added.shape != weights.shape:
        raise UndecidableVisibilityError("the code after the softmax mixes the weights")
    queries, keys = _query_axis(subject, core, key_axes[0]), key_axes[0]
    replaced = (factor == 0) & (added > HIDES)
    # a single query, without an axis of its own
    if queries is None and (not core.value.free(core.weights_place) or has_lone_query(subject, core)):
        added, replaced, dropped = (tensor.unsqueeze(keys) for tensor in (added, replaced, dropped))
        queries, keys = keys, keys + 1
    if queries is None:
        free = core.value.free(core.weights_place)
        raise UndecidableVisibilityError(f"no axis of the weights stands for queries ({len(free)} do)")
    heads, lengths = subject.numbers.get("H", 0), {subject.numbers[symbol] for symbol in subject.lengths}
    number = added.shape[queries]
    if heads > 1 and number not in lengths and number % heads == 0 and number // heads in lengths:
        raise UndecidableVisibilityError("queries and heads share one axis")
    layout = _Layout(subject, core.scores.ref, tuple(added.shape), queries, keys)
    added, replaced, dropped = (layout.canonical(tensor) for tensor in (added, replaced, dropped))
    visible = VisibleKeys(core, added, replaced, dropped, layout)
    return _without_unused_slots(visible, core.value.operand(core.values_place))


def visible_keys_fused(subject: Subject, core: FusedCore) -> VisibleKeys:
    """Return which keys a fused attention's queries see. Raises UndecidableVisibilityError if it can't."""
    if core.hides_its_mask:
        raise UndecidableVisibilityError("its mask has a type whose values can't be read")
    added = core.added
    layout = _Layout(subject, core.context, tuple(added.shape), added.ndim - 2, added.ndim - 1)
    nothing = torch.zeros(added.shape, dtype=torch.bool)
    visible = VisibleKeys(core, layout.canonical(added), layout.canonical(nothing), layout.canonical(nothing), layout)
    return _without_unused_slots(visible, core.tensor("value"))


def _without_unused_slots(visible: VisibleKeys, values: Tensor) -> VisibleKeys:
    """Return the visible keys without the last ones, if the values of these are zero and no query sees them."""
    keys = visible.keys.shape[-1]
    axis = next((axis for axis in reversed(range(values.ndim)) if values.shape[axis] == keys), None)
    used = changed_indices(values != 0, axis) if axis is not None else set()
    end = max(used) + 1 if used else keys
    if end == keys or bool(visible.keys[..., end:].any()):
        return visible
    added, replaced, dropped = (part[..., :end] for part in (visible.added, visible.replaced, visible.dropped))
    return VisibleKeys(visible.core, added, replaced, dropped, visible.layout)


def _axes_of_one_key(core: Core) -> tuple[int, ...]:
    """Return the axis of a single key, where no sum tells it: the only one of size 1, if all weights are 1."""
    axes = tuple(axis for axis, size in enumerate(core.weights.shape) if size == 1)
    return axes if bool((core.weights == 1).all()) else ()


def _query_axis(subject: Subject, core: Core, keys: int) -> int | None:
    free = core.value.free(core.weights_place)
    axes = [axis for axis, stays in enumerate(core.value.axes[core.weights_place]) if stays & free]
    lengths = {subject.numbers[symbol] for symbol in subject.lengths}
    tokens = [axis for axis in axes if core.weights.shape[axis] in lengths]
    ones = [axis for axis, size in enumerate(core.weights.shape) if size == 1 and axis != keys]
    heads = subject.head_sizes | {subject.numbers.get("G")}
    if axes and not tokens and ones and all(core.weights.shape[axis] in heads for axis in axes):
        return ones[-1]  # a single query, and heads that share its keys
    if not tokens and has_lone_query(subject, core):
        return None
    return next(iter([*tokens, *axes[::-1]]), None)


class _Layout:
    """Permutes the axes of weights to batch, heads, queries, keys."""

    def __init__(self, subject: Subject, scores: OutputRef, shape: tuple[int, ...], queries: int, keys: int) -> None:
        self._subject = subject
        self._scores = scores
        self.shape = shape
        self._order = [axis for axis in range(len(shape)) if axis not in (queries, keys)]
        batch = subject.batch_size
        exact = next((axis for axis in self._order if shape[axis] == batch), None)
        if exact is not None:
            self._order.remove(exact)
            self._order.insert(0, exact)
        longer = [axis for axis in self._order if shape[axis] > 1]
        self._folded = exact is None and len(longer) == 1 and batch > 1 and shape[longer[0]] % batch == 0
        if self._folded:  # a single query may have an axis beside the one that stands for it
            self._order.sort(key=lambda axis: axis != longer[0])
        self._batch = batch if exact is not None or self._folded else 1
        self._order += [queries, keys]

    @cached_property
    def _heads_first(self) -> bool:
        """Whether a folded axis has the heads outside and the batch inside."""
        subject, symbol = self._subject, self._subject.batch
        if symbol is None:
            return False
        mask = subject.perturb(Intervention(inputs=subject.at_index(symbol, 1))).mask(self._scores)
        axis = next((axis for axis, size in enumerate(mask.shape) if size == self.shape[self._order[0]]), None)
        changed = sorted(changed_indices(mask, axis)) if axis is not None else []
        return len(changed) > 1 and changed[1] - changed[0] > 1

    @property
    def folded_sizes(self) -> frozenset[int]:
        """The sizes of the axes that count as heads, and have another size."""
        axes = self._order[:-2] if self._folded else self._order[self._batch > 1 : -2]
        return frozenset(self.shape[axis] for axis in axes) - {self._subject.numbers.get("H", 0), 1}

    def canonical(self, value: Tensor) -> Tensor:
        """Return a tensor of the weights' shape as (B, H, queries, keys)."""
        ordered = value.permute(self._order)
        queries, keys = ordered.shape[-2:]
        if self._folded and self._heads_first:
            return ordered.reshape(-1, self._batch, queries, keys).transpose(0, 1)
        return ordered.reshape(self._batch, -1, queries, keys)


MaskMistake = Literal["inverted", "on queries", "transposed", "batch order", "batch order, heads outside", "ignored"]
"""What may be wrong with a mask."""
_TRUE = 0.5
"""Larger numbers in a mask of another type than bool stand for True."""
_FEWEST = 0.1
"""The least fraction of the rows for which a hypothesis must leave a visible key."""
READ = "set the scores to 0, and read which keys get weight"
EVIDENCE = f"{READ}: those that this mistake leaves"
"""How a hypothesis is shown to hold, in a finding."""


@dataclass(frozen=True)
class Hypothesis:
    """What may explain the visible keys; by default every key is visible."""

    masks: tuple[tuple[str, MaskMistake | None], ...] = ()
    """For each claimed mask, what is wrong with it."""
    offset: int | None = None
    """A query i sees keys up to i + offset; None: all."""
    backwards: bool = False
    """Whether it sees the keys from i + offset on instead."""
    window: int | None = None
    """How many keys a query sees, its own included; None: all."""
    claimed: bool = False
    """Whether a query sees only the keys that `visible` claims."""


@dataclass(frozen=True)
class ExplainedVisibility:
    """The hypothesis that explains the visible keys, if one does."""

    visible: VisibleKeys
    right: Hypothesis
    """The hypothesis that the claims state."""
    aligned: int
    """How many keys come before the first query's own one: all but those of the queries, if nothing else is known."""
    hypothesis: Hypothesis | None
    wanted: Tensor | None
    """The keys that should be visible by the claims; None if a mask can't be laid out."""
    context: Tensor | None
    """The weighted values, (B, H, queries, width), if they can be laid out."""
    alone: Mapping[str, Tensor | None]
    """For each claim, the keys that should be visible by it alone; None if a mask can't be laid out."""
    rows: Tensor
    """The queries that matter, (B, H, queries): they have keys, and aren't padding."""
    positions: PairPositions | None = None
    """The tokens from which queries and keys come, if `visible` is claimed and they can be told."""
    masks: Mapping[str, tuple[torch.Size, Sequence[ClaimedAxis]]] = field(default_factory=dict)
    """The shape of each claimed mask, and its axes if they are written."""
    by_tokens: frozenset[str] = frozenset()
    """The masks whose axes are those of the tokens from which keys come, not those of the keys."""

    def leaks(self, claim: str) -> Tensor | None:
        """Return the visible keys that a claim alone hides; None if that can't be told."""
        kept = self.alone[claim]
        return self.visible.keys & ~kept & self.rows[..., None] if kept is not None else None

    def is_mask(self, value: Tensor, claim: str) -> bool | None:
        """Return whether a tensor is the claimed mask, inverted or not; None if it can't be laid out."""
        kept = self.alone[claim]
        if kept is None:
            return None
        if len(kept) == 1 and value.ndim > 1:
            kept = _apart_from_heads(kept, len(value))
        layout = MaskLayout(*kept.shape)
        shape, axes = self.masks.get(claim, (None, ()))
        roles = layout.roles(tuple(value.shape), axes if value.shape == shape else ())
        forms = [value] if value.dtype == torch.bool else [value > _TRUE, value > HIDES]
        laid_out = [layout.lay_out(form, roles) for form in forms]
        known = [one for one in laid_out if one is not None]
        return any(torch.equal(one, kept) or torch.equal(one, ~kept) for one in known) if known else None


def _apart_from_heads(kept: Tensor, count: int) -> Tensor:
    """Return the keys that a mask keeps, (1, B*H, queries, keys), as (B, H, queries, keys) if heads keep the same ones.

    `count` is the size that B may have, such as the number of all windows of all batch elements.
    """
    if count < 2 or kept.shape[1] % count:
        return kept
    apart = kept.reshape(count, -1, *kept.shape[2:])
    return apart if bool((apart == apart[:, :1]).all()) else kept


def _own_offset(subject: Subject, visible: VisibleKeys) -> int:
    """Return how many keys come before the first query's own one.

    The last queries and keys belong together, as behind a cache, unless the tokens from which they come say otherwise,
    as those of a block of queries do that attends to keys of later blocks too.
    """
    queries, keys = visible.keys.shape[-2:]
    last = keys - queries
    is_claimed = subject.claims.causal or subject.claims.window is not None
    if last <= 0 or last == subject.past_size or not is_claimed or visible.layout is None:
        return last
    positions = pair_positions(subject, visible.core, visible.arranged)
    before = positions.keys_before if positions is not None else None
    return last if before is None else before


class VisibilityExplainer:
    """Looks for the hypothesis that explains which keys an attention sees."""

    def __init__(
        self,
        subject: Subject,
        visible: VisibleKeys,
        unread: Collection[str] = (),
        positions: PairPositions | None = None,
    ) -> None:
        """`unread` are the masks that don't reach this attention, but another one.

        `positions` are those of the tokens of which the user claims which ones are visible.
        """
        self._positions = positions
        self._subject = subject
        self._unread = unread
        self._visible = visible
        self._batch, self._heads, self._queries, self._keys = visible.keys.shape
        others = visible.layout.folded_sizes if visible.layout is not None else frozenset()
        self._layout = MaskLayout(self._batch, self._heads, self._queries, self._keys, others)
        self._tokens: dict[tuple[str, OperandRole], tuple[FollowedTokens, ...] | None] = {}
        """For each mask, the tokens at its axes for each weight, the keys' last; as `_tokens_at` returns them."""
        self._last_chosen: tuple[object, Tensor | None] | None = None
        claims = subject.claims
        self.masks = {name: subject.base.inputs[name] for name in claims.masks if name in subject.base.inputs}
        self.aligned = _own_offset(subject, visible)
        """How many keys come before the first query's own one."""
        self.right = Hypothesis(
            tuple((name, None) for name in self.masks),
            self.aligned if claims.causal else None,
            window=claims.window_at(subject.numbers),
            claimed=claims.visible is not None,
        )
        self._reached = replace(
            self.right, masks=tuple((name, "ignored" if name in unread else None) for name in self.masks)
        )
        """The hypothesis that the claims state about the masks that reach this attention."""

    def explain(self) -> ExplainedVisibility:
        """Return the hypothesis with the fewest mistakes."""
        every = itertools.chain([self.right, self._reached], self._others())
        first = next(filter(self._makes, every), None)
        wanted = self.expected(self.right)
        rows = ~self._visible.empty & ~self._padded()
        if wanted is not None:
            rows = rows & wanted.any(-1)
        return ExplainedVisibility(
            self._visible,
            self.right,
            self.aligned,
            first,
            wanted,
            self._context(),
            self._alone(),
            rows,
            self._positions,
            {name: (mask.shape, self._subject.claims.axes.get(name, ())) for name, mask in self.masks.items()},
            frozenset(name for name in self.masks if self._tokens.get((name, "key"))),
        )

    def _alone(self) -> dict[str, Tensor | None]:
        alone = {name: Hypothesis(masks=((name, None),)) for name in self.masks}
        if self.right.offset is not None:
            alone["causal"] = Hypothesis(offset=self.right.offset)
        if self.right.window is not None:
            alone["window"] = replace(self.right, masks=(), claimed=False)
        if self.right.claimed:
            alone["visible"] = Hypothesis(claimed=True)
        return {name: self.expected(hypothesis) for name, hypothesis in alone.items()}

    def _context(self) -> Tensor | None:
        """Return the weighted values, if their axes are batch, heads and queries in this order."""
        context = self._subject.base.value(self._visible.core.context)
        shape = (self._batch, self._heads, self._queries)
        fits = context.shape[-2] == self._queries and context.numel() % (math.prod(shape) or 1) == 0
        return context.reshape(*shape, -1) if fits else None

    def expected(self, hypothesis: Hypothesis) -> Tensor | None:
        """Return the keys that a hypothesis makes visible, (B, H, queries, keys); None if it doesn't apply."""
        chosen = self._chosen(hypothesis)
        return chosen & self._in_reach(hypothesis) if chosen is not None else None

    def _chosen(self, hypothesis: Hypothesis) -> Tensor | None:
        """Return the keys that masks, and the claim about pairs, leave visible; None if the hypothesis doesn't apply.

        Many hypotheses in a row differ in the offset and the window alone: the last result is kept for the next one.
        """
        wanted = (hypothesis.masks, hypothesis.claimed)
        if self._last_chosen is None or self._last_chosen[0] != wanted:
            self._last_chosen = (wanted, self._choose(*wanted))
        return self._last_chosen[1]

    def _choose(self, masks: Sequence[tuple[str, MaskMistake | None]], claimed: bool) -> Tensor | None:
        keys = torch.ones(self._visible.keys.shape, dtype=torch.bool)
        for name, slip in masks:
            kept = self._kept(name, slip)
            if kept is None:
                return None
            keys = keys & kept
        if claimed:
            if self._positions is None:
                return None
            # which keys a query sees that come from no token isn't claimed
            pairs = claimed_pairs(self._subject, self._positions.counts)
            keys = keys & torch.where(self._positions.known, self._positions.at(pairs), self._visible.keys)
        return keys

    def _in_reach(self, hypothesis: Hypothesis) -> Tensor:
        """Return the keys within the triangle and the window of a hypothesis, (queries, keys)."""
        keys = torch.ones(self._queries, self._keys, dtype=torch.bool)
        i, j = torch.arange(self._queries)[:, None], torch.arange(self._keys)[None, :]
        if hypothesis.offset is not None:
            keys = keys & (j >= i + hypothesis.offset if hypothesis.backwards else j <= i + hypothesis.offset)
        if hypothesis.window is not None:
            distance = i + self.aligned - j
            keys = keys & ((distance if hypothesis.offset is not None else distance.abs()) < hypothesis.window)
        return keys

    def _makes(self, hypothesis: Hypothesis) -> bool:
        chosen = self._chosen(hypothesis)
        if chosen is None:
            return False
        in_reach = self._in_reach(hypothesis)
        if hypothesis in (self.right, self._reached):
            # what a query without any key, or one that is padding, sees doesn't matter
            expected = chosen & in_reach
            rows = expected.any(-1) & ~self._visible.empty & ~self._padded()
            return float(rows.float().mean()) > 0 and bool((expected == self._visible.keys)[rows].all())
        # what a triangle leaves without any key is often given one
        i = torch.arange(self._queries)
        lacks = torch.zeros(self._queries, dtype=torch.bool)
        if hypothesis.offset is not None and not hypothesis.backwards:
            lacks = i + hypothesis.offset < 0
        # most hypotheses are wrong in the first head already
        for part in (slice(1), slice(None)):
            expected = chosen[part, part] & in_reach
            same = (expected == self._shown[part, part]).all(-1) | (lacks & self._few[part, part])
            if not bool(same.all()):
                return False
        return float(expected.any(-1).float().mean()) >= _FEWEST

    @cached_property
    def _shown(self) -> Tensor:
        """The visible keys of queries that see any."""
        return self._visible.keys & ~self._visible.empty.unsqueeze(-1)

    @cached_property
    def _few(self) -> Tensor:
        """The queries that see at most one key, or all of them."""
        return (self._shown.sum(-1) <= 1) | self._shown.all(-1)

    def _padded(self) -> Tensor:
        """Return the queries whose own key a mask hides; what such padding sees doesn't matter."""
        hidden = torch.zeros(self._visible.empty.shape, dtype=torch.bool)
        for name in self.masks.keys() - set(self._unread) if self._queries == self._keys else ():
            kept = self._kept(name, None)
            if kept is not None and bool((kept == kept[:, :, :1]).all()):
                hidden = hidden | ~kept[:, :, 0]
        return hidden

    def _others(self) -> Iterator[Hypothesis]:
        """Yield hypotheses with one mistake, then with two; without claims, those that the author may have meant."""
        # every offset of a causal mask, those nearest to the right one first
        near = sorted(range(-self._queries, self._keys), key=lambda offset: (abs(offset - self.aligned), offset))
        offsets, windows = (None, *near), range(1, self._keys + 1)
        if self.right == Hypothesis():
            yield from (Hypothesis(offset=offset) for offset in offsets)
            for window in windows:
                yield Hypothesis(window=window)
                yield Hypothesis(offset=self.aligned, window=window)
            return
        slips: tuple[MaskMistake, ...] = get_args(MaskMistake)
        starts = list(dict.fromkeys((self.right, self._reached)))
        unclaimed = [replace(start, claimed=False) for start in starts if start.claimed]
        starts += unclaimed
        one_mask = [
            replace(start, masks=tuple((n, slip if n == name else of_start) for n, of_start in start.masks))
            for start in starts
            for name in self.masks
            for slip in slips
        ]
        yield from unclaimed
        yield from one_mask
        for base in (*starts, *one_mask):
            for offset in offsets:
                yield replace(base, offset=offset)
                yield replace(base, offset=offset, backwards=True)
            if self.right.window is not None:
                yield from (replace(base, window=width) for width in (None, *windows))
                for offset, width in itertools.product(offsets, (None, *windows)):
                    yield replace(base, offset=offset, window=width)

    def _kept(self, name: str, slip: MaskMistake | None) -> Tensor | None:
        """Return which keys a mask keeps, (B, H, queries, keys), with or without a mistake."""
        kept = keeps(self.masks[name], self._subject.claims.arguments[name])
        kept = ~kept if slip == "inverted" else kept
        roles = self._layout.roles(tuple(kept.shape), self._subject.claims.axes.get(name, ()))
        tokens = self._tokens_at(name, roles)
        if slip == "ignored":
            # a mask of another shape may choose the tokens that get here, unless it is for another attention
            is_known = roles is not None or tokens or name in self._unread
            is_known = is_known or not self._subject.graph.consumers.get(name)
            return torch.ones(self._visible.keys.shape, dtype=torch.bool) if is_known else None
        if tokens and slip == "on queries":
            tokens = self._tokens_at(name, roles, "query") if len(tokens) == 1 else None
            return self._kept_tokens(kept, tokens) if tokens else None
        if tokens:
            return self._kept_tokens(kept, tokens) if slip in (None, "inverted") else None
        if roles is None or tokens is not None:
            return None
        if slip in ("on queries", "transposed"):
            if ("q" in roles) != (slip == "transposed"):
                return None
            roles = swap_queries_and_keys(roles)
        is_misordered = slip in ("batch order", "batch order, heads outside")
        if is_misordered and {"bh", "hb"} & set(roles):
            return self._layout.lay_out(kept, fold_otherwise(roles))
        laid_out = self._layout.lay_out(kept, roles)
        if laid_out is None or not is_misordered:
            return laid_out
        if not {"b", "h"} & set(roles):
            return None
        return self._layout.misordered(laid_out, slip == "batch order", of_heads="b" not in roles)

    def _tokens_at(
        self, name: str, roles: Sequence[str] | None, role: OperandRole = "key"
    ) -> tuple[FollowedTokens, ...] | None:
        """Return the tokens at a mask's axes for each weight; None if its axes are those of keys, or nothing tells.

        Keys of several sequences are joined, such as those of a memory and of the tokens themselves, and a mask may
        have the tokens of one of them only. Or tokens lie on a map, and a mask has its rows and columns. The result is
        empty if several inputs have such tokens, or if the axes may as well be those of queries and keys. With the role
        of queries, the tokens are those that a mask of one sequence hides where it hides queries instead of keys.
        """
        if (name, role) not in self._tokens:
            found = None
            if name not in self._subject.claims.axes and "k" not in (roles or ()) and name not in self._unread:
                found = self._followed_tokens(name, role)
            self._tokens[name, role] = () if found and any(one.are_joined for one in found) else found
        return self._tokens[name, role]

    def _followed_tokens(self, name: str, role: OperandRole) -> tuple[FollowedTokens, ...] | None:
        sizes = tuple(size for size in self.masks[name].shape if size > 1)
        lengths = sizes[1:] if sizes[:1] == (self._batch,) else sizes
        if self._visible.layout is None or not lengths:
            return None
        core, arranged = self._visible.core, self._visible.arranged
        own = tokens_of(self._subject, core, role, lengths, arranged)
        if own is None and self._batch == 1 < len(sizes):  # batch elements may be folded with windows
            own = tokens_of(self._subject, core, role, sizes, arranged, of_elements=True)
        if own is not None:
            # a square mask of a square map may be one of queries and keys, unless it hides exactly its tokens
            is_square = lengths == (self._queries, self._keys)
            return () if is_square and self._leaves_visible(name, own) else (own,)
        if len(lengths) != 2 or role != "key":
            return None
        queries = tokens_of(self._subject, core, "query", lengths[:1], arranged)
        keys = tokens_of(self._subject, core, "key", lengths[1:], arranged)
        return (queries, keys) if queries is not None and keys is not None else None

    def _leaves_visible(self, name: str, followed: FollowedTokens) -> bool:
        """Return whether keys are visible that come from tokens that a mask hides."""
        kept = self._kept_tokens(keeps(self.masks[name], self._subject.claims.arguments[name]), (followed,))
        return bool((self._visible.keys & ~kept & ~self._visible.empty[..., None]).any())

    def _kept_tokens(self, kept: Tensor, followed: tuple[FollowedTokens, ...]) -> Tensor:
        """Return which keys a mask keeps by the tokens they come from; of others it says nothing."""
        rows = kept.reshape(-1, *(one.count for one in followed))
        element = torch.arange(self._batch).reshape(-1, 1, 1, 1) if len(rows) > 1 else torch.zeros((), dtype=torch.long)
        of_tokens = rows[(element, *(one.tokens.clamp(min=0) for one in followed))]
        is_known = torch.stack([one.tokens != NO_TOKEN for one in followed]).all(0)
        others = self._visible.keys & ~self._visible.empty[..., None]
        return torch.where(is_known, of_tokens, others)


def explain_visibility(subject: Subject) -> tuple[list[ExplainedVisibility], list[str]]:
    """Return the explanation for each attention, and the reasons why some attentions have none."""
    explained, undecidable = _explained(subject)
    return explained, list(dict.fromkeys(undecidable.values()))


def undecidable_visibility(subject: Subject) -> dict[OutputRef, str]:
    """Return why an attention has no explanation, by its context."""
    return dict(_explained(subject)[1])


@once
def _explained(subject: Subject) -> tuple[list[ExplainedVisibility], dict[OutputRef, str]]:
    explained: list[ExplainedVisibility] = []
    undecidable: dict[OutputRef, str] = {}
    attentions: list[MeasuredCore | FusedCore] = [*subject.measured, *subject.fused]
    for measured in attentions:
        core = measured if isinstance(measured, FusedCore) else measured.core
        try:
            if isinstance(measured, FusedCore):
                visible = visible_keys_fused(subject, measured)
            else:
                visible = visible_keys(subject, measured)
        except UndecidableVisibilityError as error:
            undecidable[core.context] = str(error)
        else:
            claimed = subject.claims.visible is not None
            positions = pair_positions(subject, core, visible.arranged) if claimed else None
            explained.append(VisibilityExplainer(subject, visible, masks_of_others(subject, core), positions).explain())
    return explained, undecidable


def claimed_pairs(subject: Subject, counts: tuple[int, int]) -> Tensor:
    """Return which key each query sees by the claim about that, for so many positions of queries and keys."""
    tables = _claimed_tables(subject)
    if counts not in tables:
        queries, keys = map(range, counts)
        claims, numbers = subject.claims, subject.numbers
        tables[counts] = torch.tensor([[bool(claims.visible_at(numbers, q, k)) for k in keys] for q in queries])
    return tables[counts]


@once
def _claimed_tables(subject: Subject) -> dict[tuple[int, int], Tensor]:
    """Return the tables of claimed pairs that were computed so far, none yet."""
    return {}


def keeps(mask: Tensor, meaning: Meaning) -> Tensor:
    """Return where a claimed mask keeps keys."""
    kept = mask > HIDES if meaning == "add" else mask > _TRUE if mask.dtype != torch.bool else mask
    return ~kept if meaning == "drop" else kept
