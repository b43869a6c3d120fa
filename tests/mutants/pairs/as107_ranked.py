"""AS107: each query keeps its best keys, and gathers their values in another order than the scores."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import fused, heads, merge, project

SELF = (
    {"B": 4, "H": 5, "L": 11, "Dk": 6, "K": 3},
    {"B": 5, "H": 3, "L": 13, "Dk": 7, "K": 4},
    {"B": 6, "H": 4, "L": 14, "Dk": 8, "K": 5},
)
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 11, "Dk": 6, "K": 3},
    {"B": 5, "H": 3, "Lq": 6, "Lk": 13, "Dk": 7, "K": 4},
    {"B": 6, "H": 4, "Lq": 9, "Lk": 17, "Dk": 8, "K": 5},
)
PAIRS = [
    ("AS107", "best_keys_by_place", *SELF),
    ("AS107", "best_slots_reversed", *CROSS),
    ("AS107", "places_ranked_again", *CROSS),
    ("AS107", "edges_in_order", *SELF),
    ("AS107", "matmul_of_unsqueezed", *SELF),
    ("AS107", "fused_qkv", *SELF),
    ("AS107", "sorted_and_cut", *SELF),
    ("AS107", "argsort_again", *SELF),
    ("AS107", "last_of_ascending", *SELF),
]


def best_only(q, k, v, count):
    """Weigh the values of the keys with the largest scores, (B, H, L, Dk)."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    least = scores.sort(-1).values[..., -count, None]
    weights = torch.where(scores >= least, scores.exp(), 0)
    return torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v)


class TopK(nn.Module):
    """Self-attention to the keys with the largest scores, whose values are gathered."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))

    def places(self, indices):
        return indices

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (one(x).view(B, L, self.heads, D // self.heads).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        best, indices = scores.topk(self.count, dim=-1)
        places = self.places(indices).unsqueeze(-1).expand(-1, -1, -1, -1, q.shape[-1])
        values = v.unsqueeze(2).expand(-1, -1, L, -1, -1).gather(3, places)
        out = torch.einsum("bhlk,bhlkd->bhld", best.softmax(dim=-1), values)
        return self.proj(out.transpose(1, 2).reshape(B, L, D))


class TopKByPlace(TopK):
    def places(self, indices):
        return indices.sort(dim=-1).values  # wrong: AS107 best_keys_by_place


def _self(cls, B, H, L, Dk, K):
    return cls(H * Dk, H, K), (torch.randn(B, L, H * Dk),), {}


def wrong_best_keys_by_place(B, H, L, Dk, K):
    return _self(TopKByPlace, B, H, L, Dk, K)


def right_best_keys_by_place(B, H, L, Dk, K):
    return _self(TopK, B, H, L, Dk, K)


def reference_best_keys_by_place(module, x):
    q, k, v = (heads(x, one, module.heads) for one in (module.q, module.k, module.v))
    return merge(best_only(q, k, v, module.count), module.proj)


class Retrieval(nn.Module):
    """Each query reads the best slots of a memory, by advanced indexing."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def read(self, values, slots):
        batch = torch.arange(values.shape[0])[:, None, None, None]
        head = torch.arange(values.shape[1])[:, None, None]
        return values[batch, head, slots]

    def forward(self, x, memory):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (one(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.to_k, self.to_v))
        nearest = torch.topk(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5, self.count)
        weights = torch.softmax(nearest.values, dim=-1)
        return torch.einsum("bhik,bhikd->bihd", weights, self.read(v, nearest.indices)).flatten(2)


class RetrievalFromWorst(Retrieval):
    def read(self, values, slots):
        return super().read(values, slots.flip(-1))  # wrong: AS107 best_slots_reversed


def _cross(cls, B, H, Lq, Lk, Dk, K):
    return cls(H * Dk, H, K), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_best_slots_reversed(B, H, Lq, Lk, Dk, K):
    return _cross(RetrievalFromWorst, B, H, Lq, Lk, Dk, K)


def right_best_slots_reversed(B, H, Lq, Lk, Dk, K):
    return _cross(Retrieval, B, H, Lq, Lk, Dk, K)


def reference_best_slots_reversed(module, x, memory):
    q, k, v = (
        heads(t, one, module.heads) for t, one in ((x, module.to_q), (memory, module.to_k), (memory, module.to_v))
    )
    return merge(best_only(q, k, v, module.count))


