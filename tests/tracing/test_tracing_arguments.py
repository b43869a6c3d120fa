"""The arguments of calls that are no tensors: their names, their values, and their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import attnshape
from attnshape.model.trace import Argument
from attnshape.tracing.arguments import named_arguments, plain_arguments

X = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("function", "args", "keywords", "named"),
    [
        (torch.Tensor.softmax, (X, -1), {}, {"dim": -1}),
        (F.softmax, (X,), {"dim": -1, "_stacklevel": 3}, {"dim": -1}),
        (
            F.scaled_dot_product_attention,
            (X, X, X, None, 0.1),
            {"is_causal": True},
            {"dropout_p": 0.1, "is_causal": True},
        ),
        (torch.Tensor.masked_fill, (X, X, float("-inf")), {}, {"value": float("-inf")}),
        (torch.Tensor.__truediv__, (X, 8.0), {}, {"other": 8.0}),
        (torch.Tensor.__rsub__, (X, 1), {}, {"other": 1}),
        (torch.arange, (0, 5, 2), {"dtype": torch.float32}, {"start": 0, "end": 5, "step": 2, "dtype": "float32"}),
        (F.dropout, (X, 0.1, False), {"inplace": False}, {"p": 0.1, "training": False}),
        (torch.triu, (X,), {"diagonal": 1}, {"diagonal": 1}),
        (torch.Tensor.sum, (X, (0, 1)), {"keepdim": True}, {"dim": (0, 1), "keepdim": True}),
        (torch.einsum, ("ij,jk", X, X), {}, {"equation": "ij,jk"}),
        (torch.ones, (3,), {"device": "cpu"}, {"size": 3}),
        (print, (3,), {}, {"argument 0": 3}),
        (torch.tensor, (list(range(100)),), {}, {}),
    ],
)
def test_names(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], named: dict[str, Any]
) -> None:
    found = named_arguments(function, plain_arguments(args, keywords))
    assert {argument.name: argument.value for argument in found if argument is not None} == named


def test_default_values_are_known() -> None:
    (argument,) = named_arguments(F.scaled_dot_product_attention, [("is_causal", False)])
    assert argument is not None and argument.is_default
    (argument,) = named_arguments(F.scaled_dot_product_attention, [("is_causal", True)])
    assert argument is not None and not argument.is_default


def test_numbers_that_follow_from_sizes_are_formulas() -> None:
    def attention(q: Tensor, k: Tensor) -> Tensor:
        width = q.shape[-1]
        scores = (q * width**-0.5 / width**0.5) @ k.mT
        kept = torch.arange(k.shape[1]) > 3
        return (scores.masked_fill(kept, -1e9) / width).softmax(dim=scores.ndim - 1) * (7.0 + width)

    trace = attnshape.trace(attention, inputs={"q": "B Lq Dk", "k": "B Lk Dk"})
    arguments = [
        (step.operation.rpartition(".")[2], argument) for step in trace.steps for argument in step.arguments or ()
    ]
    assert arguments == [
        ("mul", Argument("other", "0.125", "1/sqrt(Dk)")),
        ("div", Argument("other", "8.0", "sqrt(Dk)")),
        ("arange", Argument("end", "16", "Lk")),
        ("gt", Argument("other", "3")),
        ("masked_fill", Argument("value", "-1000000000.0")),
        ("div", Argument("other", "64", "Dk")),
        ("softmax", Argument("dim", "2")),
        ("mul", Argument("other", "71.0", "Dk+7")),
    ]
