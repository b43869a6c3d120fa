"""The floating-point operations of each operator, against loops that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnshape.cost.operations import count_operations, count_products
from tests.cost import counting
from tests.cost.counting import Number, matrix, vector


class Counts(TorchDispatchMode):
    """Counts the operations of all operators that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.products = 0
        self.unknown: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        counted = count_operations(func, args, kwargs or {}, result)
        if counted is None:
            self.unknown.append(str(func))
        self.flops += sum(counted or ())
        self.products += sum(count_products(func, args, kwargs or {}, result))
        return result


def flops(call: Callable[[], object]) -> int:
    with torch.no_grad(), Counts() as counts:
        call()
    assert not counts.unknown
    return counts.flops


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape)


Case = tuple[Callable[[], object], Callable[[], object]]
M, N, K = 3, 5, 4
CASES: dict[str, Case] = {
    "softmax": (lambda: ones(M, N).softmax(-1), lambda: [counting.softmax(row) for row in matrix(M, N)]),
    "log_softmax": (lambda: ones(M, N).log_softmax(-1), lambda: [counting.log_softmax(row) for row in matrix(M, N)]),
    "logsumexp": (lambda: ones(M, N).logsumexp(-1), lambda: [counting.logsumexp(row) for row in matrix(M, N)]),
    "sum": (lambda: ones(M, N).sum(-1), lambda: [counting.total(row) for row in matrix(M, N)]),
    "amax": (lambda: ones(M, N).amax(-1), lambda: [counting.largest(row) for row in matrix(M, N)]),
    "max": (lambda: ones(M, N).max(), lambda: counting.largest(vector(M * N))),
    "mean": (lambda: ones(M, N).mean(-1), lambda: [counting.mean(row) for row in matrix(M, N)]),
    "var": (lambda: ones(M, N).var(-1), lambda: [counting.variance(row) for row in matrix(M, N)]),
    "std": (lambda: ones(M, N).std(-1), lambda: [counting.variance(row).root() for row in matrix(M, N)]),
    "norm": (
        lambda: torch.linalg.norm(ones(M, N), dim=-1),
        lambda: [counting.norm(row) for row in matrix(M, N)],
    ),
    "layer_norm": (
        lambda: F.layer_norm(ones(M, N), (N,), ones(N), ones(N)),
        lambda: [counting.layer_norm(row, vector(N), vector(N)) for row in matrix(M, N)],
    ),
    "layer_norm without weight": (
        lambda: F.layer_norm(ones(M, N), (N,)),
        lambda: [counting.layer_norm(row) for row in matrix(M, N)],
    ),
    "rms_norm": (
        lambda: torch.ops.aten._fused_rms_norm(ones(M, N), [N], ones(N), 1e-5),
        lambda: [counting.rms_norm(row, vector(N)) for row in matrix(M, N)],
    ),
    "group_norm": (
        lambda: F.group_norm(ones(M, 4, N), 2),
        lambda: [counting.layer_norm(vector(2 * N)) for _ in range(2 * M)],
    ),
    "batch_norm": (
        lambda: F.batch_norm(ones(M, K, N), ones(K), ones(K), ones(K), ones(K)),
        lambda: [counting.in_evaluation(vector(M * N), *vector(4)) for _ in range(K)],
    ),
    "mm": (lambda: ones(M, K) @ ones(K, N), lambda: counting.product(matrix(M, K), matrix(K, N))),
    "bmm": (
        lambda: ones(2, M, K) @ ones(2, K, N),
        lambda: [counting.product(matrix(M, K), matrix(K, N)) for _ in range(2)],
    ),
    "mv": (lambda: ones(M, K) @ ones(K), lambda: [counting.dot(row, vector(K)) for row in matrix(M, K)]),
    "dot": (lambda: ones(K) @ ones(K), lambda: counting.dot(vector(K), vector(K))),
    "bilinear": (
        lambda: F.bilinear(ones(2, M), ones(2, N), ones(K, M, N)),
        lambda: [counting.bilinear(vector(M), vector(N), matrix(M, N)) for _ in range(2 * K)],
    ),
    "cdist": (
        lambda: torch.cdist(ones(M, K), ones(N, K), compute_mode="donot_use_mm_for_euclid_dist"),
        lambda: [counting.distance(one, other) for one in matrix(M, K) for other in matrix(N, K)],
    ),
    "conv1d": (
        lambda: F.conv1d(ones(2, M, 7), ones(N, M, 3)),
        lambda: [counting.dot(vector(3 * M), vector(3 * M)) for _ in range(2 * N * 5)],
    ),
    "grouped conv1d": (
        lambda: F.conv1d(ones(2, 4, 7), ones(6, 2, 3), groups=2),
        lambda: [counting.dot(vector(3 * 2), vector(3 * 2)) for _ in range(2 * 6 * 5)],
    ),
    "avg_pool": (lambda: F.avg_pool2d(ones(1, 2, 4, 4), 2), lambda: [counting.mean(vector(4)) for _ in range(8)]),
    "fused attention": (
        lambda: F.scaled_dot_product_attention(ones(1, 2, M, K), ones(1, 2, N, K), ones(1, 2, N, K)),
        lambda: [counting.attention(matrix(M, K), matrix(N, K), matrix(N, K)) for _ in range(2)],
    ),
    "fused attention with a bias": (
        lambda: F.scaled_dot_product_attention(ones(1, 2, M, K), ones(1, 2, N, K), ones(1, 2, N, K), ones(1, 1, M, N)),
        lambda: [counting.attention(matrix(M, K), matrix(N, K), matrix(N, K), matrix(M, N)) for _ in range(2)],
    ),
    "mse_loss": (
        lambda: F.mse_loss(ones(N), ones(N)),
        lambda: counting.mean_squared_error(vector(N), vector(N)),
    ),
    "softmax's gradient": (
        lambda: torch.ops.aten._softmax_backward_data(ones(M, N), ones(M, N), -1, torch.float32),
        lambda: [counting.softmax_gradient(vector(N), vector(N)) for _ in range(M)],
    ),
    "addcmul": (
        lambda: torch.addcmul(ones(N), ones(N), ones(N), value=0.5),
        lambda: [one + Number(0.5) * one * one for one in vector(N)],
    ),
    "add with alpha": (
        lambda: torch.add(ones(N), ones(N), alpha=2),
        lambda: [one + one * Number(2.0) for one in vector(N)],
    ),
    "broadcast product": (
        lambda: ones(M, 1) * ones(N),
        lambda: [one * other for one in vector(M) for other in vector(N)],
    ),
    "cumsum": (lambda: ones(M, N).cumsum(-1), lambda: [counting.total(row) for row in matrix(M, N)]),
}


