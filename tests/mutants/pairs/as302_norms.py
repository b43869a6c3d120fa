"""AS302: keys normalised over their features instead of the tokens, sums that are one already, and sinks added late."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import join, softmax, split

SLOTS = ({"B": 2, "Lq": 3, "L": 7, "Dk": 6}, {"B": 5, "Lq": 4, "L": 9, "Dk": 7}, {"B": 3, "Lq": 6, "L": 11, "Dk": 8})
SELF = ({"B": 2, "H": 3, "L": 7, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 3, "H": 4, "L": 6, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS302", "keys_over_features", *SELF),
    ("AS302", "channels_of_each_head", *SELF),
    ("AS302", "gathered_over_features", *CROSS),
    ("AS302", "divided_by_sum_over_slots", *SLOTS),
    ("AS302", "clusters_normalised_twice", *CROSS),
    ("AS302", "sink_after_softmax", *CROSS),
    ("AS302", "one_more_after_softmax", *SELF),
]


class Efficient(nn.Module):
    """Queries are normalised over their features, keys over the tokens."""

    axis_of_keys = -2

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q = q.softmax(dim=-1) * self.scale
        k = k.softmax(dim=self.axis_of_keys)  # wrong: AS302 keys_over_features
        context = torch.einsum("bhnd,bhne->bhde", k, v)
        return self.out(torch.einsum("bhnd,bhde->bhne", q, context).transpose(1, 2).flatten(2))


class EfficientOverFeatures(Efficient):
    axis_of_keys = -1


def wrong_keys_over_features(B, H, L, Dk):
    return EfficientOverFeatures(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_keys_over_features(B, H, L, Dk):
    return Efficient(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_keys_over_features(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return module.out(join(softmax(q) @ (softmax(k.mT) @ v) / q.shape[-1] ** 0.5))


def heads_of_maps(queries, keys, values, heads):
    """Attend in (B, H*Dk, L), head by head."""
    found = []
    for q, k, v in zip(queries.chunk(heads, 1), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True):
        k = F.softmax(k, dim=2)
        found.append((k @ v.mT).mT @ F.softmax(q, dim=1))
    return torch.cat(found, dim=1)


def heads_of_channels(queries, keys, values, heads):
    found = []
    for q, k, v in zip(queries.chunk(heads, 1), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True):
        k = F.softmax(k, dim=1)  # wrong: AS302 channels_of_each_head
        found.append((k @ v.mT).mT @ F.softmax(q, dim=1))
    return torch.cat(found, dim=1)


def _maps(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H * Dk, L)), {"heads": H}


def wrong_channels_of_each_head(B, H, L, Dk):
    return _maps(heads_of_channels, B, H, L, Dk)


def right_channels_of_each_head(B, H, L, Dk):
    return _maps(heads_of_maps, B, H, L, Dk)


def reference_channels_of_each_head(function, queries, keys, values, heads):
    q, k, v = (split(t.mT, heads) for t in (queries, keys, values))
    return join(torch.einsum("bhid,bhjd,bhje->bhie", softmax(q), softmax(k.mT).mT, v)).mT


def double_attention(feature, gathering, distribution):
    """Gather features of the memory by attention maps, and distribute them to the queries."""
    gathered = feature.transpose(-2, -1).matmul(gathering.softmax(dim=-2))
    return distribution.softmax(dim=-1).matmul(gathered.transpose(-2, -1))


def double_attention_of_features(feature, gathering, distribution):
    maps = gathering.softmax(dim=-1)  # wrong: AS302 gathered_over_features
    gathered = feature.transpose(-2, -1).matmul(maps)
    return distribution.softmax(dim=-1).matmul(gathered.transpose(-2, -1))


def _gathered(function, B, H, Lq, Lk, Dk):
    return function, (torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lq, Dk)), {}


def wrong_gathered_over_features(B, H, Lq, Lk, Dk):
    return _gathered(double_attention_of_features, B, H, Lq, Lk, Dk)


def right_gathered_over_features(B, H, Lq, Lk, Dk):
    return _gathered(double_attention, B, H, Lq, Lk, Dk)


def reference_gathered_over_features(function, feature, gathering, distribution):
    return softmax(distribution) @ softmax(gathering.mT) @ feature


class Competing(nn.Module):
    """Slots compete for the tokens; each takes a weighted mean."""

    def __init__(self, slots, width):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, slots, width))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(self.slots.expand(len(x), -1, -1)), self.k(x), self.v(x)
        shares = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=1) + 1e-8
        shares = shares / shares.sum(dim=2, keepdim=True)
        return shares @ v


class CompetingTwice(Competing):
    def forward(self, x):
        q, k, v = self.q(self.slots.expand(len(x), -1, -1)), self.k(x), self.v(x)
        shares = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=1) + 1e-8
        shares = shares / shares.sum(dim=1, keepdim=True)  # wrong: AS302 divided_by_sum_over_slots
        return shares @ v


def wrong_divided_by_sum_over_slots(B, Lq, L, Dk):
    return CompetingTwice(Lq, Dk), (torch.randn(B, L, Dk),), {}


def right_divided_by_sum_over_slots(B, Lq, L, Dk):
    return Competing(Lq, Dk), (torch.randn(B, L, Dk),), {}


def reference_divided_by_sum_over_slots(module, x):
    weights = softmax(module.k(x) @ module.q(module.slots).mT / x.shape[-1] ** 0.5).mT + 1e-8
    return weights / weights.sum(-1, keepdim=True) @ module.v(x)


def clusters(centres, points, features):
    """Assign points to clusters, and average the features of each cluster."""
    assigned = torch.einsum("bhcd,bhpd->bhpc", centres / centres.size(-1) ** 0.5, points).softmax(dim=-1)
    return torch.einsum("bhpc,bhpd->bhcd", F.normalize(assigned, p=1.0, dim=-2), features)


def clusters_of_shares(centres, points, features):
    assigned = torch.einsum("bhcd,bhpd->bhpc", centres / centres.size(-1) ** 0.5, points).softmax(dim=-1)
    assigned = F.normalize(assigned, p=1.0, dim=-1)  # wrong: AS302 clusters_normalised_twice
    return torch.einsum("bhpc,bhpd->bhcd", assigned, features)


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_clusters_normalised_twice(B, H, Lq, Lk, Dk):
    return clusters_of_shares, _heads(B, H, Lq, Lk, Dk), {}


def right_clusters_normalised_twice(B, H, Lq, Lk, Dk):
    return clusters, _heads(B, H, Lq, Lk, Dk), {}


def reference_clusters_normalised_twice(function, centres, points, features):
    weights = softmax(points @ centres.mT / centres.shape[-1] ** 0.5).mT
    return weights / weights.sum(-1, keepdim=True) @ features


class Sink(nn.Module):
    """Each head has a learned sink beside the keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.sink = heads, nn.Parameter(torch.randn(heads, 1, 1))
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def weights(self, scores):
        sinks = self.sink.expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]

    def forward(self, x, memory):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), *self.kv(memory).chunk(2, dim=-1))
        )
        weights = self.weights(q @ k.mT / k.shape[-1] ** 0.5)
        return (weights @ v).transpose(1, 2).flatten(2)


