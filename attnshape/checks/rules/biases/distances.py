"""How does what is added to the scores depend on the distance of a key from its query?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.token_positions import pair_positions
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.rules.masks.cancelled import cancelled_arguments
from attnshape.checks.rules.protocol import Verification, Violation
from attnshape.model.formatting import pluralize

_SAME = 1e-5
_FEWEST = 3
"""How many keys on one side of a query are enough to tell whether their distances are told apart."""


def check_distances(subject: Subject, visible: VisibleKeys, lines: MaskLines) -> Iterator[Violation | Verification]:
    """Compare what is added to the scores of the keys of each query, by their distance from it."""
    if cancelled_arguments(subject, visible.core):  # which has a finding of its own
        return
    added, keep = visible.added, visible.keys
    if _has_constant(subject, visible) and _is_cancelled(added, keep & ~visible.empty.unsqueeze(-1)):
        message = "what is added to the scores is equal for all keys that a query sees, so the softmax cancels it"
        hint = "let it depend on the key: on its distance from the query, i - j for a query i and a key j"
        yield _violation(
            "AS707", message, lines.first_constant(lambda value: value.shape[-2:] == keep.shape[-2:]), hint
        )
        return
    numbers = added[keep]
    if not bool(torch.isfinite(numbers).all()) or not numbers.numel() or bool((numbers == numbers[0]).all()):
        return
    before = _keys_before(subject, visible)
    if before is None:
        return
    slopes = _slopes(added, keep)
    if slopes is not None:
        yield from _linear(visible, slopes, before, lines)
    else:
        yield from _by_side(visible, before, lines)


def uneven_slopes(visible: VisibleKeys, lines: MaskLines) -> Violation | None:
    """Return a violation if a head's bias falls by another number from key to key in another element of the batch."""
    added, keep = visible.added, visible.keys
    both = keep[..., 1:] & keep[..., :-1]
    steps = torch.where(both, (added[..., 1:] - added[..., :-1]).abs(), torch.nan).flatten(2)
    slopes = steps.nanmedian(-1).values
    if bool(slopes.isnan().any()) or float((slopes.amax(0) - slopes.amin(0)).max()) <= _SAME:
        return None
    message = (
        "a head's slope differs between batch elements: slopes are repeated in another order than heads are folded"
    )
    hint = "use slopes.repeat(B) for an axis (B H): the slope of a head belongs to row batch*H + head"
    return _violation("AS707", message, lines.repeated_constant(), hint)


def _has_constant(subject: Subject, visible: VisibleKeys) -> bool:
    """Return whether the code computes numbers for each query and key that don't depend on the data."""
    shape, data = visible.keys.shape[-2:], subject.graph.depends_on_data
    before = subject.base.events[: visible.core.context.order]
    constants = (event.values[0] for event in before if event.refs[0] not in data)
    return any(value.shape[-2:] == shape and value.is_floating_point() for value in constants)


def _is_cancelled(added: Tensor, keep: Tensor) -> bool:
    """Return whether a bias is one number for all visible keys of a query, but not for all queries and heads."""
    seen = added.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    same = ((added - seen).abs() <= _SAME) | ~keep
    several = keep.sum(-1) >= _FEWEST
    numbers = added[keep]
    differs = bool(numbers.numel()) and float(numbers.max() - numbers.min()) > _SAME
    return differs and bool(same.all()) and bool(several.any())


def _keys_before(subject: Subject, visible: VisibleKeys) -> int | None:
    """Return how many keys there are before that of the first query's own token, if that is known.

    The last query stands at the last key by a causal mask, the lengths, or the length of a cache. Otherwise it is known
    where each query and one key come from the same token.
    """
    queries, keys = visible.keys.shape[-2:]
    past = subject.past_size
    if queries == keys or (past > 0 and queries + past == keys) or _is_causal(visible):
        return keys - queries
    positions = pair_positions(subject, visible.core, visible.arranged) if queries < keys else None
    return positions.keys_before if positions is not None else None


def _own_positions(visible: VisibleKeys, before: int) -> Tensor:
    return torch.arange(visible.keys.shape[-2]) + before


