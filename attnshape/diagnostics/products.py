"""Products whose axes disagree: matmul, linear, einsum, tensordot, attention, normalizations and convolutions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnshape.diagnostics.broadcasting import not_broadcast
from attnshape.diagnostics.context import FailedOperand, FailureContext, flat_integers
from attnshape.diagnostics.diagnosis import (
    Diagnosis,
    Fix,
    axis_is,
    call_instead,
    change_operand,
    count_axes,
    has_axes,
    quoted,
    receiver,
    replaced,
    size_of,
    sized,
    swap_axes,
)
from attnshape.model.formatting import pluralize
from attnshape.tracing.operations import FUSED_ATTENTION, NORMS, PRODUCTS_WITH_ADDEND
from attnshape.tracing.raw import RawCall

_FACTORS = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "linear", *FUSED_ATTENTION), (0, 1)),
    "rmatmul": (1, 0),
    **dict.fromkeys(PRODUCTS_WITH_ADDEND, (1, 2)),
}
"""The positions of the two factors among the arguments."""
_KEYWORDS = {0: ("input", "query"), 1: ("other", "mat2", "weight", "key", "mat1", "batch1"), 2: ("mat2", "batch2")}
_CONTRACTS_LAST_AXES = ("linear", *FUSED_ATTENTION)
_EXACT_RANK = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}
_TENSORDOT = re.compile(r"first has size \d+ in dim (-?\d+) and second has size \d+ in dim (-?\d+)")


def contraction(context: FailureContext) -> Diagnosis | None:
    """Explain a product of two factors whose axes disagree."""
    positions = _FACTORS.get(context.operation)
    if positions is None:
        return None
    first, second = (context.operand(position, *_KEYWORDS[position]) for position in positions)
    if first is None or second is None or not first.rank or not second.rank:
        return None
    return (
        _ranks(context, first, second)
        or _contracted_axes(context, first, second)
        or (_keys_and_values(context) if context.operation in FUSED_ATTENTION else None)
        or _batch_axes(context, first, second)
        or (_added(context, first, second) if positions == (1, 2) else None)
    )


def _ranks(context: FailureContext, first: FailedOperand, second: FailedOperand) -> Diagnosis | None:
    wanted = _EXACT_RANK.get(context.operation)
    wrong = [operand for operand in (first, second) if wanted is not None and operand.rank != wanted]
    if not wrong:
        return None
    text = re.sub(r"\b(bmm|mm)(?=\()", "matmul", context.expression, count=1)
    is_called = text != context.expression and context.operation in ("bmm", "mm")
    return Diagnosis(
        f"{context.operation} takes {wanted} axes: {'; '.join(map(has_axes, wrong))}",
        fixes=call_instead(text, torch.matmul) if is_called else (),
    )


def _contracted_axes(context: FailureContext, first: FailedOperand, second: FailedOperand) -> Diagnosis | None:
    one = first.rank - 1
    other = second.rank - 1 if context.operation in _CONTRACTS_LAST_AXES else max(second.rank - 2, 0)
    if first.shape[one] == second.shape[other]:
        return None
    what = f"the axes that {context.operation} contracts differ"
    return _differ(what, first, one, second, other, _transpositions(context, first, second))


def _differ(
    what: str, first: FailedOperand, one: int, second: FailedOperand, other: int, fixes: Iterable[Fix] = ()
) -> Diagnosis:
    disagree = {first.position: (one,), second.position: (other,)}
    return Diagnosis(f"{what}: {axis_is(first, one)}, {axis_is(second, other)}", disagree, fixes)


def _transpositions(context: FailureContext, first: FailedOperand, second: FailedOperand) -> Iterator[Fix]:
    yield from swap_axes(second, -2, -1)
    if context.operation == "linear":
        yield from swap_axes(first, -2, -1, rank=1)
        if first.rank > 3:
            merged = ".transpose(1, 2).flatten(2)"
            yield from change_operand(first, merged, lambda tensor, _: tensor.transpose(1, 2).flatten(2))
            yield from change_operand(first, ".flatten(2)", lambda tensor, _: tensor.flatten(2))
        return
    for start, middle, end in (("", " @ ", ""), ("torch.matmul(", ", ", ")")):
        if context.operation == "matmul" and context.expression == f"{start}{first.text}{middle}{second.text}{end}":
            yield Fix(
                f"{start}{second.text}{middle}{first.text}{end}",
                partial(_exchange, first, second),
                rank=1,
                # weights and values in the wrong order: the result has the axes of the values
                accepts=lambda shape, operands: shape == operands[first.position],
            )
    if second.rank > 1:
        yield from swap_axes(first, -2, -1, rank=2)
    if first.rank == second.rank == 4:
        yield from swap_axes(first, 1, 2, rank=3)
        yield from swap_axes(second, 1, 2, rank=3)


def _exchange(one: FailedOperand, other: FailedOperand, tensors: list[Tensor]) -> list[Tensor]:
    return replaced(replaced(tensors, one, tensors[other.position]), other, tensors[one.position])


def _keys_and_values(context: FailureContext) -> Diagnosis | None:
    """Explain fused attention over different numbers of keys and values."""
    key, value = context.operand(1, "key"), context.operand(2, "value")
    if key is None or value is None or min(key.rank, value.rank) < 2 or key.shape[-2] == value.shape[-2]:
        return None
    what = "there must be as many values as keys"
    return _differ(what, key, key.rank - 2, value, value.rank - 2, swap_axes(value, 1, 2))


def _batch_axes(context: FailureContext, first: FailedOperand, second: FailedOperand) -> Diagnosis | None:
    """Explain batch axes, those before the last two, that are neither equal nor 1."""
    if context.operation == "linear":
        return None
    for back in range(3, min(first.rank, second.rank) + 1):
        one, other = first.rank - back, second.rank - back
        sizes = (first.shape[one], second.shape[other])
        if sizes[0] != sizes[1] and (1 not in sizes or context.operation in _EXACT_RANK):
            return Diagnosis(
                f"the batch axes of {context.operation} differ: "
                f"axis {one} of {quoted(first)} is {size_of(first, one)}, "
                f"axis {other} of {quoted(second)} is {size_of(second, other)}",
                {first.position: (one,), second.position: (other,)},
                _fixes_to_batch_axes(context, first, second, one, other),
            )
    return None


def _fixes_to_batch_axes(
    context: FailureContext, first: FailedOperand, second: FailedOperand, one: int, other: int
) -> Iterator[Fix]:
    """Yield the fixes that repeat key heads for the query heads of their group, or put axes in order."""
    if context.operation in FUSED_ATTENTION:
        if context.expression.endswith(")"):
            text = f"{context.expression[:-1].rstrip(', ')}, enable_gqa=True)"
            yield Fix(text, call=lambda call: replace(call, keywords={**call.keywords, "enable_gqa": True}))
    elif first.rank == second.rank and second.shape[other] and first.shape[one] % second.shape[other] == 0:
        yield from _repeated_heads(first, second, one, other)
    if first.rank == second.rank and first.rank in (3, 4):
        axes = (1, 2) if first.rank == 4 else (0, 1)
        yield from swap_axes(first, *axes)
        yield from swap_axes(second, *axes)


def _repeated_heads(first: FailedOperand, second: FailedOperand, one: int, other: int) -> list[Fix]:
    if first.text is None or second.text is None:
        return []
    times = f"{receiver(first.text)}.shape[{one}] // {receiver(second.text)}.shape[{other}]"

    def repeat(tensor: Tensor, tensors: list[Tensor]) -> Tensor:
        return tensor.repeat_interleave(tensors[first.position].shape[one] // tensor.shape[other], dim=other)

    return change_operand(second, f".repeat_interleave({times}, dim={other})", repeat, rank=1)


def _added(context: FailureContext, first: FailedOperand, second: FailedOperand) -> Diagnosis | None:
    """Explain a tensor that doesn't broadcast to the product that it is added to."""
    added = context.operand(0, "input")
    if added is None:
        return None
    shape, symbols = (*first.shape[:-1], second.shape[-1]), [*first.symbols[:-1], second.symbols[-1]]
    what = f"the product of {quoted(first)} and {quoted(second)}"
    return not_broadcast(added, shape, symbols, what, swap_axes(added, -2, -1))


