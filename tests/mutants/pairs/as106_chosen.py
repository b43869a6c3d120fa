"""AS106: data choose the tokens that attend, and their results are written to other tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, multihead, split

SIZES = (
    {"B": 7, "H": 4, "L": 9, "Dk": 5},
    {"B": 5, "H": 2, "L": 13, "Dk": 7},
    {"B": 4, "H": 3, "L": 11, "Dk": 8},
)
PAIRS = [
    ("AS106", "active_queries_by_mask", *SIZES),
    ("AS106", "sorted_places", *SIZES),
    ("AS106", "buckets_sorted_again", *SIZES),
    ("AS106", "buckets_left_sorted", *SIZES),
]


class Active(nn.Module):
    """Only the queries with the largest scores attend; the others get the mean of the values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def active(self, q, k):
        scores = q @ k[:, :, ::2].mT
        return (scores.amax(-1) - scores.mean(-1)).topk(q.shape[2] // 2).indices

    def put(self, context, places, update):
        return context.scatter(2, places[..., None].expand_as(update), update)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        places = self.active(q, k)
        chosen = q.gather(2, places[..., None].expand(-1, -1, -1, q.shape[-1]))
        update = (chosen @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        context = v.mean(2, keepdim=True).repeat(1, 1, x.shape[1], 1)
        return self.o(self.put(context, places, update).transpose(1, 2).flatten(2))


class ActiveByMask(Active):
    def put(self, context, places, update):
        is_chosen = torch.zeros(context.shape[:3], dtype=torch.bool).scatter(2, places, True)
        context[is_chosen] = update.flatten(0, 2)  # wrong: AS106 active_queries_by_mask
        return context


def _case(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_active_queries_by_mask(B, H, L, Dk):
    return _case(ActiveByMask, B, H, L, Dk)


def right_active_queries_by_mask(B, H, L, Dk):
    return _case(Active, B, H, L, Dk)


def reference_active_queries_by_mask(module, x):
    q, k, v = (split(w(x), module.heads) for w in (module.q, module.k, module.v))
    scores = torch.einsum("bhid,bhjd->bhij", q, k[:, :, ::2])
    order = (scores.max(-1).values - scores.mean(-1)).argsort(-1, descending=True)
    is_active = order.argsort(-1) < x.shape[1] // 2
    return module.o(join(torch.where(is_active[..., None], attention(q, k, v), v.mean(2, keepdim=True))))


class Routed(nn.Module):
    """The tokens of the largest scores pass through a block; the others are left as they are."""

    def __init__(self, width, heads):
        super().__init__()
        self.router = nn.Linear(width, 1)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def back(self, places):
        return places

    def forward(self, x):
        places = self.router(x).squeeze(-1).topk(x.shape[1] // 2, dim=-1).indices
        rows = torch.arange(len(x))[:, None]
        chosen = x[rows, places]
        update, _ = self.attention(chosen, chosen, chosen, need_weights=False)
        out = x.clone()
        out[rows, self.back(places)] += update  # wrong: AS106 sorted_places
        return out


class RoutedInOrder(Routed):
    def back(self, places):
        return places.sort(dim=-1).values


def wrong_sorted_places(B, H, L, Dk):
    return _case(RoutedInOrder, B, H, L, Dk)


def right_sorted_places(B, H, L, Dk):
    return _case(Routed, B, H, L, Dk)


def reference_sorted_places(module, x):
    layer, out = module.attention, x.clone()
    for element, tokens in enumerate(x):
        scores = F.linear(tokens, module.router.weight, module.router.bias).flatten()
        places = scores.argsort(descending=True)[: len(tokens) // 2].sort().values
        weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
        q, k, v = (F.linear(tokens[places], w, b)[None] for w, b in zip(weights, biases, strict=True))
        context = multihead(q, k, v, layer.num_heads)[0]
        out[element, places] += F.linear(context, layer.out_proj.weight, layer.out_proj.bias)
    return out


class Buckets(nn.Module):
    """Tokens are sorted by their hashes, and attend within buckets of neighbours."""

    def __init__(self, width, heads):
        super().__init__()
        self.register_buffer("direction", torch.randn(width))
        self.qkv = nn.Linear(width, 3 * width)
        self.heads = heads

    def unsorted(self, y, order):
        return torch.take_along_dim(y, order.argsort(1)[..., None], 1)

    def forward(self, x):
        order = (x @ self.direction).argsort(dim=1)
        q, k, v = torch.take_along_dim(self.qkv(x), order[..., None], 1).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (t.unflatten(1, (-1, 3)).transpose(2, 3) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3).flatten(1, 2)
        return x + self.unsorted(y, order)


class BucketsSortedAgain(Buckets):
    def unsorted(self, y, order):
        return torch.take_along_dim(y, order[..., None], 1)  # wrong: AS106 buckets_sorted_again


class BucketsLeftSorted(Buckets):
    def unsorted(self, y, order):
        return y

    def forward(self, x):
        order = (x @ self.direction).argsort(dim=1)
        qkv = torch.take_along_dim(self.qkv(x), order[..., None], 1)  # wrong: AS106 buckets_left_sorted
        q, k, v = (t.unflatten(-1, (self.heads, -1)).unflatten(1, (-1, 3)).transpose(2, 3) for t in qkv.chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3).flatten(1, 2)
        return x + self.unsorted(y, order)


def _buckets(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, 3 * L, H * Dk),), {}


def wrong_buckets_sorted_again(B, H, L, Dk):
    return _buckets(BucketsSortedAgain, B, H, L, Dk)


def wrong_buckets_left_sorted(B, H, L, Dk):
    return _buckets(BucketsLeftSorted, B, H, L, Dk)


def right_buckets_sorted_again(B, H, L, Dk):
    return _buckets(Buckets, B, H, L, Dk)


def reference_buckets_sorted_again(module, x):
    out = x.clone()
    for element, tokens in enumerate(x):
        order = (tokens @ module.direction).argsort()
        for places in order.split(3):
            q, k, v = module.qkv(tokens[places])[None].chunk(3, -1)
            out[element, places] += multihead(q, k, v, module.heads)[0]
    return out


right_buckets_left_sorted, reference_buckets_left_sorted = right_buckets_sorted_again, reference_buckets_sorted_again