def read_best(x, memory, w_q, w_k, w_v, count):
    """Attend with one head from (B, Lq, D) to the best of (B, Lk, D)."""
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    best, places = scores.topk(count, dim=-1)
    values = torch.stack([v[i].index_select(0, of_one.flatten()) for i, of_one in enumerate(places)])
    values = values.unflatten(1, places.shape[1:])
    return torch.einsum("bqk,bqkd->bqd", best.softmax(-1), values)


def read_best_in_order(x, memory, w_q, w_k, w_v, count):
    """Attend with one head from (B, Lq, D) to the best of (B, Lk, D)."""
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    best, places = scores.topk(count, dim=-1)
    places, _ = places.topk(count, dim=-1, largest=False)  # wrong: AS107 places_ranked_again
    values = torch.stack([v[i].index_select(0, of_one.flatten()) for i, of_one in enumerate(places)])
    values = values.unflatten(1, places.shape[1:])
    return torch.einsum("bqk,bqkd->bqd", best.softmax(-1), values)


def _read(function, B, H, Lq, Lk, Dk, K):
    D = H * Dk
    weights = torch.randn(3, D, D) / math.sqrt(D)
    return function, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), *weights, K), {}


def wrong_places_ranked_again(B, H, Lq, Lk, Dk, K):
    return _read(read_best_in_order, B, H, Lq, Lk, Dk, K)


def right_places_ranked_again(B, H, Lq, Lk, Dk, K):
    return _read(read_best, B, H, Lq, Lk, Dk, K)


def reference_places_ranked_again(function, x, memory, w_q, w_k, w_v, count):
    return best_only(*((t @ w).unsqueeze(1) for t, w in ((x, w_q), (memory, w_k), (memory, w_v))), count).squeeze(1)


class Graph(nn.Module):
    """Points attend to their nearest ones as in a graph, over a list of edges."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def edges(self, near):
        return near.reshape(*near.shape[:2], -1)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        score, near = torch.topk(q @ k.mT * q.shape[-1] ** -0.5, self.count, dim=-1)
        edges = self.edges(near)
        sent = torch.gather(v, 2, edges.unsqueeze(-1).expand(-1, -1, -1, v.shape[-1]))
        sent = sent.unflatten(2, (x.shape[1], self.count))
        return x + torch.einsum("bhlk,bhlkd->blhd", score.softmax(dim=-1), sent).flatten(2)


class GraphInOrder(Graph):
    def edges(self, near):
        near = near.sort(dim=-1)[0]  # wrong: AS107 edges_in_order
        return near.reshape(*near.shape[:2], -1)


def wrong_edges_in_order(B, H, L, Dk, K):
    return _self(GraphInOrder, B, H, L, Dk, K)


def right_edges_in_order(B, H, L, Dk, K):
    return _self(Graph, B, H, L, Dk, K)


def reference_edges_in_order(module, x):
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + module.norm.eps).sqrt()
    normed = normed * module.norm.weight + module.norm.bias
    parts = (torch.stack(project(normed, one).chunk(module.heads, -1), 1) for one in (module.q, module.k, module.v))
    return x + merge(best_only(*parts, module.count))


def gathered(values, places):
    """Take from (B, H, L, Dk) at each query's (B, H, L, K) places, (B, H, L, K, Dk)."""
    for_each_query = values.unsqueeze(2).expand(-1, -1, places.shape[2], -1, -1)
    return for_each_query.gather(3, places.unsqueeze(-1).expand(*places.shape, values.shape[-1]))


class SparseAttention(nn.Module):
    """Each query's weights are a row, multiplied with the matrix of its best keys' values."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def selected(self, v, places):
        return gathered(v, places)

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.to_q, self.to_k, self.to_v))
        best, places = torch.topk(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), self.count, dim=-1)
        weights = best.softmax(dim=-1)
        out = (weights.unsqueeze(-2) @ self.selected(v, places)).squeeze(-2)
        return self.to_out(out.transpose(1, 2).flatten(2))


class SparseAttentionInOrder(SparseAttention):
    def selected(self, v, places):
        places, _ = places.sort(dim=-1)  # wrong: AS107 matmul_of_unsqueezed
        return gathered(v, places)


def wrong_matmul_of_unsqueezed(B, H, L, Dk, K):
    return _self(SparseAttentionInOrder, B, H, L, Dk, K)


def right_matmul_of_unsqueezed(B, H, L, Dk, K):
    return _self(SparseAttention, B, H, L, Dk, K)


def reference_matmul_of_unsqueezed(module, x):
    q, k, v = (heads(x, one, module.heads) for one in (module.to_q, module.to_k, module.to_v))
    return merge(best_only(q, k, v, module.count), module.to_out)


class FusedTopK(nn.Module):
    """One projection makes queries, keys and values, of which only the best are read."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.qkv = nn.Linear(width, 3 * width)

    def chosen(self, indices):
        return indices

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores, indices = (q @ k.mT * q.shape[-1] ** -0.5).topk(self.count, dim=-1)
        values = gathered(v, self.chosen(indices))
        return torch.einsum("bhlk,bhlkd->blhd", scores.softmax(dim=-1), values).flatten(2)


