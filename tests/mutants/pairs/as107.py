"""AS107: keys and values are in different orders."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead, split

SIZES = ({"B": 7, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 8},
    {"B": 5, "H": 6, "L": 9, "Lp": 7, "Dk": 4},
    {"B": 6, "H": 3, "L": 10, "Lp": 8, "Dk": 5},
)
MAP = (
    {"B": 4, "Nh": 7, "Nw": 5, "H": 3, "Dk": 6},
    {"B": 5, "Nh": 4, "Nw": 9, "H": 2, "Dk": 8},
    {"B": 6, "Nh": 5, "Nw": 8, "H": 4, "Dk": 3},
)
PAIRS = [
    ("AS107", "class_token_last", *SIZES),
    ("AS107", "cached_keys_last", *PAST),
    ("AS107", "memory_slots", *SIZES),
    ("AS107", "keys_of_other_beams", *PAST),
    ("AS107", "keys_reordered_alone", *PAST),
    ("AS107", "values_of_other_images", *PAST),
    ("AS107", "values_column_by_column", *MAP),
]


class ClassAttention(nn.Module):
    """A class token that attends to itself and to all patches."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)

    def tokens(self, x, x_cls):
        return self.k(torch.cat((x_cls, x), dim=1))

    def forward(self, x_cls, x):
        q, k = self.heads(self.q(x_cls)), self.heads(self.tokens(x, x_cls))
        v = self.heads(self.v(torch.cat((x_cls, x), dim=1)))
        attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class ClassTokenLast(ClassAttention):
    def tokens(self, x, x_cls):
        return self.k(torch.cat((x, x_cls), dim=1))  # wrong: AS107 class_token_last


def _class(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, 1, H * Dk), torch.randn(B, L, H * Dk)), {}


def wrong_class_token_last(B, H, L, Dk):
    return _class(ClassTokenLast, B, H, L, Dk)


def right_class_token_last(B, H, L, Dk):
    return _class(ClassAttention, B, H, L, Dk)


def reference_class_token_last(module, x_cls, x):
    both = torch.cat([x_cls, x], dim=1)
    return module.proj(multihead(module.q(x_cls), module.k(both), module.v(both), module.num_heads))


class Cached(nn.Module):
    """Self-attention over cached and new tokens, in torch's fused kernel, without a mask."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def keys(self, past, new):
        return torch.cat([past, new], dim=2)

    def forward(self, x, past_key, past_value):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = self.keys(past_key, k), torch.cat([past_value, v], dim=2)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class CachedLast(Cached):
    def keys(self, past, new):
        return torch.cat([new, past], dim=2)  # wrong: AS107 cached_keys_last


def _cached(cls, B, H, L, Lp, Dk):
    past = (torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *past), {}


def wrong_cached_keys_last(B, H, L, Lp, Dk):
    return _cached(CachedLast, B, H, L, Lp, Dk)


def right_cached_keys_last(B, H, L, Lp, Dk):
    return _cached(Cached, B, H, L, Lp, Dk)


def reference_cached_keys_last(module, x, past_key, past_value):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    context = attention(q, torch.cat([past_key, k], 2), torch.cat([past_value, v], 2))
    return module.out(torch.cat(context.unbind(1), dim=-1))


class Memory(nn.Module):
    """One head with learned memory slots before the tokens; products by einsum."""

    def __init__(self, width, slots):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(3))
        self.memory_k, self.memory_v = (nn.Parameter(torch.randn(slots, width)) for _ in range(2))

    def joined(self, memory, tokens):
        return torch.cat([memory.expand(tokens.size(0), -1, -1), tokens], 1)

    def joined_keys(self, memory, tokens):
        return self.joined(memory, tokens)

    def forward(self, x):
        q, k, v = (torch.einsum("bld,de->ble", x, w) for w in (self.wq, self.wk, self.wv))
        k, v = self.joined_keys(self.memory_k, k), self.joined(self.memory_v, v)
        weights = (torch.einsum("bie,bje->bij", q, k) / x.size(-1) ** 0.5).softmax(-1)
        return torch.einsum("bij,bje->bie", weights, v)


class MemoryBehind(Memory):
    def joined_keys(self, memory, tokens):
        return torch.cat([tokens, memory.expand(tokens.size(0), -1, -1)], 1)  # wrong: AS107 memory_slots


def wrong_memory_slots(B, H, L, Dk):
    return MemoryBehind(H * Dk, 4), (torch.randn(B, L, H * Dk),), {}


def right_memory_slots(B, H, L, Dk):
    return Memory(H * Dk, 4), (torch.randn(B, L, H * Dk),), {}


def reference_memory_slots(module, x):
    k, v = (
        torch.cat([memory.expand(x.size(0), -1, -1), x @ w], dim=1)
        for memory, w in ((module.memory_k, module.wk), (module.memory_v, module.wv))
    )
    return attention(x @ module.wq, k, v)


class Beams(nn.Module):
    """One step of a beam search: each beam goes on from the cache of the beam that it was before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))

    def chosen(self, past_keys, past_values, beams):
        return past_keys[beams], past_values[beams]

    def forward(self, x, past_keys, past_values, beams):
        q, k, v = (split(f(x), self.heads) for f in (self.q_proj, self.k_proj, self.v_proj))
        past_keys, past_values = self.chosen(past_keys, past_values, beams)
        k, v = torch.cat([past_keys, k], dim=2), torch.cat([past_values, v], dim=2)
        scores = (q @ k.transpose(2, 3)) / q.shape[-1] ** 0.5
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class KeysOfOtherBeams(Beams):
    def chosen(self, past_keys, past_values, beams):
        return past_keys[beams], past_values  # wrong: AS107 keys_of_other_beams


