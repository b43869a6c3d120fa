"""Floating-point operations outside products of matrices, counted from a table of what operators do to an element.

The table has only the operators of the catalog and the examples; any other is an error, so that none counts as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnshape.targets.target import Target
from tests.cost.independent import Independent, run_target

ONE_FOR_EACH_RESULT = frozenset({
    *("abs", "add", "add_", "clamp", "clamp_min", "cos", "div", "elu", "exp", "log", "mul", "neg", "pow", "relu"),
    *("rsqrt", "sigmoid", "sin", "sub", "tanh"),
})  # fmt: skip
ONE_FOR_EACH_THAT_IS_READ = frozenset({"sum", "cumsum"})
PRODUCTS = frozenset({"mm", "bmm", "addmm"})
"""`Independent` counts these; a bias that torch adds in the same operation doesn't count."""
NONE = frozenset({
    # views and copies
    *("_to_copy", "_unsafe_view", "cat", "clone", "detach", "expand", "permute", "repeat", "roll", "select", "slice"),
    *("split", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view"),
    # those that make or choose numbers
    *("arange", "embedding", "index", "masked_fill", "new_zeros", "ones", "scatter", "topk", "tril", "triu", "where"),
    "zeros_like",
    # comparisons and logic
    *("bitwise_and", "bitwise_not", "eq", "ge", "gt", "lt"),
})  # fmt: skip


class Elementwise(Independent):
    """Counts the operations on elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elementwise = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.elementwise += _operations(func.overloadpacket.__name__, args, kwargs or {}, result)
        return result


def measure_elementwise(target: Target, numbers: Mapping[str, int]) -> int:
    """Run a target once at these sizes, with gradients, and return its operations outside products of matrices."""
    counting = Elementwise()
    run_target(target, numbers, running=counting)
    return counting.elementwise


def _operations(name: str, args: Any, kwargs: Any, result: Any) -> int:
    made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
    if name in NONE | PRODUCTS or not any(one.is_floating_point() for one in made):
        return 0
    results = made[0].numel()
    if name in ONE_FOR_EACH_RESULT:
        assert kwargs.get("alpha", 1) == 1
        return results
    read = args[0].numel()
    if name in ONE_FOR_EACH_THAT_IS_READ:
        return int(read)
    match name:
        case "mean":  # add all, divide once
            return int(read + results)
        case "linalg_vector_norm":  # square, add; a root of each sum
            return int(2 * read + results)
        case "_softmax":  # maximum, subtract, exponentiate, add, divide
            return int(5 * read)
        case "native_layer_norm":
            # add for the mean, subtract it, square, add, multiply by the inverse of the deviation; weight and bias
            _, width, weight, bias, _ = args
            each = 5 + (weight is not None) + (bias is not None)
            # divide for the mean and for the variance, add epsilon, take the inverse root
            return int(each * read + 4 * (read // math.prod(width)))
        case "_scaled_dot_product_flash_attention_for_cpu":  # scale, then a softmax
            query, key, _, dropout, _ = args
            assert dropout == 0
            assert "attn_mask" not in kwargs
            return int(6 * math.prod(query.shape[:-1]) * key.shape[-2])
    raise NotImplementedError(f"{name} isn't in the table")
