"""Reads from an error of torch which width or length the code has that isn't among the sizes of the constructor."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from attnshape.errors import exception_text

_MISMATCHES = (
    re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)"),
    re.compile(r"normalized_shape=\[(?P<wanted>\d+)\].* got input of size\[(\d+, )*(?P<got>\d+)\]"),
    re.compile(r"to have (?P<wanted>\d+) channels, but got (?P<got>\d+) channels"),
)
_RESHAPE = re.compile(r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input")


def with_width_of_layer(
    tensors: Mapping[str, str], error: BaseException, sizes: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Yield descriptions with the number that the failing layer wants in the place of the width: in all, then in one.

    Such a layer is as wide as a constant of its module, `nn.Linear(n_embd, head_size)`, or as an image has channels.
    Nothing where the failure is of another kind, as where an operand has the length of another.

    Args:
        tensors: The descriptions of a call that failed.
        error: Why it failed.
        sizes: The numbers that the symbols had.

    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (20x32 and 384x8)")
    >>> list(with_width_of_layer({"x": "B L D", "mask": "L L"}, error, {"D": 32}))
    [{'x': 'B L 384', 'mask': 'L L'}]
    >>> list(with_width_of_layer({"x": "B L D"}, error, {"D": 32, "L": 384}))
    []
    """
    found = next(filter(None, (pattern.search(exception_text(error)) for pattern in _MISMATCHES)), None)
    if found is None or int(found["got"]) != sizes["D"] or int(found["wanted"]) in sizes.values():
        return
    changed = {name: re.sub(r"\bD\b", found["wanted"], text) for name, text in tensors.items()}
    if changed == tensors:
        return
    yield changed
    one_by_one = [{**tensors, name: text} for name, text in changed.items() if text != tensors[name]]
    yield from one_by_one if len(one_by_one) > 1 else ()


def with_length_of_code(
    tensors: Mapping[str, str], error: BaseException, literals: Collection[int]
) -> Iterator[dict[str, str]]:
    """Yield descriptions with a literal of the code to which a reshape fails in the place of the length.

    >>> error = RuntimeError("shape '[-1, 50, 4, 8]' is invalid for input of size 1920")
    >>> list(with_length_of_code({"q": "B Lq D", "k": "B Lk D"}, error, {50}))
    [{'q': 'B 50 D', 'k': 'B 50 D'}]
    """
    found = _RESHAPE.search(exception_text(error))
    numbers = [int(number) for number in found["shape"].split(",")] if found is not None else []
    own = [number for number in numbers if number > 1 and number in literals]
    changed = {name: re.sub(r"\bL[qk]?\b", str(own[0]), text) for name, text in tensors.items()} if own else {}
    if changed and changed != tensors:
        yield changed
