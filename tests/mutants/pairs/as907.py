"""AS907: layers share one cache, so that each attends to the keys and values of the others, too."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SIZES = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 3, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS907", "one_object_in_a_list", *SIZES),
    ("AS907", "dictionary_without_layers", *SIZES),
    ("AS907", "cache_of_the_model", *SIZES),
]


class Cache:
    """The keys and values (B, H, L, Dk) so far."""

    def __init__(self):
        self.pairs = []

    def add(self, k, v):
        self.pairs.append((k, v))
        return (torch.cat(parts, dim=2) for parts in zip(*self.pairs, strict=True))


def split(x, heads):
    return (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(3, dim=-1))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x, cache):
        q, k, v = split(self.qkv(x), self.heads)
        k, v = cache.add(k, v)  # wrong: AS907 one_object_in_a_list
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Reads a prompt, and then new tokens."""

    def __init__(self, width, heads):
        super().__init__()
        self.layers = nn.ModuleList(self.layer(width, heads) for _ in range(2))

    def layer(self, width, heads):
        return Layer(width, heads)

    def caches(self):
        return [Cache() for _ in self.layers]

    def forward(self, prompt, new):
        caches = self.caches()
        for x in (prompt, new):
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer(x, cache)
        return x


class OneObject(Model):
    def caches(self):
        return [Cache()] * len(self.layers)


def _case(kind, B, H, L, Lp, Dk):
    return kind(H * Dk, H), (torch.randn(B, Lp, H * Dk), torch.randn(B, L, H * Dk)), {}


def wrong_one_object_in_a_list(B, H, L, Lp, Dk):
    return _case(OneObject, B, H, L, Lp, Dk)


def right_one_object_in_a_list(B, H, L, Lp, Dk):
    return _case(Model, B, H, L, Lp, Dk)


def reference_one_object_in_a_list(module, prompt, new):
    x, begin = torch.cat((prompt, new), dim=1), prompt.shape[1]
    keep = torch.tensor([[i >= begin or j < begin for j in range(x.shape[1])] for i in range(x.shape[1])])
    for layer in module.layers:
        x = x + merge(attend(*fused(x, layer.qkv, layer.heads), keep=keep))
    return x[:, begin:]


class Keyed(Layer):
    """The cache is a dictionary of tensors (B, L, H, Dk)."""

    def forward(self, x, cache):
        values = dict(zip(("q", "k", "v"), self.qkv(x).chunk(3, dim=-1), strict=True))
        q, k, v = (value.unflatten(-1, (self.heads, -1)) for value in values.values())
        for name, new in (("k", k), ("v", v)):
            known = cache.get(name, new[:, :0])
            cache[name] = torch.cat([known, new], dim=1)  # wrong: AS907 dictionary_without_layers
        weights = torch.einsum("bihd,bjhd->bhij", q, cache["k"]).mul(q.shape[-1] ** -0.5).softmax(-1)
        return x + torch.einsum("bhij,bjhd->bihd", weights, cache["v"]).flatten(2)


class KeyedModel(Model):
    def layer(self, width, heads):
        return Keyed(width, heads)

    def caches(self):
        return [{} for _ in self.layers]


class KeyedForAll(KeyedModel):
    def caches(self):
        return [{}] * len(self.layers)


def wrong_dictionary_without_layers(B, H, L, Lp, Dk):
    return _case(KeyedForAll, B, H, L, Lp, Dk)


def right_dictionary_without_layers(B, H, L, Lp, Dk):
    return _case(KeyedModel, B, H, L, Lp, Dk)


class Holder(Layer):
    """The layer has its cache."""

    def begin(self, cache):
        self.cache = cache

    def forward(self, x, _):
        q, k, v = split(self.qkv(x), self.heads)
        keys, values = self.cache.add(k, v)  # wrong: AS907 cache_of_the_model
        return x + ((q @ keys.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ values).transpose(1, 2).flatten(2)


class HoldingModel(Model):
    def layer(self, width, heads):
        return Holder(width, heads)

    def caches(self):
        for layer in self.layers:
            layer.begin(Cache())
        return [None, None]


class HoldingOne(HoldingModel):
    def caches(self):
        cache = Cache()
        for layer in self.layers:
            layer.begin(cache)
        return [None, None]


def wrong_cache_of_the_model(B, H, L, Lp, Dk):
    return _case(HoldingOne, B, H, L, Lp, Dk)


def right_cache_of_the_model(B, H, L, Lp, Dk):
    return _case(HoldingModel, B, H, L, Lp, Dk)


reference_dictionary_without_layers = reference_cache_of_the_model = reference_one_object_in_a_list
