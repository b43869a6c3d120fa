"""AS805: one projection makes keys and values alike, in two calls, though its neighbour in a list is for the values."""

import itertools

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

MEMORY = (
    {"B": 4, "V": 13, "L": 7, "W": 5, "D": 6},
    {"B": 5, "V": 11, "L": 8, "W": 4, "D": 9},
    {"B": 6, "V": 17, "L": 5, "W": 3, "D": 8},
)
SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS805", "table_of_keys_for_values", *MEMORY),
    ("AS805", "linear_of_keys_for_values", *SIZES),
    ("AS805", "matrix_of_keys_for_values", *SIZES),
]


class Memory(nn.Module):
    """Hops over a memory of sentences: the table of a hop's values is the next one's table of keys."""

    def __init__(self, vocabulary, width, hops=2):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(vocabulary, width) for _ in range(hops + 1))
        self.hops = hops

    def bag(self, hop, words):
        return self.tables[hop](words).sum(dim=-2)

    def values(self, hop, words):
        return self.tables[hop + 1](words).sum(dim=-2)

    def forward(self, story, query):
        state = self.bag(0, query)
        for hop in range(self.hops):
            weights = torch.einsum("bd,bnd->bn", state, self.bag(hop, story)).softmax(dim=-1)
            state = state + torch.einsum("bn,bnd->bd", weights, self.values(hop, story))
        return state @ self.tables[-1].weight.T


class MemoryOfKeys(Memory):
    def values(self, hop, words):
        return self.tables[hop](words).sum(dim=-2)  # wrong: AS805 table_of_keys_for_values


def _memory(kind, B, V, L, W, D):
    return kind(V, D), (torch.randint(V, (B, L, W)), torch.randint(V, (B, W))), {}


def wrong_table_of_keys_for_values(B, V, L, W, D):
    return _memory(MemoryOfKeys, B, V, L, W, D)


def right_table_of_keys_for_values(B, V, L, W, D):
    return _memory(Memory, B, V, L, W, D)


def reference_table_of_keys_for_values(module, story, query):
    tables = [table.weight for table in module.tables]
    state = sum(tables[0][query[:, word]] for word in range(query.shape[1]))
    for keys, values in itertools.pairwise(tables):
        odds = (keys[story].sum(2) * state[:, None]).sum(-1).exp()
        state = state + (odds[..., None] * values[story].sum(2)).sum(1) / odds.sum(-1, keepdim=True)
    return torch.einsum("bd,vd->bv", state, tables[-1])


class Hops(nn.Module):
    """The projection of the values brings the contexts back, too."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(width, width)
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def values(self, x):
        return self.linears[1](x)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.linears[0](x)), self.split(self.values(x))
        context = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.linears[-1](context.transpose(1, 2).flatten(2))


class HopsOfKeys(Hops):
    def values(self, x):
        return self.linears[0](x)  # wrong: AS805 linear_of_keys_for_values


def _hops(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_linear_of_keys_for_values(B, H, L, Dk):
    return _hops(HopsOfKeys, B, H, L, Dk)


def right_linear_of_keys_for_values(B, H, L, Dk):
    return _hops(Hops, B, H, L, Dk)


def reference_linear_of_keys_for_values(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.query, *module.linears))
    return merge(attend(q, k, v), module.linears[1])


class Matrices(nn.Module):
    """The matrix of the values also brings the contexts back, transposed."""

    def __init__(self, n_heads, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(n_heads, n_heads * width, width) / 5) for _ in range(3))

    def of_values(self):
        return self.v

    def forward(self, x):
        q = torch.einsum("bli,hid->bhld", x, self.q)
        k = torch.einsum("bli,hid->bhld", x, self.k)
        v = torch.einsum("bli,hid->bhld", x, self.of_values())  # wrong: AS805 matrix_of_keys_for_values
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhld,hid->bli", weights @ v, self.v)


class MatricesOfKeys(Matrices):
    def of_values(self):
        return self.k


def _matrices(kind, B, H, L, Dk):
    return kind(H, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_matrix_of_keys_for_values(B, H, L, Dk):
    return _matrices(MatricesOfKeys, B, H, L, Dk)


def right_matrix_of_keys_for_values(B, H, L, Dk):
    return _matrices(Matrices, B, H, L, Dk)


def reference_matrix_of_keys_for_values(module, x):
    q, k, v = ((x[:, None] @ one) for one in (module.q, module.k, module.v))
    return (attend(q, k, v) @ module.v.mT).sum(1)
