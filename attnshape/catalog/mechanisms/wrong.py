"""A wrong signature, on purpose: if running it goes unnoticed, nothing in the catalog counts as checked."""

import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from torch import Tensor


class NoticedError(Exception):
    """The wrong signature was checked, and rejected."""


class _Strict(type):
    """Raises where jaxtyping rejects a tensor: beartype takes 5 ms to word its own complaint for the first time."""

    def __instancecheck__(cls, instance: object) -> bool:
        # beartype tries None when it first meets a class. To mypy, jaxtyping's types are Annotated ones.
        if instance is not None and not isinstance(instance, Float[Tensor, "L"]):  # type: ignore[arg-type]
            raise NoticedError
        return True


class Vector(metaclass=_Strict):
    """A tensor of signature L."""


@jaxtyped(typechecker=beartype)
def signature() -> None:
    """Give L two sizes: only the import hook together with jaxtyping's context can notice."""
    # mypy doesn't ask a metaclass who its instances are.
    two: Vector = torch.empty(2)  # type: ignore[assignment]
    three: Vector = torch.empty(3)  # type: ignore[assignment]
    del two, three