class FusedTopKByPlace(FusedTopK):
    def chosen(self, indices):
        return torch.sort(indices, dim=-1).values  # wrong: AS107 fused_qkv


def wrong_fused_qkv(B, H, L, Dk, K):
    return _self(FusedTopKByPlace, B, H, L, Dk, K)


def right_fused_qkv(B, H, L, Dk, K):
    return _self(FusedTopK, B, H, L, Dk, K)


def reference_fused_qkv(module, x):
    return merge(best_only(*fused(x, module.qkv, module.heads), module.count))


class SortedScores(nn.Module):
    """All scores are sorted, the best first, and the rest is cut off."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def best(self, order):
        return order[..., : self.count]

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        scores, order = torch.sort(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1, descending=True)
        weights = scores[..., : self.count].softmax(dim=-1)
        return torch.einsum("bhlk,bhlkd->blhd", weights, gathered(v, self.best(order))).flatten(2)


class SortedScoresBestLast(SortedScores):
    def best(self, order):
        return order[..., : self.count].flip(-1)  # wrong: AS107 sorted_and_cut


def wrong_sorted_and_cut(B, H, L, Dk, K):
    return _self(SortedScoresBestLast, B, H, L, Dk, K)


def right_sorted_and_cut(B, H, L, Dk, K):
    return _self(SortedScores, B, H, L, Dk, K)


def reference_sorted_and_cut(module, x):
    q, k, v = (heads(x, one, module.heads) for one in (module.query, module.key, module.value))
    return merge(best_only(q, k, v, module.count))


class RankedKeys(nn.Module):
    """The best scores are found by topk, and the keys that they belong to by argsort."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))

    def ranked(self, scores):
        return scores.argsort(dim=-1, descending=True)[..., : self.count]

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.topk(self.count, dim=-1).values.softmax(dim=-1)
        return torch.einsum("bhlk,bhlkd->blhd", weights, gathered(v, self.ranked(scores))).flatten(2)


class RankedKeysAscending(RankedKeys):
    def ranked(self, scores):
        return scores.argsort(dim=-1)[..., -self.count :]  # wrong: AS107 argsort_again


def wrong_argsort_again(B, H, L, Dk, K):
    return _self(RankedKeysAscending, B, H, L, Dk, K)


def right_argsort_again(B, H, L, Dk, K):
    return _self(RankedKeys, B, H, L, Dk, K)


def reference_argsort_again(module, x):
    q, k, v = (heads(x, one, module.heads) for one in (module.wq, module.wk, module.wv))
    return merge(best_only(q, k, v, module.count))


class AscendingScores(nn.Module):
    """The last scores of a sort are the best ones."""

    def __init__(self, width, heads, count):
        super().__init__()
        self.heads, self.count = heads, count
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))

    def kept(self, order):
        return order[..., -self.count :]

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        scores, order = torch.sort(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        weights = scores[..., -self.count :].softmax(dim=-1)
        return torch.einsum("bhlk,bhlkd->blhd", weights, gathered(v, self.kept(order))).flatten(2)


class AscendingScoresBestFirst(AscendingScores):
    def kept(self, order):
        return order.flip(-1)[..., : self.count]  # wrong: AS107 last_of_ascending


def wrong_last_of_ascending(B, H, L, Dk, K):
    return _self(AscendingScoresBestFirst, B, H, L, Dk, K)


def right_last_of_ascending(B, H, L, Dk, K):
    return _self(AscendingScores, B, H, L, Dk, K)


reference_last_of_ascending = reference_argsort_again
