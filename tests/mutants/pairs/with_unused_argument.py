"""AS801, AS802 and AS803 in code that also takes an argument which it doesn't need."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS802", "queries_with_queries", *SIZES),
    ("AS803", "weights_times_query", *SIZES),
    ("AS801", "kernel_of_keys", *SIZES),
    ("AS801", "first_query_for_all", *CROSS),
    ("AS803", "kernel_with_keys_as_values", *CROSS),
]


def cross(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), value)


def cross_of_keys(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    query = key[:, : query.shape[1]].mean(1, keepdim=True).expand_as(query)
    scores = torch.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), value)


def _cross(function, B, H, Lq, Lk, Dk):
    tensors = torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)
    return function, (*tensors, torch.arange(Lq)), {}


def wrong_first_query_for_all(B, H, Lq, Lk, Dk):
    return _cross(cross_of_keys, B, H, Lq, Lk, Dk)


def right_first_query_for_all(B, H, Lq, Lk, Dk):
    return _cross(cross, B, H, Lq, Lk, Dk)


def reference_first_query_for_all(function, query, key, value, offsets):
    return attend(*(t.transpose(1, 2) for t in (query, key, value))).transpose(1, 2)


def kernel(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def kernel_of_keys(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, key))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def wrong_kernel_with_keys_as_values(B, H, Lq, Lk, Dk):
    return _cross(kernel_of_keys, B, H, Lq, Lk, Dk)


def right_kernel_with_keys_as_values(B, H, Lq, Lk, Dk):
    return _cross(kernel, B, H, Lq, Lk, Dk)


reference_kernel_with_keys_as_values = reference_first_query_for_all


def rows(q: Tensor, k: Tensor, v: Tensor, token_type_ids: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.matmul(q, k.transpose(-1, -2)).div(math.sqrt(q.shape[-1])).softmax(dim=-1)
    return torch.matmul(weights, v)


def queries_with_queries(q: Tensor, k: Tensor, v: Tensor, token_type_ids: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.matmul(q, q.transpose(-1, -2)).div(math.sqrt(q.shape[-1])).softmax(dim=-1)
    return torch.matmul(weights, v)


def weights_times_query(q: Tensor, k: Tensor, v: Tensor, token_type_ids: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk)."""
    weights = torch.matmul(q, k.transpose(-1, -2)).div(math.sqrt(q.shape[-1])).softmax(dim=-1)
    return torch.matmul(weights, q)


class Folded(nn.Module):
    """Batch and heads are one axis for the kernel."""

    def of_kernel(self, q, k, v):
        return q, k, v

    def forward(self, q, k, v, token_type_ids):
        context = F.scaled_dot_product_attention(*(t.flatten(0, 1) for t in self.of_kernel(q, k, v)))
        return context.view(q.shape)


class FoldedKeys(Folded):
    def of_kernel(self, q, k, v):
        return k, k, v


def _rows(function, B, H, L, Dk):
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), torch.arange(L) % 2), {}


def wrong_queries_with_queries(B, H, L, Dk):
    return _rows(queries_with_queries, B, H, L, Dk)


def wrong_weights_times_query(B, H, L, Dk):
    return _rows(weights_times_query, B, H, L, Dk)


def wrong_kernel_of_keys(B, H, L, Dk):
    return _rows(FoldedKeys(), B, H, L, Dk)


def right_queries_with_queries(B, H, L, Dk):
    return _rows(rows, B, H, L, Dk)


def right_kernel_of_keys(B, H, L, Dk):
    return _rows(Folded(), B, H, L, Dk)


right_weights_times_query = right_queries_with_queries


def reference_queries_with_queries(function, q, k, v, token_type_ids):
    return attend(q, k, v)


reference_weights_times_query = reference_kernel_of_keys = reference_queries_with_queries