def _beams(cls, B, H, L, Lp, Dk):
    past = (torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))
    return cls(H * Dk, H), (torch.randn(B, 1, H * Dk), *past, torch.arange(B).roll(1)), {}


def wrong_keys_of_other_beams(B, H, L, Lp, Dk):
    return _beams(KeysOfOtherBeams, B, H, L, Lp, Dk)


def right_keys_of_other_beams(B, H, L, Lp, Dk):
    return _beams(Beams, B, H, L, Lp, Dk)


def reference_keys_of_other_beams(module, x, past_keys, past_values, beams):
    q, k, v = (split(x @ f.weight.T, module.heads) for f in (module.q_proj, module.k_proj, module.v_proj))
    of_beam = [(past_keys[beam], past_values[beam]) for beam in beams.tolist()]
    keys, values = (torch.stack(past) for past in zip(*of_beam, strict=True))
    return torch.cat(attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2)).unbind(1), dim=-1)


def reordered(cache, beams):
    return {name: past.index_select(0, beams) for name, past in cache.items()}


def reordered_keys(cache, beams):
    return {**cache, "k": cache["k"].index_select(0, beams)}  # wrong: AS107 keys_reordered_alone


def step_of_beams(q, cache, beams, reorder):
    cache = reorder(cache, beams)
    return F.scaled_dot_product_attention(q, cache["k"], cache["v"])


def _step(reorder, B, H, L, Lp, Dk):
    cache = {name: torch.randn(B, H, Lp, Dk) for name in "kv"}
    return step_of_beams, (torch.randn(B, H, L, Dk), cache, (torch.arange(B) + 1) % B, reorder), {}


def wrong_keys_reordered_alone(B, H, L, Lp, Dk):
    return _step(reordered_keys, B, H, L, Lp, Dk)


def right_keys_reordered_alone(B, H, L, Lp, Dk):
    return _step(reordered, B, H, L, Lp, Dk)


def reference_keys_reordered_alone(function, q, cache, beams, reorder):
    return attention(q, cache["k"][beams], cache["v"][beams])


class CrossOverImages(nn.Module):
    """Captions attend to images, of which keys and values were computed before; one head."""

    def __init__(self, width):
        super().__init__()
        self.query = nn.Parameter(torch.randn(width, width) / width**0.5)

    def of_captions(self, keys, values, image):
        return (torch.index_select(known, 0, image) for known in (keys, values))

    def forward(self, text, keys, values, image):
        keys, values = self.of_captions(keys, values, image)
        weights = torch.bmm(text @ self.query, keys.mT) * keys.size(-1) ** -0.5
        return torch.bmm(weights.softmax(-1), values)


class KeysInOrder(CrossOverImages):
    def of_captions(self, keys, values, image):
        return keys, torch.index_select(values, 0, image)  # wrong: AS107 values_of_other_images


def _images(cls, B, H, L, Lp, Dk):
    known = (torch.randn(B, Lp, Dk), torch.randn(B, Lp, Dk))
    return cls(Dk), (torch.randn(B, L, Dk), *known, torch.arange(B).flip(0)), {}


def wrong_values_of_other_images(B, H, L, Lp, Dk):
    return _images(KeysInOrder, B, H, L, Lp, Dk)


def right_values_of_other_images(B, H, L, Lp, Dk):
    return _images(CrossOverImages, B, H, L, Lp, Dk)


def reference_values_of_other_images(module, text, keys, values, image):
    return attention(text @ module.query, keys[image], values[image])


class NonLocal(nn.Module):
    """Every pixel of a map attends to all pixels."""

    def __init__(self, channels, inner):
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(channels, inner, 1) for _ in range(3))
        self.back = nn.Conv2d(inner, channels, 1)

    def values(self, x):
        return self.g(x).flatten(2).transpose(1, 2)

    def forward(self, x):
        queries, keys = self.theta(x).flatten(2).transpose(1, 2), self.phi(x).flatten(2)
        affinity = torch.bmm(queries, keys).softmax(dim=-1)
        context = torch.bmm(affinity, self.values(x)).transpose(1, 2)
        return x + self.back(context.reshape(x.shape[0], -1, *x.shape[2:]))


class ValuesByColumns(NonLocal):
    def values(self, x):
        return self.g(x).permute(0, 3, 2, 1).flatten(1, 2)  # wrong: AS107 values_column_by_column


def _map(cls, B, Nh, Nw, H, Dk):
    return cls(H * Dk, Dk), (torch.randn(B, H * Dk, Nh, Nw),), {}


def wrong_values_column_by_column(B, Nh, Nw, H, Dk):
    return _map(ValuesByColumns, B, Nh, Nw, H, Dk)


def right_values_column_by_column(B, Nh, Nw, H, Dk):
    return _map(NonLocal, B, Nh, Nw, H, Dk)


def reference_values_column_by_column(module, x):
    q, k, v = (
        torch.einsum("bcyx,dc->byxd", x, layer.weight[..., 0, 0]).flatten(1, 2) + layer.bias
        for layer in (module.theta, module.phi, module.g)
    )
    context = attention(q, k, v, scale=1.0).unflatten(1, x.shape[2:])
    weight = module.back.weight[..., 0, 0]
    return x + (torch.einsum("byxd,cd->bcyx", context, weight) + module.back.bias[:, None, None])