def _is_causal(visible: VisibleKeys) -> bool:
    """Return whether the last key that a query sees is always its own, where the last query stands at the last key."""
    keys = visible.keys
    own = _own_positions(visible, keys.shape[-1] - keys.shape[-2])
    last = keys.shape[-1] - 1 - keys.flip(-1).int().argmax(-1)
    return keys.shape[-2] > 1 and bool(keys.any(-1).all()) and bool((last == own).all())


def _slopes(added: Tensor, keep: Tensor) -> Tensor | None:
    """Return the signs of the steps from key to key, (…, keys - 1), if all steps of a head have one size, else None.

    It is 0 where one of the two keys is hidden, and in heads without any bias.
    """
    both = keep[..., 1:] & keep[..., :-1]
    steps = torch.where(both, added[..., 1:] - added[..., :-1], 0.0)
    sizes = steps.abs().transpose(0, 1).flatten(1)
    seen = both.transpose(0, 1).flatten(1)
    if not sizes.shape[1]:  # a single key, as in the first step of a loop with a cache
        return None
    most = sizes.amax(1, keepdim=True)
    is_linear = ((sizes - most).abs() <= _SAME * most) | ~seen
    return steps.sign() if bool(is_linear.all()) and bool((most > 0).any()) else None


def _linear(visible: VisibleKeys, signs: Tensor, before: int, lines: MaskLines) -> Iterator[Violation | Verification]:
    """Judge a bias that falls or rises by the same number from key to key, as ALiBi's."""
    own = _own_positions(visible, before)
    if _peaks_at(signs, own):
        yield Verification("the bias falls with the distance from the query's own position")
        return
    keys = visible.keys.shape[-1]
    offsets = [offset for offset in range(-keys, keys + 1) if _peaks_at(signs, own + offset)]
    if len(offsets) == 1:
        (offset,) = offsets
        where = f"{pluralize(abs(offset), 'position')} {'before' if offset < 0 else 'after'} the query's own"
        message = f"the bias is largest {where}, and falls from there"
        yield _miscounted(visible, message, lines)
    elif _is_causal(visible) and _peaks_at(-signs, own):
        message = "the bias rises with distance: it favours far keys over near ones"
        yield _violation("AS706", message, lines.constant(), "subtract slope * (i - j)")


def _peaks_at(signs: Tensor, positions: Tensor) -> bool:
    """Return whether the bias of each query rises up to the key at a position, and falls from there."""
    expected = torch.where(torch.arange(signs.shape[-1]) < positions[:, None], 1.0, -1.0)
    return bool(((signs == expected) | (signs == 0)).all())


def _miscounted(visible: VisibleKeys, message: str, lines: MaskLines) -> Violation:
    shape = visible.keys.shape[-2:]
    hint = "number the queries from the end of the keys: torch.arange(Lq) + (Lk - Lq)"
    return _violation("AS711", message, lines.first_constant(lambda value: value.shape[-2:] == shape), hint)


def _by_side(visible: VisibleKeys, before: int, lines: MaskLines) -> Iterator[Violation | Verification]:
    """Look at whether the bias tells distances apart on both sides; a notice if it does so on one side only."""
    message = _counted_without(visible, before)
    if message:
        yield _miscounted(visible, message, lines)
        return
    sides = _told_apart(visible.added, visible, before)
    if len(sides) != 1:
        if sides:
            yield Verification("the bias tells the distances of the keys on both sides of the query apart")
        return
    (told,) = sides
    shape = visible.keys.shape[-2:]

    def has_lost_a_side(value: Tensor) -> bool:
        bias = value.double().expand(visible.added.shape) if value.shape == shape else None
        return bias is not None and _told_apart(bias, visible, before) == sides

    untold = "after" if told == "before" else "before"
    message = f"the bias is the same for every key {untold} the query, and differs between those {told} it"
    hint = "if those keys should be told apart, give their distances entries of their own in the table"
    yield _violation("AS712", message, lines.first_constant(has_lost_a_side), hint, level="notice")


