"""Finds arguments that are added to all keys of a query alike, so that the softmax cancels them.

A number that is the same for every key of a query can't change its weights. Where there are as many queries as keys,
such an argument was meant for the keys, unless it also reaches the scores elsewhere: what is added to the queries only,
as a mask of the target's own padding, may be there for symmetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from attnshape.checks.attention.cores import Core, FusedCore, between
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import is_pattern
from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import Producer, ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_ADDS = ops.ADDITIONS | ops.SUBTRACTIONS | ops.REVERSED_SUBTRACTIONS


def judge_cancelled(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for each argument that nothing is claimed about and that the softmax cancels."""
    judged: set[str] = set()
    for core in subject.attentions:
        for name, shape in cancelled_arguments(subject, core).items():
            if name in judged:
                continue
            judged.add(name)
            is_mask = is_pattern(subject.base.inputs[name])
            kind, code = ("mask", "AS402") if is_mask else ("bias", "AS707")
            effect = "and no key is hidden" if is_mask else "and no weight changes"
            message = f"{name} is added to all keys of a query alike: the softmax cancels it, {effect}"
            hint = f"put the axis of the keys last: {kind}[:, None, None, :]"
            evidence = "compared what is added to the scores of each query along the axis over which the softmax runs"
            at = MaskLines(subject, core).first_wrong(name, partial(_is_right, shape))
            yield Violation(code, message, at, hint, evidence)


def _is_right(shape: tuple[int, ...], value: Tensor) -> bool:
    return not _is_alike(value, shape)


def cancelled_arguments(subject: Subject, core: Core | FusedCore) -> dict[str, tuple[int, ...]]:
    """Return the arguments that reach the softmax only by numbers that are the same for all keys of a query.

    Each comes with the shape of the scores to which it is added.
    """
    alike: dict[str, tuple[int, ...]] = {}
    others: set[str] = set()
    for sources, value, shape in _terms(subject, core):
        names = subject.graph.origins(sources)
        if shape is not None and _is_alike(value, shape):
            alike |= dict.fromkeys(names, shape)
        else:
            others |= names
    unclaimed = subject.base.inputs.keys() - subject.claims.arguments.keys() - others
    return {name: shape for name, shape in alike.items() if name in unclaimed}


def _terms(
    subject: Subject, core: Core | FusedCore
) -> Iterator[tuple[tuple[Producer, ...], Tensor, tuple[int, ...] | None]]:
    """Yield what reaches a softmax beside the scores' own calls, with the shape of the scores where it is added.

    That shape has the keys last; it is None for what isn't added, or if there are more keys than queries.
    """
    if isinstance(core, FusedCore):
        query, key = core.tensor("query"), core.tensor("key")
        shape = (*query.shape[:-1], key.shape[-2]) if query.shape[-2] == key.shape[-2] else None
        for place, (value, sources) in enumerate(zip(core.event.operand_values, core.event.sources, strict=True)):
            is_added = place == core.place("attn_mask") and value.is_floating_point()
            yield sources, value, shape if is_added else None
        return
    own = {core.scores.ref}
    for place in core.scores.places:
        yield core.scores.sources(place), core.scores.operand(place), None
    if core.scores.last.name in ops.PRODUCTS_WITH_ADDEND:
        yield core.scores.first.sources[0], core.scores.first.operand_values[0], _shape_of_sum(core, core.scores.last)
    for event in between(subject.graph, core.scores.ref, core.softmax.sources):
        shape = _shape_of_sum(core, event)
        for value, sources in zip(event.operand_values, event.sources, strict=True):
            if own.isdisjoint(sources):
                yield sources, value, shape
        own.update(event.refs)


def _shape_of_sum(core: Core, event: ReplayedCall) -> tuple[int, ...] | None:
    shape = tuple(event.values[0].shape)
    if (
        event.name not in _ADDS | ops.PRODUCTS_WITH_ADDEND
        or shape != core.softmax.scores.shape
        or core.softmax.axes != {len(shape) - 1}
    ):
        return None
    return shape if len(shape) > 1 and shape[-1] == shape[-2] else None


def _is_alike(value: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether added numbers are the same for all keys of a query, yet not for all queries."""
    if value.ndim > len(shape) or shape[-1] == 1 or not value.is_floating_point():
        return False
    if any(size not in (1, whole) for size, whole in zip(value.shape[::-1], shape[::-1], strict=False)):
        return False
    laid_out = value.expand(shape)
    return bool((laid_out == laid_out[..., :1]).all()) and not bool((laid_out == laid_out[..., :1, :]).all())
