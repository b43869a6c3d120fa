"""jaxtyping annotations describe the inputs, so `--input` is not needed.

Trace it:

    attnshape trace examples/annotated.py:masked_attention
"""

import math

import torch
from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor


@jaxtyped(typechecker=beartype)
def masked_attention(
    query: Float[Tensor, "B H Lq Dk"],
    key: Float[Tensor, "B H Lk Dk"],
    value: Float[Tensor, "B H Lk Dv"],
    mask: Bool[Tensor, "Lq Lk"],
) -> Float[Tensor, "B H Lq Dv"]:
    """Return the context; query i attends to key j only if `mask[i, j]`."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    masked = scores.masked_fill(~mask, -math.inf)
    weights = masked.softmax(dim=-1)
    return weights @ value


if __name__ == "__main__":
    query, key, value = torch.randn(2, 8, 10, 64), torch.randn(2, 8, 16, 64), torch.randn(2, 8, 16, 96)
    mask = torch.ones(10, 16, dtype=torch.bool).tril()
    print(tuple(masked_attention(query, key, value, mask).shape))
