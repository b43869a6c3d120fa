"""Do a key and the value at its position come from the same token, and from the same element of the batch?"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.operands import AttentionOperand, by_attention, projection
from attnshape.checks.attention.permutation import element_axes
from attnshape.checks.attention.perturbation import changed_indices, differs, other_numbers
from attnshape.checks.attention.simultaneous import SimultaneousRun
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.checks.rules.masks.reach import describe_attentions
from attnshape.checks.rules.protocol import Outcome, Verification, Violation
from attnshape.model.formatting import join_words
from attnshape.tracing import operations as ops

_SORTS = frozenset({"sort", "argsort", "topk"})
_MOVES_TOKENS = ops.SELECTIONS | {"gather", "take_along_dim", "scatter"}
"""Calls after which keys and values may be in different orders by intent, if data chooses the tokens."""
_OWN_NAME = re.compile(r"(^|_)(k|v|keys?|values?)($|_|\d)")
_Pair = tuple[AttentionOperand, AttentionOperand]
_PLACES = ((0, 0), (1, 1), (2, 2), (0, 2))
"""Places of a number along the first axis, the third and so on, and along the others: 0 first, 1 middle, 2 last.

Rows and columns of a map that are transposed keep the corners on the diagonal where they are, and the middle too.
"""


def check_sources(subject: Subject) -> Iterator[Outcome]:
    """Compare the inputs from which keys are projected with those from which values are."""
    claims = ("separate-values",) if subject.claims.separate_values else ()
    sources = [
        (_inputs_of(subject, key), _inputs_of(subject, value), key, value) for _, key, value in by_attention(subject)
    ]
    apart = [one for one in sources if one[0] and one[1] and one[0].isdisjoint(one[1])]
    if apart and claims:
        every, some = ([key.core.context for _, _, key, _ in those] for those in (sources, apart))
        where = f", {describe_attentions(subject, some, every)}" if len(some) < len(every) else ""
        yield Verification(f"keys and values come from different inputs{where}", claims)
    elif apart:
        of_keys, of_values, _, value = apart[0]
        keys, values = (join_words(sorted(names)) for names in (of_keys, of_values))
        message = f"keys are projected from {keys}, and values from {values}"
        hint = "project both from the same tensor, or if it is meant, claim it: --claim separate-values"
        at = projection(subject, value.sources)
        yield Violation(
            "AS108", message, at, hint, "followed keys and values to the inputs", "measured", level="notice"
        )
    elif claims:
        yield from _claimed_sources(subject, claims)


def _claimed_sources(subject: Subject, claims: tuple[str, ...]) -> Iterator[Outcome]:
    """Judge a claim about inputs, whatever these are called and whether anything is projected.

    Nothing is said of keys or values that come from no input.
    """
    every = [
        [subject.graph.origins(operand.sources) & set(subject.inputs) for operand in (key, value)]
        for _, key, value in by_attention(subject)
    ]
    if any(not of_keys.isdisjoint(of_values) for of_keys, of_values in every):
        message = "keys and values come from the same inputs, expected different ones"
        hint = "leave out --claim separate-values"
        evidence = "followed keys and values to the inputs"
        yield Violation("AS108", message, None, hint, evidence, "measured", claims=claims)
    elif every and all(of_keys and of_values for of_keys, of_values in every):
        yield Verification("keys and values come from different inputs", claims)


def _inputs_of(subject: Subject, operand: AttentionOperand) -> set[str]:
    """Return the inputs from which an operand is projected, apart from those that are called keys or values."""
    if projection(subject, operand.sources) is None:
        return set()
    names = subject.graph.origins(operand.sources) & set(subject.inputs)
    return set() if any(_OWN_NAME.search(name.lower()) for name in names) else names


def check_pairs(subject: Subject) -> Iterator[Outcome]:
    """Change one number of the inputs, and look at which key and which value change with it."""
    pairs: list[_Pair] = [(key, value) for _, key, value in by_attention(subject)]
    same: set[OutputRef] = set()
    for names in _inputs_by_shape(subject):
        runs = [_with_one_number(subject, names, places) for places in _PLACES]
        if not all(run.run.follows(subject.base) for run in runs):
            continue
        for key, value in pairs:
            across = next((one for run in runs if (one := _across_batch(subject, key, value, run)) is not None), None)
            if across is not None:
                if _reorder_alike(subject, key, value):
                    yield _batch_violation(subject, key, value, names, across)
                    return
                continue
            found = [(_slots(subject, key, run), _slots(subject, value, run)) for run in runs]
            compared = zip(map(_differing_slots, *zip(*found, strict=True)), runs, strict=True)
            differing = [(slots, run) for slots, run in compared if slots is not None]
            if differing and not _moves_tokens(subject, key, value):
                slots, run = differing[0]
                yield _violation(subject, (key, value), names[0], slots, _own_slots(subject, names[0], run))
                return
            apart = _slot_of_another_token(found)
            if apart is not None and _have_one_input(subject, key, value) and not _moves_tokens(subject, key, value):
                yield _violation_at(subject, (key, value), names[0], apart)
                return
            if all(keys is not None and _are_equal(keys, values) for keys, values in found):
                same.add(key.core.context)
    if pairs and same == {key.core.context for key, _ in pairs}:
        yield Verification("a key and its value come from the same token")


def _inputs_by_shape(subject: Subject) -> list[list[str]]:
    """Return the names of the inputs, those together that may hold the same tokens."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, value in subject.inputs.items():
        if value.numel() and value.ndim > 1:
            groups.setdefault(tuple(value.shape), []).append(name)
    return list(groups.values())