def tensordot(context: FailureContext) -> Diagnosis | None:
    """Explain a tensordot over axes of different sizes."""
    axes = _TENSORDOT.search(context.message)
    if context.operation != "tensordot" or not axes or len(context.operands) < 2:
        return None
    first, second = context.operands[:2]
    what = "the axes that tensordot contracts differ"
    return _differ(what, first, int(axes[1]) % first.rank, second, int(axes[2]) % second.rank)


# einsum


def einsum(context: FailureContext) -> Diagnosis | None:
    """Explain an einsum in which a letter stands for two sizes, or a term doesn't have as many letters as axes."""
    equation = context.argument(0)
    if context.operation != "einsum" or not isinstance(equation, str):
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(context.operands):
        numbers = f"{pluralize(len(terms), 'term')} for {pluralize(len(context.operands), 'operand')}"
        return Diagnosis(f"the equation has {numbers}")
    pairs = list(zip(terms, context.operands, strict=True))
    for term, operand in pairs:
        if "." not in term and len(term) != operand.rank:
            return Diagnosis(f"the term {term} names {count_axes(len(term))}, and {has_axes(operand)}")
    return _letter_of_two_sizes(equation, pairs)


def _letter_of_two_sizes(equation: str, pairs: list[tuple[str, FailedOperand]]) -> Diagnosis | None:
    firsts: dict[str, tuple[FailedOperand, int]] = {}
    for term, operand in pairs:
        for axis, letter in _letters(term, operand.rank):
            earlier, earlier_axis = firsts.setdefault(letter, (operand, axis))
            if len({earlier.shape[earlier_axis], operand.shape[axis]} - {1}) < 2:
                continue
            marked: dict[int, tuple[int, ...]] = {earlier.position: (earlier_axis,)}
            marked[operand.position] = (*marked.get(operand.position, ()), axis)
            return Diagnosis(
                f"the axes that einsum calls {letter} differ: "
                f"{axis_is(earlier, earlier_axis)}, {axis_is(operand, axis)}",
                marked,
                _with_letters_exchanged(equation, [term for term, _ in pairs]),
            )
    return None


