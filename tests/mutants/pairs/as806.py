"""AS806: one projection serves every head. In the right versions each head has its own part of the parameter."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS806", "first_of_stack", *SIZES),
    ("AS806", "linear_of_slices", *SIZES),
    ("AS806", "queries_only", *SIZES),
]


class Stacked(nn.Module):
    """A stack of projections, from the features of one head to the features of one head."""

    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Parameter(torch.randn(heads, width, width) / width) for _ in range(3))

    def project(self, x, weight):
        return torch.einsum("bhld,hde->bhle", x, weight)

    def project_query(self, x, weight):
        return self.project(x, weight)

    def forward(self, x):
        x = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = self.project_query(x, self.q), self.project(x, self.k), self.project(x, self.v)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class FirstOfStack(Stacked):
    def project(self, x, weight):
        return torch.einsum("bhld,de->bhle", x, weight[0])  # wrong: AS806 first_of_stack


class LinearOfSlices(Stacked):
    def project(self, x, weight):
        return F.linear(x, weight[-1].mT)  # wrong: AS806 linear_of_slices


class QueriesOnly(Stacked):
    def project_query(self, x, weight):
        return x @ weight[0]  # wrong: AS806 queries_only


def wrong_first_of_stack(B, H, L, Dk):
    return FirstOfStack(H, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_linear_of_slices(B, H, L, Dk):
    return LinearOfSlices(H, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_queries_only(B, H, L, Dk):
    return QueriesOnly(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_first_of_stack(B, H, L, Dk):
    return Stacked(H, Dk), (torch.randn(B, L, H * Dk),), {}


right_linear_of_slices = right_queries_only = right_first_of_stack


def reference_first_of_stack(module, x):
    heads = x.chunk(module.heads, -1)
    contexts = [attention(head @ module.q[i], head @ module.k[i], head @ module.v[i]) for i, head in enumerate(heads)]
    return torch.cat(contexts, -1)


reference_linear_of_slices = reference_queries_only = reference_first_of_stack