def _counted_without(visible: VisibleKeys, before: int) -> str:
    """Return what shows that queries are counted from 0, as if there were no keys before the first one's; else ''.

    A distance is then that from a key as many positions back. Earlier keys may be told apart only from there on, or
    the bias may be symmetric about it, in its numbers or in which distances share one, and not about the query.
    """
    found = _sides(visible.added, visible, before) if before > 1 else None
    earlier, later = (found["before"], found["after"]) if found is not None else (None, None)
    if earlier is None or earlier.shape[-1] <= before:
        return ""
    counted = f"queries are counted from 0, without the {before} keys before the first one's"
    is_one = bool((earlier[:, :before].abs() <= _SAME).all())
    if is_one and bool((earlier[:, before].abs() > _SAME).any()):
        return f"the bias is the same for the {before + 1} nearest keys of each query: {counted}"
    own = later.shape[-1] if later is not None else 0
    both = torch.cat((*([later.flip(-1)] if later is not None else []), torch.zeros_like(earlier[:, :1]), earlier), -1)
    steps = both.diff(dim=-1)
    shared = (steps.abs() <= _SAME).all(0, keepdim=True).double()
    if any(_is_only_middle(one, own + before) for one in (-steps.abs(), shared)):
        return f"the bias is symmetric about the key {before} positions before the query's own: {counted}"
    return ""


def _is_only_middle(steps: Tensor, middle: int) -> bool:
    """Return whether the steps from one distance to the next are symmetric about one distance, and about no other.

    About another one that is near an end, a few steps may be symmetric by chance.
    """
    least = max(_FEWEST, min(middle, steps.shape[-1] - middle) // 2)
    others = range(least, steps.shape[-1] - least + 1)
    return [other for other in others if _are_symmetric(steps, other)] == [middle]


def _are_symmetric(steps: Tensor, middle: int) -> bool:
    """Return whether steps from one distance to the next differ, and are the same on both sides of a distance."""
    count = min(middle, steps.shape[-1] - middle)
    earlier, later = steps[:, middle - count : middle].flip(-1), steps[:, middle : middle + count]
    differ = bool(((later - later[:, :1]).abs() > _SAME).any())
    return differ and bool(((earlier - later).abs() <= _SAME).all())


def _told_apart(bias: Tensor, visible: VisibleKeys, before: int) -> tuple[str, ...]:
    """Return the sides of the query on which a bias differs by the distance alone; none if that is unknown for one."""
    sides = _sides(bias, visible, before)
    differing = {name: _differing_heads(one) for name, one in sides.items() if one is not None}
    if len(differing) < 2 or any(heads.any() != heads.all() for heads in differing.values()):
        return ()
    return tuple(name for name, heads in differing.items() if bool(heads.all()))


def _sides(bias: Tensor, visible: VisibleKeys, before: int) -> dict[str, Tensor | None]:
    """Return how much the bias of the keys before and after the query differs from its own key's, by the distance."""
    keep = visible.keys
    distance = torch.arange(bias.shape[-1]) - _own_positions(visible, before)[:, None]
    if not bool(keep[:, :, distance == 0].all()):
        return {"before": None, "after": None}
    own = torch.where(distance == 0, bias.nan_to_num(neginf=0.0), 0.0).sum(-1, keepdim=True)
    return {name: _by_distance(bias - own, keep, distance, side) for name, side in (("before", -1), ("after", 1))}


def _by_distance(bias: Tensor, keep: Tensor, distance: Tensor, side: int) -> Tensor | None:
    """Return the bias by the distance on one side, (heads, distances); None if it depends on more, or they are few."""
    columns = []
    for steps in range(1, distance.shape[-1]):
        seen = keep & (distance == side * steps)
        if not bool(seen.any()):
            break
        numbers = [bias[:, head][seen[:, head]] for head in range(bias.shape[1])]
        if any(not one.numel() or float(one.max() - one.min()) > _SAME for one in numbers):
            return None
        columns.append(torch.stack([one[0] for one in numbers]))
    return torch.stack(columns, -1) if len(columns) >= _FEWEST else None


def _differing_heads(by_distance: Tensor) -> Tensor:
    return by_distance.amax(-1) - by_distance.amin(-1) > _SAME


_violation = partial(Violation, evidence="set the scores to 0, and read the bias at the softmax", shown="reproduced")