def _with_one_number(subject: Subject, names: Sequence[str], places: tuple[int, int]) -> SimultaneousRun:
    """Return a run with one number of each input changed, at these places along its axes by turns."""
    return subject.perturb_each(Intervention(inputs=dict.fromkeys(names, partial(_change_number, places))))


def _change_number(places: tuple[int, int], value: Tensor) -> Tensor:
    index = tuple((size - 1) * places[axis % 2] // 2 for axis, size in enumerate(value.shape))
    value[index] = other_numbers(value[index].reshape(1))[0]
    return value


def _slots(subject: Subject, operand: AttentionOperand, run: SimultaneousRun) -> Tensor | None:
    """Return at which indices of the axis of keys an operand differs, for each index of its first axis.

    That axis is the batch, often with frames, windows or heads. None if several axes count the keys.
    """
    axis = _axis_of_keys(operand)
    if axis is None:
        return None
    mask = differs(operand.value, operand.of(run.run), subject.experiment.tolerance).movedim(axis, -1)
    return mask.reshape(len(mask) if axis else 1, -1, mask.shape[-1]).any(1)


def _differing_slots(keys: Tensor | None, values: Tensor | None) -> tuple[int, int] | None:
    """Return a slot of the keys and another one of the values, which alone have what was changed; None if they agree.

    A token that several queries see may be several of the keys, such as the first frame and the one before. Keys whose
    scores are padded before they join others are fewer than the values.
    """
    if keys is None or values is None or keys.shape[-1] != values.shape[-1]:
        return None
    if keys.shape != values.shape:
        keys, values = keys.any(0, keepdim=True), values.any(0, keepdim=True)
    single = (keys.sum(-1) == 1) & (values.sum(-1) == 1)
    for of_keys, of_values in zip(keys[single], values[single], strict=True):
        key, value = int(of_keys.long().argmax()), int(of_values.long().argmax())
        if key != value:
            return key, value
    return None


def _have_one_input(subject: Subject, *operands: AttentionOperand) -> bool:
    """Return whether operands are projected from one and the same input.

    Else keys and values may be different features of it, so that no number makes both.
    """
    if any(projection(subject, operand.sources) is None for operand in operands):
        return False
    inputs = [subject.graph.origins(operand.sources) & set(subject.inputs) for operand in operands]
    return len(set().union(*inputs)) == 1 and all(inputs)


def _slot_of_another_token(found: Sequence[tuple[Tensor | None, Tensor | None]]) -> int | None:
    """Return a slot whose value comes from a token of which no key is made, while another token makes only a key."""
    alone: tuple[list[int], list[int]] = [], []
    for keys, values in found:
        if keys is None or values is None or keys.shape != values.shape:
            return None
        if not bool((keys & values).any()):  # else each has more of the token, as behind convolutions
            for slots, mask in zip(alone, (keys, values), strict=True):
                slots += mask.any(0).nonzero().flatten().tolist()
    return min(alone[1]) if all(alone) else None


def _are_equal(keys: Tensor, values: Tensor | None) -> bool:
    """Return whether what was changed is one key and the value of the same slot, at most, in each row."""
    if values is None or keys.shape[-1] != values.shape[-1]:
        return False
    if len(keys) != len(values):
        keys, values = keys.any(0, keepdim=True), values.any(0, keepdim=True)
    return bool(keys.any()) and bool((keys.sum(-1) <= 1).all()) and torch.equal(keys, values)


@dataclass(frozen=True)
class _Across:
    """A number of the inputs that reaches the key of one element of the batch, and the value of another."""

    run: SimultaneousRun
    of_key: int
    of_value: int


def _across_batch(
    subject: Subject, key: AttentionOperand, value: AttentionOperand, run: SimultaneousRun
) -> _Across | None:
    """Return in which elements of the batch a key and a value differ, if these are two different ones."""
    changed = [differs(one.value, one.of(run.run), subject.experiment.tolerance) for one in (key, value)]
    keys, values = (_elements(subject, mask) for mask in changed)
    if len(keys) != 1 or len(values) != 1 or keys == values:
        return None
    return _Across(run, min(keys), min(values))


def _elements(subject: Subject, mask: Tensor) -> set[int]:
    """Return at which indices of the axis of the batch a mask has a true element; none if that axis isn't clear."""
    symbol = subject.batch
    axes = list(element_axes(tuple(mask.shape), symbol, subject.numbers)) if symbol is not None else []
    clear = len(axes) == 1 and symbol is not None and subject.is_distinct(symbol)
    return changed_indices(mask, axes[0][0]) if clear and mask.shape[axes[0][0]] == subject.batch_size else set()


def _reorder_alike(subject: Subject, *operands: AttentionOperand) -> bool:
    """Return whether at most one set of integer arguments chooses elements for keys and for values.

    Keys and values in pools of their own have tables of their own.
    """
    integers = {name for name, value in subject.base.inputs.items() if not value.is_floating_point()}
    chosen = [integers & subject.graph.origins(operand.sources) for operand in operands]
    return not all(chosen) or chosen[0] == chosen[1]


def _axis_of_keys(operand: AttentionOperand) -> int | None:
    """Return the axis of an operand that counts the keys; None if that are several."""
    core = operand.core
    if isinstance(core, FusedCore):
        return operand.value.ndim - 2
    if operand.role == "value":
        axes = core.value.contracted(operand.place)
    else:
        free = core.scores.free(operand.place)
        axes = tuple(axis for axis, stays in enumerate(core.scores.axes[operand.place]) if stays & free)
    return axes[0] if len(axes) == 1 else None


def _moves_tokens(subject: Subject, *operands: AttentionOperand) -> bool:
    """Return whether a call on which keys or values depend sorts tokens, or data chooses or shifts them there."""
    return any(
        event.name in _SORTS
        or (event.name in _MOVES_TOKENS and any(map(subject.graph.carries_data, event.sources[1:])))
        for operand in operands
        for event in subject.graph.upstream(operand.sources)
    )


def _own_slots(subject: Subject, name: str, run: SimultaneousRun) -> set[int]:
    """Return the slots that the number that was changed has in a map, row by row, by which axis has features.

    Of tokens on one axis there is none: others may be joined to them, before or after.
    """
    before, after = subject.base.inputs[name], run.run.inputs[name]
    index = differs(before, after, 0.0).nonzero()[0].tolist()
    slots = set()
    for features in range(1, before.ndim) if before.ndim > 3 else ():
        axes = [axis for axis in range(1, before.ndim) if axis != features]
        slots.add(sum(index[axis] * math.prod(before.shape[later] for later in axes if later > axis) for axis in axes))
    return slots


def _violation(
    subject: Subject, pair: _Pair, name: str, slots: tuple[int, int], own_slots: Collection[int]
) -> Violation:
    at_key, at_value = slots
    of_key, of_value = (list(subject.graph.upstream(operand.sources)) for operand in pair)
    moving = [_moving(of_key, of_value), _moving(of_value, of_key)]
    if at_key in own_slots and at_value not in own_slots:
        moving.reverse()  # the values are moved, and the keys stay where they are
    at = next(iter((*moving[0], *moving[1])), None)
    message = f"keys and values are in different orders: a token of {name} becomes key {at_key}, but value {at_value}"
    hint = "project keys and values from the same tensor, or put both together in the same order"
    return Violation("AS107", message, at or pair[0].core.context, hint, f"changed one number of {name}")


def _violation_at(subject: Subject, pair: _Pair, name: str, slot: int) -> Violation:
    of_key, of_value = (list(subject.graph.upstream(operand.sources)) for operand in pair)
    at = next(iter((*_moving(of_value, of_key), *_moving(of_key, of_value))), None)
    what = f"value {slot} comes from another token of {name} than the key"
    message = f"keys and values are in different orders: {what}"
    hint = "cut and order keys and values in the same way, those that are cached too"
    return Violation("AS107", message, at or pair[0].core.context, hint, f"changed one number of {name} at a time")


def _batch_violation(
    subject: Subject, key: AttentionOperand, value: AttentionOperand, names: Sequence[str], across: _Across
) -> Violation:
    inputs = subject.graph.origins((*key.sources, *value.sources))
    listed = join_words([name for name in names if name in inputs])
    element = _changed_element(subject, names[0], across.run)
    moved = [_first_elsewhere(subject, operand, across.run, element) for operand in (value, key)]
    at = next((call for call in moved if call is not None), key.core.context)
    message = (
        f"keys and values are in different orders: batch element {element} of {listed} becomes element {across.of_key}"
        f" of the keys, but {across.of_value} of the values"
    )
    hint = "put the batch of keys and values into the same order, by the same indices"
    return Violation("AS107", message, at, hint, f"changed one number of {listed}")


def _changed_element(subject: Subject, name: str, run: SimultaneousRun) -> int:
    """Return the element of the batch in which an input was changed."""
    before, after = subject.base.inputs[name], run.run.inputs[name]
    return min(_elements(subject, differs(before, after, 0.0)), default=0)


def _first_elsewhere(
    subject: Subject, operand: AttentionOperand, run: SimultaneousRun, element: int
) -> OutputRef | None:
    """Return the first call from which an operand comes in which another element of the batch differs."""
    calls = sorted(subject.graph.upstream(operand.sources), key=lambda event: event.order)
    for event in calls:
        other = run.run.events[event.order - 1]
        if not event.unread and _elements(subject, differs(event.values[0], other.values[0], 0.0)) - {element}:
            return event.refs[0]
    return None


def _moving(calls: Sequence[ReplayedCall], others: Sequence[ReplayedCall]) -> list[OutputRef]:
    """Return the calls that move numbers and that only one of two operands depends on; first those that join."""
    orders = {event.order for event in others}
    own = [event for event in calls if event.order not in orders and event.name in ops.DATA_MOVEMENT]
    return [event.refs[0] for event in (*(one for one in own if one.name in ops.JOINS), *own)]