class LateSink(Sink):
    def weights(self, scores):
        weights = scores.softmax(-1)
        return weights / (weights.sum(-1, keepdim=True) + self.sink.exp())  # wrong: AS302 sink_after_softmax


def _sink(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_sink_after_softmax(B, H, Lq, Lk, Dk):
    return _sink(LateSink, B, H, Lq, Lk, Dk)


def right_sink_after_softmax(B, H, Lq, Lk, Dk):
    return _sink(Sink, B, H, Lq, Lk, Dk)


def reference_sink_after_softmax(module, x, memory):
    q, k, v = (split(t, module.heads) for t in (module.q(x), *module.kv(memory).chunk(2, dim=-1)))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / k.shape[-1] ** 0.5
    exponentials = scores.exp()
    return join(exponentials / (exponentials.sum(-1, keepdim=True) + module.sink.exp()) @ v)


def one_more(q, k, v):
    """A softmax whose denominator has a one, for the key of no token."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhij,bhjd->bhid", F.pad(scores, (0, 1)).softmax(dim=-1)[..., :-1], v)


def one_more_late(q, k, v):
    p = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5, dim=-1)
    p = p / (1 + p.sum(dim=-1, keepdim=True))  # wrong: AS302 one_more_after_softmax
    return torch.einsum("bhij,bhjd->bhid", p, v)


def wrong_one_more_after_softmax(B, H, L, Dk):
    return one_more_late, tuple(torch.randn(3, B, H, L, Dk)), {}


def right_one_more_after_softmax(B, H, L, Dk):
    return one_more, tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_one_more_after_softmax(function, q, k, v):
    exponentials = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return exponentials / (exponentials.sum(-1, keepdim=True) + 1) @ v
