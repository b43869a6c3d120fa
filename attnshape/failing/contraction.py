"""Products whose contracted axes, or whose batch axes, differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnshape.failing.broadcasting import not_broadcast
from attnshape.failing.finding import Candidate, Finding, on_call, on_operand, receiver, transposed
from attnshape.failing.scene import Party, Scene
from attnshape.failing.words import axes, axis_of, quoted, size

_PLACES = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "linear", "scaled_dot_product_attention"), (0, 1)),
    "rmatmul": (1, 0),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), (1, 2)),
}
"""Where the two factors stand among the arguments."""
_KEYWORDS = {0: ("input", "query"), 1: ("other", "mat2", "weight", "key", "mat1", "batch1"), 2: ("mat2", "batch2")}
_LAST_AXIS = ("linear", "scaled_dot_product_attention")
"""What contracts the last axes of both factors."""
_EXACT_RANK = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}
_TENSORDOT = re.compile(r"first has size \d+ in dim (-?\d+) and second has size \d+ in dim (-?\d+)")
_FUSED = "scaled_dot_product_attention"


def contraction(scene: Scene) -> Finding | None:
    """Explain a product whose factors' axes differ."""
    places = _PLACES.get(scene.operation)
    if places is None:
        return None
    first, second = (scene.operand(place, *_KEYWORDS[place]) for place in places)
    if first is None or second is None or not first.rank or not second.rank:
        return None
    return (
        _ranks(scene, first, second)
        or _contracted(scene, first, second)
        or (_lengths(scene) if scene.operation == _FUSED else None)
        or _batches(scene, first, second)
        or (_added(scene, first, second) if places == (1, 2) else None)
    )


def _ranks(scene: Scene, first: Party, second: Party) -> Finding | None:
    wanted = _EXACT_RANK.get(scene.operation)
    wrong = [party for party in (first, second) if wanted is not None and party.rank != wanted]
    if not wrong:
        return None
    has = "; ".join(f"{quoted(party)} has {axes(party)}" for party in wrong)
    text = re.sub(r"\b(bmm|mm)(?=\()", "matmul", scene.expression, count=1)
    general = on_call(text, torch.matmul) if text != scene.expression and scene.operation in ("bmm", "mm") else []
    return Finding(f"{scene.operation} takes {wanted} axes: {has}", {}, tuple(general))


def _contracted(scene: Scene, first: Party, second: Party) -> Finding | None:
    one = first.rank - 1
    other = second.rank - 1 if scene.operation in _LAST_AXIS else max(second.rank - 2, 0)
    if first.shape[one] == second.shape[other]:
        return None
    return Finding(
        f"the axes that {scene.operation} contracts differ: {axis_of(first, one)}, {axis_of(second, other)}",
        {first.place: (one,), second.place: (other,)},
        tuple(_transposals(scene, first, second)),
    )


def _transposals(scene: Scene, first: Party, second: Party) -> Iterator[Candidate]:
    if scene.operation == "linear":
        yield from transposed(second, -2, -1)
        yield from transposed(first, -2, -1, rank=1)
        if first.rank > 3:
            yield from on_operand(first, ".transpose(1, 2).flatten(2)", lambda one, _: one.transpose(1, 2).flatten(2))
            yield from on_operand(first, ".flatten(2)", lambda one, _: one.flatten(2))
        return
    yield from transposed(second, -2, -1)
    if first.text and second.text and scene.operation == "matmul":
        text = _exchanged(scene.expression, first.text, second.text)
        if text is not None:
            yield Candidate(
                text,
                lambda tensors: _swapped(tensors, first.place, second.place),
                rank=1,
                # weights and values the wrong way round: what comes out has the values' axes
                accepts=lambda shape, operands: shape == operands[first.place],
            )
    if second.rank > 1:
        yield from transposed(first, -2, -1, rank=2)
    if first.rank == second.rank == 4:
        yield from transposed(first, 1, 2, rank=3)
        yield from transposed(second, 1, 2, rank=3)


def _swapped(values: list[Tensor], one: int, other: int) -> list[Tensor]:
    mended = list(values)
    mended[one], mended[other] = values[other], values[one]
    return mended


