"""AS804: one part of the cached keys and values, such as those of a layer, is never read."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, visible

SIZES = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6, "V": 11},
    {"B": 5, "H": 4, "L": 3, "Lp": 6, "Dk": 8, "V": 13},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4, "V": 17},
)
WITHOUT_TOKENS = tuple({name: size for name, size in sizes.items() if name != "V"} for sizes in SIZES)
PAIRS = [
    ("AS804", "first_layer_for_all", *SIZES),
    ("AS804", "list_of_caches", *WITHOUT_TOKENS),
    ("AS804", "pairs_of_layers", *WITHOUT_TOKENS),
    ("AS804", "keys_for_values", *WITHOUT_TOKENS),
]


class Layer(nn.Module):
    def __init__(self, width, n_heads, number=0):
        super().__init__()
        self.n_heads, self.number = n_heads, number
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, past):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        past_k, past_v = past[self.number]
        k = torch.cat([past_k, k], dim=-2)
        v = torch.cat([past_v, v], dim=-2)  # wrong: AS804 first_layer_for_all
        keep = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril(k.size(-2) - q.size(-2))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return x + self.out(context.transpose(1, 2).flatten(2)), torch.stack([k, v])


class RightModel(nn.Module):
    """Tokens, with the cache of all layers in one tensor: layers, keys and values, B H Lp Dk."""

    def __init__(self, vocabulary, width, n_heads):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(self.layer(width, n_heads, number) for number in range(2))

    def layer(self, width, n_heads, number):
        return Layer(width, n_heads, number)

    def forward(self, tokens, past):
        x, present = self.embedding(tokens), []
        for layer in self.layers:
            x, pair = layer(x, past)
            present.append(pair)
        return x, torch.stack(present)


class WrongModel(RightModel):
    def layer(self, width, n_heads, number):
        return Layer(width, n_heads)


def _first_layer_for_all(cls, B, H, L, Lp, Dk, V):
    return cls(V, H * Dk, H), (torch.randint(V, (B, L)), torch.randn(2, 2, B, H, Lp, Dk)), {}, ["causal"]


def wrong_first_layer_for_all(B, H, L, Lp, Dk, V):
    return _first_layer_for_all(WrongModel, B, H, L, Lp, Dk, V)


def right_first_layer_for_all(B, H, L, Lp, Dk, V):
    return _first_layer_for_all(RightModel, B, H, L, Lp, Dk, V)


def reference_first_layer_for_all(module, tokens, past):
    x = module.embedding.weight[tokens]
    for layer, (keys, values) in zip(module.layers, past, strict=True):
        q, k, v = fused(x, layer.qkv, layer.n_heads)
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        x = x + merge(attend(q, k, v, visible(q.shape[2], k.shape[2])), layer.out)
    return x


class RightDecoder(nn.Module):
    """The caches are a list, one tensor for keys and values of each layer."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(2))

    def attend(self, q, k, v, cache):
        k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)  # wrong: AS804 list_of_caches
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(k.size(2) - q.size(2) + 1)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)

    def cache_of(self, caches, number):
        return caches[number]

    def forward(self, x, caches):
        for number, projection in enumerate(self.projections):
            q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in projection(x).chunk(3, dim=-1))
            x = x + self.attend(q, k, v, self.cache_of(caches, number))
        return x


class WrongDecoder(RightDecoder):
    def cache_of(self, caches, number):
        return caches[0]


def _list_of_caches(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), [torch.randn(2, B, H, Lp, Dk) for _ in range(2)]), {}, ["causal"]


def wrong_list_of_caches(B, H, L, Lp, Dk):
    return _list_of_caches(WrongDecoder, B, H, L, Lp, Dk)


def right_list_of_caches(B, H, L, Lp, Dk):
    return _list_of_caches(RightDecoder, B, H, L, Lp, Dk)


def reference_list_of_caches(module, x, caches):
    for projection, (keys, values) in zip(module.projections, caches, strict=True):
        q, k, v = fused(x, projection, module.n_heads)
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        x = x + merge(attend(q, k, v, visible(q.shape[2], k.shape[2])))
    return x


def in_layers(x, weights, caches, n_heads):
    """The caches are a list of pairs."""
    for weight, (keys, values) in zip(weights, caches, strict=True):
        q, k, v = (t.unflatten(-1, (n_heads, -1)).transpose(1, 2) for t in F.linear(x, weight).chunk(3, dim=-1))
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return x


def in_layers_with_one_cache(x, weights, caches, n_heads):
    """The caches are a list of pairs."""
    (keys, values), *_ = caches
    for weight in weights:
        q, k, v = (t.unflatten(-1, (n_heads, -1)).transpose(1, 2) for t in F.linear(x, weight).chunk(3, dim=-1))
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)  # wrong: AS804 pairs_of_layers
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return x


def _pairs_of_layers(function, B, H, L, Lp, Dk):
    weights = [torch.randn(3 * H * Dk, H * Dk) / (H * Dk) ** 0.5 for _ in range(3)]
    caches = [(torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)) for _ in range(3)]
    return function, (torch.randn(B, L, H * Dk), weights, caches, H), {}


def wrong_pairs_of_layers(B, H, L, Lp, Dk):
    return _pairs_of_layers(in_layers_with_one_cache, B, H, L, Lp, Dk)


def right_pairs_of_layers(B, H, L, Lp, Dk):
    return _pairs_of_layers(in_layers, B, H, L, Lp, Dk)


def reference_pairs_of_layers(_, x, weights, caches, n_heads):
    for weight, (keys, values) in zip(weights, caches, strict=True):
        q, k, v = torch.einsum("bli,chdi->cbhld", x, weight.unflatten(0, (3, n_heads, -1)))
        x = x + merge(attend(q, torch.cat((keys, k), 2), torch.cat((values, v), 2)))
    return x


class RightStep(nn.Module):
    """Keys and values are cached in one tensor, batch first."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def joined(self, past, k, v):
        return torch.cat([past[:, 0], k], dim=-2), torch.cat([past[:, 1], v], dim=-2)

    def forward(self, x, past):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        k, v = self.joined(past, k, v)
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        return project(torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2), self.o)


class WrongStep(RightStep):
    def joined(self, past, k, v):
        return torch.cat([past[:, 0], k], dim=-2), torch.cat([past[:, 0], v], dim=-2)  # wrong: AS804 keys_for_values


def _keys_for_values(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, 2, H, Lp, Dk)), {}


def wrong_keys_for_values(B, H, L, Lp, Dk):
    return _keys_for_values(WrongStep, B, H, L, Lp, Dk)


def right_keys_for_values(B, H, L, Lp, Dk):
    return _keys_for_values(RightStep, B, H, L, Lp, Dk)


def reference_keys_for_values(module, x, past):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    k, v = torch.cat((past[:, 0], k), 2), torch.cat((past[:, 1], v), 2)
    return merge(attend(q, k, v), module.o)