@pytest.mark.parametrize("name", CASES)
def test_operator_takes_as_many_operations_as_a_loop_counts(name: str) -> None:
    call, loop = CASES[name]
    with counting.counted() as done:
        loop()
    assert flops(call) == done[0]


MOVES: dict[str, Callable[[], object]] = {
    "views": lambda: ones(2, M, N).transpose(1, 2).unflatten(1, (N, 1))[:, 1:],
    "copies": lambda: torch.cat([ones(M, N).t().contiguous().clone(), ones(N, 1)], dim=1),
    "indices": lambda: ones(M, N)[torch.tensor([0, 2])].index_select(1, torch.tensor([1])),
    "sorts": lambda: ones(M, N).topk(2).indices.sort(),
    "masks": lambda: torch.where(ones(M, N) > 0, ones(M, N), 0.0).masked_fill(torch.ones(N, dtype=torch.bool), 1.0),
    "integers": lambda: torch.arange(N) * 2 + torch.arange(N).sum(),
    "embedding": lambda: F.embedding(torch.tensor([0, 1]), ones(M, N)),
    "random": lambda: torch.randn(M, N),
}


@pytest.mark.parametrize("name", MOVES)
def test_moving_and_choosing_is_no_operation(name: str) -> None:
    assert flops(MOVES[name]) == 0


def test_complex_numbers_count_as_real_operations() -> None:
    one, other = torch.ones(N, dtype=torch.complex64), torch.ones(N, dtype=torch.complex64)
    assert flops(lambda: one * other) == 6 * N
    assert flops(lambda: one + other) == 2 * N
    assert flops(lambda: one[None] @ other[:, None]) == 8 * N


def test_operator_without_an_entry_is_unknown_and_not_0() -> None:
    with Counts() as counts:
        torch.linalg.inv_ex(torch.eye(3))
    assert counts.unknown == ["aten.linalg_inv_ex.default"]


def test_sparse_operands_are_unknown() -> None:
    sparse = torch.eye(3).to_sparse()
    with Counts() as counts:
        torch.sparse.mm(sparse, ones(3, 3))
    assert any("mm" in name for name in counts.unknown)


def test_products_are_those_of_matrices_alone() -> None:
    query, key = ones(1, 2, M, K), ones(1, 2, N, K)
    with torch.no_grad(), Counts() as fused:
        F.scaled_dot_product_attention(query, key, key)
    assert fused.products == 2 * 2 * 2 * M * N * K
    with torch.no_grad(), Counts() as eager:
        (query @ key.mT / 2).softmax(-1) @ key
    assert eager.products == fused.products
    assert eager.flops == fused.flops
