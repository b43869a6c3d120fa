r"""A plain function: scaled dot-product attention of given queries, keys and values.

Trace it:

    attnshape trace examples/own_function.py:attention \
        --input "query: B H Lq Dk" --input "key: B H Lk Dk" --input "value: B H Lk Dv"
"""

import math

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the context and the attention weights."""
    Dk = query.shape[-1]
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(Dk)
    weights = torch.softmax(scores, dim=-1)
    context = torch.matmul(weights, value)
    return context, weights


if __name__ == "__main__":
    query, key, value = torch.randn(2, 8, 10, 64), torch.randn(2, 8, 16, 64), torch.randn(2, 8, 16, 96)
    context, weights = attention(query, key, value)
    print(tuple(context.shape), tuple(weights.shape))
