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
_PRODUCT = re.compile(r"batch2 tensor to be: \[\d+, (?P<got>\d+)\] but got: \[\d+, (?P<wanted>\d+)\]")
"""The mismatch of two operands, of which either may have any length."""
_MOST_TIMES = 4
_RESHAPE = re.compile(r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input")


def with_width_of_layer(
    tensors: Mapping[str, str], error: BaseException, sizes: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Yield descriptions with the number that the failing layer wants in the place of the width: in all, then in one.

    Such a layer is as wide as a constant of its module, `nn.Linear(n_embd, head_size)`, or as an image has channels, or
    a few times as wide as others. Nothing where the failure is of another kind, as where an operand has the length of
    another.

    Args:
        tensors: The descriptions of a call that failed.
        error: Why it failed.
        sizes: The numbers that the symbols had.

    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (20x32 and 384x8)")
    >>> list(with_width_of_layer({"x": "B L D", "mask": "L L"}, error, {"D": 32}))
    [{'x': 'B L 384', 'mask': 'L L'}]
    >>> list(with_width_of_layer({"x": "B L D"}, error, {"D": 32, "L": 384}))
    []
    >>> error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (20x32 and 64x8)")
    >>> list(with_width_of_layer({"x": "B L D"}, error, {"D": 32}))
    [{'x': 'B L 2*D'}, {'x': 'B L 64'}]
    """
    text = exception_text(error)
    of_layer = next(filter(None, (pattern.search(text) for pattern in _MISMATCHES)), None)
    found = of_layer or _PRODUCT.search(text)
    if found is None or int(found["got"]) != sizes["D"] or int(found["wanted"]) in sizes.values():
        return
    times, rest = divmod(int(found["wanted"]), sizes["D"])
    widths = [f"{times}*D"] if rest == 0 and 1 < times <= _MOST_TIMES else []
    for width in [*widths, *([found["wanted"]] if of_layer is not None else [])]:
        changed = {name: re.sub(r"\bD\b", width, text) for name, text in tensors.items()}
        one_by_one = [{**tensors, name: text} for name, text in changed.items() if text != tensors[name]]
        yield from [changed, *one_by_one] if len(one_by_one) > 1 else one_by_one


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
