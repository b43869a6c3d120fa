"""Proposes other inputs where those that their names suggest fail: one argument at a time of the nearest attempt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence

from attnshape.proposals import conventions
from attnshape.proposals.inputs import Inputs

_SHAPES = (
    "B L D",
    "L D",
    "B D",
    "B L",
    "H Dk",
    "H D",
    "L H Dk",
    "L H",
    "H",
    "D",
    "B L H",
    "B L H Dk",
    "B H L Dk",
    "L Dk",
    "B 1 D",
    "1 L D",
    "2*L 1 D",
    "L L",
    "H L L",
    "B L L",
    "B H L L",
    "B L L D",
    "int[V] B L",
)
"""What a tensor beside the queries and the keys may be, the likeliest first."""
_SHAPES_OF_INDICES = ("B L", "L", "L L", "B L L", "B", "B 1")
_SHAPES_BESIDE_MAPS = ("B 1 height width",)
_MASKS = ("B, L", "B, 1, L, L", "B, L, L", "B, 1, 1, L", "B, H, L, L", "L, L")
_KINDS_OF_MASKS = ("torch.ones({})", "torch.ones({}).bool()", "torch.zeros({}).bool()")


def alternatives(
    inputs: Inputs, fixed: Collection[str], masks: Collection[str] = (), failing: str = ""
) -> Iterator[list[Inputs]]:
    """Yield, for one argument of a call after another, what it may be instead: another tensor, or a mask where none is.

    What is `fixed` stays, and so do queries, keys, values, and the first tensor, by which the others are described.
    `masks` are optional parameters that may be needed. The arguments in the `failing` line come first.

    >>> described = Inputs({"x": "B L D", "shift": "B L D"}, {"mask": "None"})
    >>> of_shift, of_mask = alternatives(described, ())
    >>> [one.tensors["shift"] for one in of_shift][:3], of_mask[0].expressions["mask"]
    (['L D', 'B D', 'B L'], 'torch.ones(B, L)')
    """
    lengths = sorted(set(re.findall(r"\bL[qk]?\b", " ".join(inputs.tensors.values()))))
    has_map = any("height width" in text for text in inputs.tensors.values())
    of_tensors = [name for name in list(inputs.tensors)[1:] if not conventions.is_query(name)]
    of_tensors = [name for name in of_tensors if not conventions.is_memory(name) or _is_alone(name, inputs)]
    of_masks = [*filter(conventions.is_mask, inputs.expressions), *masks]
    changed = [name for name in dict.fromkeys([*of_tensors, *of_masks]) if name not in fixed]
    yield from ([_transposed(inputs, name)] for name in _transposable(inputs, fixed, failing))
    for name in sorted(changed, key=lambda name: name not in failing):
        if name in inputs.tensors:
            kind = re.match(r"int\[\w+\] ", inputs.tensors[name])
            if kind is not None:
                possible = [f"{kind[0]}{shape}" for shape in _of_lengths(_SHAPES_OF_INDICES, lengths)]
            else:
                possible = [*_of_lengths(_SHAPES, lengths), *(_SHAPES_BESIDE_MAPS if has_map else ())]
            shapes = [shape for shape in possible if shape != inputs.tensors[name]]
            yield [Inputs({**inputs.tensors, name: shape}, inputs.expressions) for shape in shapes]
        else:
            pairs = itertools.product(_of_lengths(_MASKS, lengths), _KINDS_OF_MASKS)
            values = [kind.format(shape) for shape, kind in pairs]
            yield [Inputs(inputs.tensors, {**inputs.expressions, name: value}) for value in values]


def _transposable(inputs: Inputs, fixed: Collection[str], failing: str) -> list[str]:
    """Return the keys that a failing line multiplies as they are, `q @ k`: they may come transposed.

    >>> described = Inputs({"q": "B L D", "k": "B L D"})
    >>> _transposable(described, (), "s = q @ k"), _transposable(described, (), "s = q @ k.mT")
    (['k'], [])
    """
    names = [name for name in inputs.tensors if name not in fixed and conventions.is_key(name)]
    patterns = (r"@ *{}\b(?!\.)", r"(?:matmul|bmm)\([^,()]+, *{}\)")
    return [name for name in names if any(re.search(one.format(re.escape(name)), failing) for one in patterns)]


def _transposed(inputs: Inputs, name: str) -> Inputs:
    """Return the arguments with the last two axes of one exchanged."""
    *first, last_but_one, last = inputs.tensors[name].split()
    return Inputs({**inputs.tensors, name: " ".join([*first, last, last_but_one])}, inputs.expressions)


def _is_alone(name: str, inputs: Inputs) -> bool:
    """Return whether what may be values isn't beside keys: `u, v` are two biases."""
    return conventions.is_value(name) and not any(conventions.is_key(other) for other in inputs.tensors)


def _of_lengths(shapes: Sequence[str], lengths: Sequence[str]) -> list[str]:
    """Return shapes with the lengths that the other tensors have.

    >>> _of_lengths(["B L", "L L"], ["Lk", "Lq"])
    ['B Lk', 'B Lq', 'Lq Lk']
    """
    if "Lk" not in lengths:
        return list(shapes)
    squares = [re.sub(r"\bL(,?) L\b", r"Lq\1 Lk", shape) for shape in shapes]
    return list(dict.fromkeys(re.sub(r"\bL\b", length, shape) for shape in squares for length in ("Lk", "Lq")))