def _letters(term: str, rank: int) -> Iterator[tuple[int, str]]:
    """Yield each letter of a term with the axis that it names."""
    before, dots, after = term.partition("...")
    yield from enumerate(before)
    if dots:
        yield from enumerate(after, rank - len(after))


def _with_letters_exchanged(equation: str, terms: list[str]) -> Iterator[Fix]:
    """Yield the equations with two letters of one term exchanged, the last term first."""
    _, arrow, output = equation.replace(" ", "").partition("->")
    for rank, position in enumerate(reversed(range(len(terms)))):
        term = terms[position]
        for one, other in itertools.combinations(range(len(term) if "." not in term else 0), 2):
            letters = list(term)
            letters[one], letters[other] = term[other], term[one]
            changed = ",".join([*terms[:position], "".join(letters), *terms[position + 1 :]]) + arrow + output
            yield Fix(f"the equation '{changed}'", call=partial(_with_equation, changed), rank=rank)


def _with_equation(equation: str, call: RawCall) -> RawCall:
    return replace(call, args=(equation, *call.args[1:]))


# torch's multi-head attention

_WIDTH = re.compile(r"was expecting embedding dimension of (\d+), but got (\d+)")
_PADDING = re.compile(r"key_padd(?:ed|ing)_mask\.shape\[(\d)\] to be (\d+), but got (\d+)")
_MASK = re.compile(r"The shape of the (\d)D attn_mask is torch\.Size\(\[(.*?)\]\), but should be \((.*?)\)")
_WIDTH_POSITION, _HEADS_POSITION = 3, 4
"""The positions of the width and of the number of heads among the arguments."""