def _exchanged(expression: str, first: str, second: str) -> str | None:
    """Return `b @ a` of `a @ b`, and `torch.matmul(b, a)` of `torch.matmul(a, b)`; None of anything else."""
    for start, middle, end in (("", " @ ", ""), ("torch.matmul(", ", ", ")")):
        if expression == f"{start}{first}{middle}{second}{end}":
            return f"{start}{second}{middle}{first}{end}"
    return None


def _lengths(scene: Scene) -> Finding | None:
    """In fused attention: keys and values must be as many."""
    key, value = scene.operand(1, "key"), scene.operand(2, "value")
    if key is None or value is None or min(key.rank, value.rank) < 2 or key.shape[-2] == value.shape[-2]:
        return None
    one, other = key.rank - 2, value.rank - 2
    return Finding(
        f"there must be as many values as keys: {axis_of(key, one)}, {axis_of(value, other)}",
        {key.place: (one,), value.place: (other,)},
        tuple(transposed(value, 1, 2)),
    )


def _batches(scene: Scene, first: Party, second: Party) -> Finding | None:
    """The axes before the last two must be alike, or 1."""
    if scene.operation == "linear":
        return None
    for back in range(3, min(first.rank, second.rank) + 1):
        one, other = first.rank - back, second.rank - back
        sizes = (first.shape[one], second.shape[other])
        if sizes[0] != sizes[1] and (1 not in sizes or scene.operation in _EXACT_RANK):
            return Finding(
                f"the batch axes of {scene.operation} differ: "
                f"axis {one} of {quoted(first)} is {size(first, one)}, axis {other} of {quoted(second)} is "
                f"{size(second, other)}",
                {first.place: (one,), second.place: (other,)},
                tuple(_alike(scene, first, second, one, other)),
            )
    return None


def _added(scene: Scene, first: Party, second: Party) -> Finding | None:
    """What is added to the product must broadcast to it."""
    added = scene.operand(0, "input")
    if added is None:
        return None
    product = (*first.shape[:-1], second.shape[-1])
    names = [axis.expression for axis in (*first.record.axes[:-1], second.record.axes[-1])]
    return not_broadcast(
        added, product, names, f"the product of {quoted(first)} and {quoted(second)}", transposed(added, -2, -1)
    )


def tensordot(scene: Scene) -> Finding | None:
    """Explain a tensordot over axes of different sizes."""
    found = _TENSORDOT.search(scene.message)
    if scene.operation != "tensordot" or not found or len(scene.parties) < 2:
        return None
    first, second = scene.parties[:2]
    one, other = int(found[1]) % first.rank, int(found[2]) % second.rank
    return Finding(
        f"the axes that tensordot contracts differ: {axis_of(first, one)}, {axis_of(second, other)}",
        {first.place: (one,), second.place: (other,)},
    )


def _alike(scene: Scene, first: Party, second: Party, one: int, other: int) -> Iterator[Candidate]:
    """Yield what makes the batch axes alike: key heads repeated for each of their group, axes put in order."""
    if scene.operation == _FUSED:
        text = _with_keyword(scene.expression, "enable_gqa=True")
        if text is not None:
            yield Candidate(
                text, call=lambda call: replace(call, keywords={**call.keywords, "enable_gqa": True}), rank=0
            )
    elif first.rank == second.rank and second.shape[other] and first.shape[one] % second.shape[other] == 0:
        yield from _repeated(first, second, one, other)
    if first.rank == second.rank == 4:
        yield from transposed(first, 1, 2)
        yield from transposed(second, 1, 2)
    if first.rank == second.rank == 3:
        yield from transposed(first, 0, 1)
        yield from transposed(second, 0, 1)


def _repeated(first: Party, second: Party, one: int, other: int) -> list[Candidate]:
    """Return the candidate that repeats each of the second's heads for the group of the first's that shares it."""
    if first.text is None or second.text is None:
        return []
    times = f"{receiver(first.text)}.shape[{one}] // {receiver(second.text)}.shape[{other}]"
    return on_operand(
        second,
        f".repeat_interleave({times}, dim={other})",
        lambda tensor, tensors: tensor.repeat_interleave(
            tensors[first.place].shape[one] // tensor.shape[other], dim=other
        ),
        rank=1,
    )


def _with_keyword(expression: str, keyword: str) -> str | None:
    return f"{expression[:-1].rstrip(', ')}, {keyword})" if expression.endswith(")") else None
