"""AS108: the values are projected from another input than the keys."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, multihead, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
PAIRS = [
    ("AS108", "values_of_the_target", *SIZES),
    ("AS108", "keys_of_the_target", *SIZES),
    ("AS108", "streams_exchanged", *SIZES),
]


class Cross(nn.Module):
    """Attends from a target to a source."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)

    def split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def values(self, target, source):
        return self.value(source)

    def forward(self, target, source):
        q, k = self.split(self.query(target)), self.split(self.key(source))
        v = self.split(self.values(target, source))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class ValuesOfTarget(Cross):
    def values(self, target, source):
        return self.value(target)  # wrong: AS108 values_of_the_target


def _two(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}


def wrong_values_of_the_target(B, H, L, Dk):
    return _two(ValuesOfTarget, B, H, L, Dk)


def right_values_of_the_target(B, H, L, Dk):
    return _two(Cross, B, H, L, Dk)


def reference_values_of_the_target(module, target, source):
    return module.out(multihead(module.query(target), module.key(source), module.value(source), module.heads))


class Fused(Cross):
    def keys(self, target, source):
        return self.key(source)

    def forward(self, target, source):
        q, k = self.split(self.query(target)), self.split(self.keys(target, source))
        v = self.split(self.value(source))  # wrong: AS108 keys_of_the_target
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class KeysOfTarget(Fused):
    def keys(self, target, source):
        return self.key(target)


def wrong_keys_of_the_target(B, H, L, Dk):
    return _two(KeysOfTarget, B, H, L, Dk)


def right_keys_of_the_target(B, H, L, Dk):
    return _two(Fused, B, H, L, Dk)


def reference_keys_of_the_target(module, target, source):
    return reference_values_of_the_target(module, target, source)


class Streams(nn.Module):
    """Two streams that attend to each other, with fused projections of keys and values."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.kv = nn.Linear(d_model, 2 * d_model, bias=False)

    def keys_and_values(self, text, image):
        return self.kv(image).chunk(2, dim=-1)

    def forward(self, text, image):
        k, v = self.keys_and_values(text, image)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (self.q(text), k, v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class ExchangedStreams(Streams):
    def keys_and_values(self, text, image):
        k, _ = self.kv(image).chunk(2, dim=-1)
        _, v = self.kv(text).chunk(2, dim=-1)  # wrong: AS108 streams_exchanged
        return k, v


def wrong_streams_exchanged(B, H, L, Dk):
    return _two(ExchangedStreams, B, H, L, Dk)


def right_streams_exchanged(B, H, L, Dk):
    return _two(Streams, B, H, L, Dk)


def reference_streams_exchanged(module, text, image):
    q, k, v = (split(t, module.heads) for t in (module.q(text), *module.kv(image).chunk(2, dim=-1)))
    return join(attention(q, k, v))
