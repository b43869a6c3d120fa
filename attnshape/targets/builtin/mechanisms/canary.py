"""A wrong signature on purpose: if it goes unnoticed, nothing in the catalog counts as checked."""

import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor


class NoticedError(Exception):
    """The wrong signature was rejected."""


class _Strict(type):
    """Raises where jaxtyping rejects a tensor: beartype needs 5 ms to phrase its first error of its own."""

    def __instancecheck__(cls, instance: object) -> bool:
        # beartype tries None when it first meets a class; mypy takes jaxtyping's types for Annotated ones
        if instance is not None and not isinstance(instance, Float[Tensor, "L"]):  # type: ignore[arg-type]
            raise NoticedError
        return True


class Vector(metaclass=_Strict):
    """A tensor with the signature L."""


@jaxtyped(typechecker=beartype)
def bind_two_sizes() -> None:
    """Give L two sizes: only the import hook together with jaxtyping's context notices."""
    # mypy doesn't know the metaclass's instance check
    two: Vector = torch.empty(2)  # type: ignore[assignment]
    three: Vector = torch.empty(3)  # type: ignore[assignment]
    del two, three


def annotations_are_checked() -> bool:
    """Return whether the wrong signature is noticed: not under `python -O` or `JAXTYPING_DISABLE`."""
    try:
        bind_two_sizes()
    except NoticedError:
        return True
    return False
