"""A case: a function of sizes that returns a callable and its arguments.

Trace it:

    attnshape trace examples/case.py:padded
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the context and the weights; keys where `mask` is False get no weight."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    masked = scores.masked_fill(~mask, -math.inf)
    weights = masked.softmax(dim=-1)
    context = weights @ value
    return context, weights


def padded(
    B: int, H: int, Lq: int, Lk: int, Dk: int, Dv: int
) -> tuple[Callable[..., tuple[Tensor, Tensor]], tuple[Tensor, ...], dict[str, Tensor]]:
    """Set up a batch whose sequences differ in length, padded to Lk keys."""
    query = torch.randn(B, H, Lq, Dk)
    key = torch.randn(B, H, Lk, Dk)
    value = torch.randn(B, H, Lk, Dv)
    lengths = Lk - torch.arange(B) % Lk
    real = torch.arange(Lk) < lengths[:, None]
    mask = real[:, None, None, :]
    return attend, (query, key, value), {"mask": mask}


if __name__ == "__main__":
    function, args, kwargs = padded(B=2, H=8, Lq=10, Lk=16, Dk=64, Dv=96)
    context, weights = function(*args, **kwargs)
    print(tuple(context.shape), tuple(weights.shape))
