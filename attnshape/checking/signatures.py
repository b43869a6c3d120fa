"""One signature against one shape and dtype, by jaxtyping, with the size symbols bound first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import AnnotationError, Bool, Complex, Float, Int, Shaped, UInt, jaxtyped
from torch import Tensor

_KINDS: dict[str, Any] = {"float": Float, "bfloat": Float, "complex": Complex, "int": Int, "uint": UInt, "bool": Bool}


@contextmanager
def bound(numbers: Mapping[str, int]) -> Iterator[None]:
    """Bind each size symbol to its number for the signatures that are checked inside."""
    with jaxtyped("context"):
        for letter, size in numbers.items():
            holds(letter, (size,), "float32")
        yield


def holds(signature: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Say whether a tensor of this shape and dtype has the signature.

    The tensor is a stand-in of one element with strides of zero; jaxtyping looks at no more than shape and dtype. A
    signature that jaxtyping can't read doesn't hold.
    """
    try:
        stand_in = torch.empty((1,) * len(shape), dtype=getattr(torch, dtype)).expand(shape)
        return isinstance(stand_in, kind_of(dtype)[Tensor, signature])
    except (AnnotationError, NameError, SyntaxError, ValueError, RuntimeError, ZeroDivisionError):
        return False


def checks_work() -> bool:
    """Say whether jaxtyping notices a wrong signature; it doesn't where JAXTYPING_DISABLE is set."""
    return holds("2 3", (2, 3), "float32") and not holds("2 3", (2, 4), "float32")


def kind_of(dtype: str) -> Any:
    """Return jaxtyping's type for a dtype: `Float` for `float32`."""
    return _KINDS.get(dtype.rstrip("0123456789_efmnuz"), _KINDS.get(dtype.rstrip("0123456789"), Shaped))
