"""One signature against one shape and dtype, by jaxtyping, with the size symbols bound first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jaxtyping
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


def holds(signature: str, shape: tuple[int, ...], dtype: str, kind: str | None = None) -> bool:
    """Say whether a tensor of this shape and dtype has the signature, and the kind, `Float` or `Bool`, where given.

    The tensor is a stand-in of one element with strides of zero; jaxtyping looks at no more than shape and dtype. A
    signature that jaxtyping can't read doesn't hold.
    """
    try:
        stand_in = torch.empty((1,) * len(shape), dtype=getattr(torch, dtype)).expand(shape)
        return isinstance(stand_in, _kind_named(kind, dtype)[Tensor, signature])
    except (AnnotationError, NameError, SyntaxError, ValueError, RuntimeError, ZeroDivisionError):
        return False


def checks_work() -> bool:
    """Say whether jaxtyping notices a wrong signature, and wasn't disabled by JAXTYPING_DISABLE."""
    if jaxtyping.config.jaxtyping_disable:
        return False
    with bound({"n": 2}):
        return holds("n 3", (2, 3), "float32") and not holds("n 3", (3, 3), "float32")


def _kind_named(kind: str | None, dtype: str) -> Any:
    """Return the jaxtyping type of that name; the dtype's own where there is no such type."""
    named = getattr(jaxtyping, kind, None) if kind is not None else None
    return named if hasattr(named, "dtypes") else kind_of(dtype)


def kind_of(dtype: str) -> Any:
    """Return jaxtyping's type for a dtype: `Float` for `float32`."""
    family = re.match("[a-z]*", dtype)
    return _KINDS.get(family[0] if family else "", Shaped)
