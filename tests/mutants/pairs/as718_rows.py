"""AS718: a table with rows for both directions is looked up by the absolute distance."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge

SIZES = (
    {"B": 2, "H": 3, "rows": 4, "columns": 6, "Dk": 5},
    {"B": 3, "H": 4, "rows": 7, "columns": 2, "Dk": 6},
    {"B": 4, "H": 5, "rows": 3, "columns": 7, "Dk": 6},
)
PAIRS = [
    ("AS718", "distances_without_sign", *SIZES),
]


class Decomposed(nn.Module):
    """Adds the products of queries with vectors for the distances along both sides of a map."""

    def __init__(self, width, n_heads, rows, columns):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.of_rows = nn.Parameter(torch.randn(2 * rows - 1, width // n_heads))
        self.of_columns = nn.Parameter(torch.randn(2 * columns - 1, width // n_heads))

    def places(self, size):
        steps = torch.arange(size)
        return steps[:, None] - steps[None, :] + size - 1

    def forward(self, x):
        n_batch, rows, columns, width = x.shape
        q, k, v = (layer(x).unflatten(-1, (self.n_heads, -1)).movedim(3, 1) for layer in (self.q, self.k, self.v))
        of_rows = torch.einsum("bhrcd,rsd->bhrcs", q, self.of_rows[self.places(rows)])
        of_columns = torch.einsum("bhrcd,csd->bhrcs", q, self.of_columns[self.places(columns)])
        scores = torch.einsum("bhrcd,bhsed->bhrcse", q, k) * q.shape[-1] ** -0.5
        scores = scores + of_rows.unsqueeze(-1) + of_columns.unsqueeze(-2)
        weights = scores.flatten(4).softmax(-1).flatten(2, 3)
        context = weights @ v.flatten(2, 3)
        return context.transpose(1, 2).reshape(n_batch, rows, columns, width)


class DecomposedBothWays(Decomposed):
    def places(self, size):
        steps = torch.arange(size)
        return (steps[:, None] - steps[None, :]).abs() + size - 1  # wrong: AS718 distances_without_sign


def _case(cls, B, H, rows, columns, Dk):
    return cls(H * Dk, H, rows, columns), (torch.randn(B, rows, columns, H * Dk),), {}


def wrong_distances_without_sign(B, H, rows, columns, Dk):
    return _case(DecomposedBothWays, B, H, rows, columns, Dk)


def right_distances_without_sign(B, H, rows, columns, Dk):
    return _case(Decomposed, B, H, rows, columns, Dk)


def reference_distances_without_sign(module, x):
    rows, columns = x.shape[1:3]
    q, k, v = (heads(x.flatten(1, 2), layer, module.n_heads) for layer in (module.q, module.k, module.v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    for i in range(rows * columns):
        for j in range(rows * columns):
            row, column = (
                module.of_rows[i // columns - j // columns + rows - 1],
                i % columns - j % columns + columns - 1,
            )
            scores[..., i, j] += (q[:, :, i] * (row + module.of_columns[column])).sum(-1)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return merge(weights @ v).reshape(x.shape)