def multihead(context: FailureContext) -> Diagnosis | None:
    """Explain what nn.MultiheadAttention refuses: widths, and masks of other shapes."""
    if context.operation != "multi_head_attention_forward":
        return None
    query, key, value = (context.operand(position, name) for position, name in enumerate(("query", "key", "value")))
    if query is not None and (match := _WIDTH.search(context.message)):
        last, width = query.rank - 1, int(match[1])
        formula = sized(context.formula(lambda call: int(call.args[_WIDTH_POSITION]), width), width)
        problem = f"the attention was built for a width of {formula}: {axis_is(query, last)}"
        return Diagnosis(problem, {query.position: (last,)})
    padding = context.operand(None, "key_padding_mask")
    if padding is not None and (match := _PADDING.search(context.message)):
        axis = int(match[1])
        return Diagnosis(
            f"a key padding mask has a batch axis and a key axis: {axis_is(padding, axis)}, not {match[2]}",
            {padding.position: (axis,)},
            [replace(fix, inner=True) for fix in swap_axes(padding, 0, 1)],
        )
    mask = context.operand(None, "attn_mask")
    if mask is not None and (match := _MASK.search(context.message)):
        return _attention_mask(mask, [int(size) for size in re.findall(r"\d+", match[3])])
    if key is not None and value is not None and "does not match value shape" in context.message:
        differing = _differing_axes(key.shape, value.shape)
        return Diagnosis(
            f"there must be as many values as keys: {has_axes(key)}, {has_axes(value)}",
            {key.position: differing, value.position: differing},
        )
    return None


def _differing_axes(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis, sizes in enumerate(zip(one, other, strict=False)) if len(set(sizes)) > 1)


def _attention_mask(mask: FailedOperand, wanted: list[int]) -> Diagnosis:
    wrong = _differing_axes(mask.shape, tuple(wanted))
    problem = ", ".join(axis_is(mask, axis) for axis in wrong) or has_axes(mask)
    heads = ", with a mask for each head of each sequence" if mask.rank == 3 else ""
    fixes = _mask_for_each_head(mask, wanted) if wrong == (0,) and mask.rank == 3 else ()
    explanation = f"the shape of the mask must be {' '.join(map(str, wanted))}{heads}: {problem}"
    return Diagnosis(explanation, {mask.position: wrong}, fixes)


def _mask_for_each_head(mask: FailedOperand, wanted: list[int]) -> list[Fix]:
    """Return the fix that repeats each sequence's mask for every head."""
    if mask.text is None or not mask.shape[0] or wanted[0] % mask.shape[0]:
        return []
    text = f"{receiver(mask.text)}.repeat_interleave({wanted[0] // mask.shape[0]}, dim=0)"

    def repeat_mask(call: RawCall) -> RawCall:
        def function(*args: Any, attn_mask: Tensor, **keywords: Any) -> Any:
            return call.function(*args, attn_mask=attn_mask.repeat_interleave(args[_HEADS_POSITION], dim=0), **keywords)

        return replace(call, function=function)

    return [Fix(text, call=repeat_mask, inner=True)]


# normalizations and convolutions

_CHANNELS = re.compile(r"to have \d+ channels, but got \d+ channels")


def normalized(context: FailureContext) -> Diagnosis | None:
    """Explain a normalization over another width than the last axes have."""
    operand = context.operand(0, "input")
    if context.operation not in NORMS or operand is None:
        return None
    try:
        widths = flat_integers(context.argument(1, "normalized_shape"))
    except TypeError:
        return None
    if len(widths) > operand.rank:
        return Diagnosis(f"{context.operation} normalizes {count_axes(len(widths))}, and {has_axes(operand)}")
    wrong = [back for back in range(1, len(widths) + 1) if widths[-back] != operand.shape[-back]]
    if not wrong:
        return None

    def width(back: int) -> str:
        return sized(context.formula(lambda call: flat_integers(call.args[1])[-back], widths[-back]), widths[-back])

    parts = ", ".join(f"{width(back)}: {axis_is(operand, operand.rank - back)}" for back in wrong)
    return Diagnosis(
        f"{context.operation} normalizes a width of {parts}",
        {operand.position: tuple(operand.rank - back for back in wrong[::-1])},
        swap_axes(operand, 1, 2) if operand.rank == 3 else (),
    )


def channels(context: FailureContext) -> Diagnosis | None:
    """Explain a convolution over another number of channels than the input has."""
    operand, weight = context.operand(0, "input"), context.operand(1, "weight")
    if not _CHANNELS.search(context.message) or operand is None or weight is None or operand.rank < 2:
        return None
    axis = 1 if operand.rank == weight.rank else 0
    return Diagnosis(
        f"{context.operation} takes {sized(weight.record.axes[1].expression, weight.shape[1])} channels: "
        f"axis {axis} of {quoted(operand)} is {size_of(operand, axis)}",
        {operand.position: (axis,), weight.position: (1,)},
        swap_axes(operand, 1, 2) if operand.rank == 3 else (),
    )
