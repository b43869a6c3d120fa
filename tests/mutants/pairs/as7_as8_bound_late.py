"""AS708, AS805, AS807: functions that a loop makes read its variable when they are called: all see its last value."""

import torch
from torch import nn

from tests.mutants.pairs.as708_slopes import falling
from tests.mutants.plain import softmax

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
POOL = ({"B": 2, "L": 7, "D": 5}, {"B": 5, "L": 9, "D": 8}, {"B": 3, "L": 11, "D": 4})
PAIRS = [
    ("AS708", "slopes_bound_late", *SELF),
    ("AS708", "biases_bound_late", *SELF),
    ("AS708", "one_slope_for_all", *SELF),
    ("AS807", "queries_bound_late", *POOL),
    ("AS805", "seeds_bound_late", *POOL),
    ("AS807", "row_taken_again", *POOL),
]


class ByHead(nn.Module):
    """Each head in turn, with a function that changes its scores."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.changes = self.make([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)])

    def make(self, slopes):
        return [lambda score, distance, slope=slope: score - slope * distance for slope in slopes]

    def forward(self, x):
        place = torch.arange(x.shape[1])
        distance = (place[:, None] - place).abs().to(x.dtype)
        parts = [t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, dim=-1)]
        contexts = []
        for h, change in enumerate(self.changes):
            q, k, v = (t[:, :, h] for t in parts)
            contexts.append(change(q @ k.mT * q.shape[-1] ** -0.5, distance).softmax(dim=-1) @ v)
        return self.out(torch.cat(contexts, dim=-1))


class ByHeadLate(ByHead):
    def make(self, slopes):
        changes = []
        for slope in slopes:
            changes.append(lambda score, distance: score - slope * distance)  # noqa: B023, PERF401
        return changes


class BiasByHead(ByHead):
    """Each head's function adds a bias that it makes."""

    def make(self, slopes):
        def maker(slope):
            def add(score, distance):
                return score + distance * -slope

            return add

        return [maker(slope) for slope in slopes]


class BiasByHeadLate(ByHead):
    def make(self, slopes):
        changes = []
        for slope in slopes:

            def add(score, distance):
                return score + distance * -slope  # noqa: B023

            changes.append(add)
        return changes


class Together(ByHead):
    """All heads at once."""

    def slopes(self):
        return torch.tensor([2.0 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)], dtype=torch.float64)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        place = torch.arange(x.shape[1])
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores - self.slopes().to(q.dtype)[:, None, None] * (place[:, None] - place).abs()
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class TogetherAlike(Together):
    def slopes(self):
        return torch.full((self.heads,), 2.0**-8)


def _by_head(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_slopes_bound_late(B, H, L, Dk):
    return _by_head(ByHeadLate, B, H, L, Dk)


def right_slopes_bound_late(B, H, L, Dk):
    return _by_head(ByHead, B, H, L, Dk)


def wrong_biases_bound_late(B, H, L, Dk):
    return _by_head(BiasByHeadLate, B, H, L, Dk)


def right_biases_bound_late(B, H, L, Dk):
    return _by_head(BiasByHead, B, H, L, Dk)


def wrong_one_slope_for_all(B, H, L, Dk):
    return _by_head(TogetherAlike, B, H, L, Dk)


def right_one_slope_for_all(B, H, L, Dk):
    return _by_head(Together, B, H, L, Dk)


def reference_slopes_bound_late(module, x):
    qkv = torch.einsum("bli,oi->blo", x, module.qkv.weight) + module.qkv.bias
    q, k, v = qkv.unflatten(-1, (3, module.heads, -1)).permute(2, 0, 3, 1, 4)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + falling(module.heads, x.shape[1])
    context = torch.einsum("bhij,bhjd->bihd", softmax(scores), v).flatten(2)
    return torch.einsum("bli,oi->blo", context, module.out.weight) + module.out.bias


reference_biases_bound_late = reference_one_slope_for_all = reference_slopes_bound_late


class Tasks(nn.Module):
    """A learned query for each task pools the tokens."""

    def __init__(self, width):
        super().__init__()
        self.queries, self.key = nn.Parameter(torch.randn(3, width)), nn.Linear(width, width, bias=False)

    def readers(self, x):
        return [lambda task=task: self.read(x, self.queries[task]) for task in range(3)]

    def read(self, x, query):
        weights = (self.key(x) @ query * query.shape[-1] ** -0.5).softmax(dim=1)
        return (weights.unsqueeze(-1) * x).sum(dim=1)

    def forward(self, x):
        return torch.stack([reader() for reader in self.readers(x)], dim=1)


class TasksLate(Tasks):
    def readers(self, x):
        readers = []
        for task in range(3):
            readers.append(lambda: self.read(x, self.queries[task]))  # noqa: B023, PERF401
        return readers


class Seeds(Tasks):
    """The seeds of all poolings are one tensor with two axes before the features."""

    def __init__(self, width):
        super().__init__(width)
        self.queries = nn.Parameter(torch.randn(3, 1, width))

    def read(self, x, query):
        weights = (query @ self.key(x).mT * query.shape[-1] ** -0.5).softmax(dim=-1)
        return (weights @ x).squeeze(1)


class SeedsLate(Seeds):
    def readers(self, x):
        readers = {}
        for seed in range(3):
            readers[seed] = lambda: self.read(x, self.queries[seed])  # noqa: B023
        return readers.values()


class Named(Tasks):
    def readers(self, x):
        first, second, third = self.queries[0], self.queries[1], self.queries[2]
        return [lambda query=query: self.read(x, query) for query in (first, second, third)]


class NamedAgain(Tasks):
    def readers(self, x):
        first, second = self.queries[0], self.queries[1]
        third = self.queries[1]  # wrong: AS807 row_taken_again
        return [lambda query=query: self.read(x, query) for query in (first, second, third)]


def wrong_queries_bound_late(B, L, D):
    return TasksLate(D), (torch.randn(B, L, D),), {}


def right_queries_bound_late(B, L, D):
    return Tasks(D), (torch.randn(B, L, D),), {}


def wrong_seeds_bound_late(B, L, D):
    return SeedsLate(D), (torch.randn(B, L, D),), {}


def right_seeds_bound_late(B, L, D):
    return Seeds(D), (torch.randn(B, L, D),), {}


def wrong_row_taken_again(B, L, D):
    return NamedAgain(D), (torch.randn(B, L, D),), {}


def right_row_taken_again(B, L, D):
    return Named(D), (torch.randn(B, L, D),), {}


def reference_queries_bound_late(module, x):
    queries = module.queries.reshape(3, -1)
    scores = torch.einsum("td,bld->btl", queries, torch.einsum("bli,oi->blo", x, module.key.weight))
    return torch.einsum("btl,bld->btd", softmax(scores / x.shape[-1] ** 0.5), x)


reference_seeds_bound_late = reference_row_taken_again = reference_queries_bound_late
