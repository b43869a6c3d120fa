"""AS109: the length of each key is broadcast along the axis of queries, or that of each query along the keys."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, softmax, split

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS109", "norms_token_by_token", *SIZES),
    ("AS109", "query_by_length_of_key", *SIZES),
    ("AS109", "squared_distances", *SIZES),
    ("AS109", "queries_last", *SIZES),
]


class Cosine(nn.Module):
    """Scaled cosine attention within a window, with a learned temperature for each head."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.tau = nn.Parameter(torch.full((heads, 1, 1), 0.1))

    def lengths(self, q, k):
        return q.norm(dim=-1, keepdim=True) @ k.norm(dim=-1, keepdim=True).transpose(-2, -1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.lengths(q, k).clamp(min=1e-6)
        weights = (scores / self.tau.clamp(min=0.01)).softmax(dim=-1)
        return self.proj(torch.einsum("bhqk,bhkd->bhqd", weights, v).transpose(1, 2).flatten(2))


class TokenByToken(Cosine):
    def lengths(self, q, k):
        return q.norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True)  # wrong: AS109 norms_token_by_token


def wrong_norms_token_by_token(B, H, L, Dk):
    return TokenByToken(H * Dk, H), (torch.randn(B, L, H * Dk),)


def right_norms_token_by_token(B, H, L, Dk):
    return Cosine(H * Dk, H), (torch.randn(B, L, H * Dk),)


def reference_norms_token_by_token(module, x):
    tokens = module.qkv(x).chunk(3, -1)
    q, k, v = (split(t, module.heads) for t in tokens)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return module.proj(join(softmax((q @ k.mT) / module.tau) @ v))


def _vectors(B, H, L, Dk):
    return tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def wrong_query_by_length_of_key(B, H, L, Dk):
    def attend(q, k, v):
        q = q / torch.linalg.vector_norm(k, dim=-1, keepdim=True)  # wrong: AS109 query_by_length_of_key
        return F.scaled_dot_product_attention(q, k, v, scale=4.0)

    return attend, _vectors(B, H, L, Dk)


def right_query_by_length_of_key(B, H, L, Dk):
    def attend(q, k, v):
        k = k / torch.linalg.vector_norm(k, dim=-1, keepdim=True)
        return F.scaled_dot_product_attention(q, k, v, scale=4.0)

    return attend, _vectors(B, H, L, Dk)


def reference_query_by_length_of_key(attend, q, k, v):
    return attention(q, k / k.square().sum(-1, keepdim=True).sqrt(), v, scale=4.0)


class Distances(nn.Module):
    """Attention by the squared distances of queries and keys."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def distances(self, q, k):
        return q.pow(2).sum(-1, keepdim=True) + k.pow(2).sum(-1).unsqueeze(-2) - 2 * torch.matmul(q, k.mT)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = -self.distances(q, k) / (2 * q.shape[-1] ** 0.5)
        return torch.matmul(F.softmax(scores, -1), v).transpose(1, 2).flatten(2)


class OwnDistances(Distances):
    def distances(self, q, k):
        squares = q.pow(2).sum(-1, keepdim=True) + k.pow(2).sum(-1, keepdim=True)  # wrong: AS109 squared_distances
        return squares - 2 * torch.matmul(q, k.mT)


def wrong_squared_distances(B, H, L, Dk):
    return OwnDistances(H * Dk, H), (torch.randn(B, L, H * Dk),)


def right_squared_distances(B, H, L, Dk):
    return Distances(H * Dk, H), (torch.randn(B, L, H * Dk),)


def reference_squared_distances(module, x):
    q, k, v = (split(f(x), module.heads) for f in (module.q, module.k, module.v))
    scores = torch.cdist(q, k).square() / (-2 * q.shape[-1] ** 0.5)
    return join(softmax(scores) @ v)


def _keys_first(divided):
    """Return attention whose scores have keys first and queries last."""

    def attend(q, k, v):
        scores = torch.einsum("bhjd,bhid->bhji", k / k.norm(dim=-1, keepdim=True), q)
        weights = torch.softmax(5 * divided(scores, q.norm(dim=-1)), dim=2)
        return torch.einsum("bhji,bhjd->bhid", weights, v)

    return attend


def wrong_queries_last(B, H, L, Dk):
    def divided(scores, lengths):
        return scores / lengths[..., None]  # wrong: AS109 queries_last

    return _keys_first(divided), _vectors(B, H, L, Dk)


def right_queries_last(B, H, L, Dk):
    def divided(scores, lengths):
        return scores / lengths[:, :, None]

    return _keys_first(divided), _vectors(B, H, L, Dk)


def reference_queries_last(attend, q, k, v):
    return attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, scale=5.0)
