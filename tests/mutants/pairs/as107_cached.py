"""AS107: a cache of keys and values in chunks is cut to the last keys, and to other values."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 3, "L": 11, "Dk": 5}, {"B": 5, "H": 4, "L": 13, "Dk": 7}, {"B": 3, "H": 2, "L": 17, "Dk": 8})
PAIRS = [
    ("AS107", "first_values_kept", *SIZES),
    ("AS107", "values_kept_too_long", *SIZES),
    ("AS107", "values_of_the_first_chunk", *SIZES),
]
CHUNK = 3


class Stream(nn.Module):
    """Each chunk attends to itself and to the chunk before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def cut(self, k, v):
        return k[:, :, -CHUNK:], v[:, :, -CHUNK:]

    def forward(self, x):
        cache, contexts = None, []
        for part in x.split(CHUNK, dim=1):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(part).chunk(3, -1))
            if cache is not None:
                k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
            cache = self.cut(k, v)
            contexts.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return torch.cat(contexts, dim=1)


class FirstKept(Stream):
    def cut(self, k, v):
        return k[:, :, -CHUNK:], v[:, :, :CHUNK]


class Rolled(Stream):
    def cut(self, k, v):
        return k.narrow(2, k.size(2) - CHUNK, CHUNK), v.narrow(2, max(v.size(2) - 2 * CHUNK, 0), CHUNK)


class ByNames(nn.Module):
    """The same, with a dictionary for a cache and scores of its own."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def keep(self, cache, k, v):
        cache.update(k=k, v=v)

    def forward(self, x):
        cache, contexts = {}, []
        for part in x.split(CHUNK, dim=1):
            q, own_k, own_v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(part).chunk(3, -1))
            k = torch.cat([cache.get("k", own_k[:, :, :0]), own_k], dim=2)
            v = torch.cat([cache.get("v", own_v[:, :, :0]), own_v], dim=2)
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
            contexts.append((weights @ v).transpose(1, 2).flatten(2))
            self.keep(cache, own_k, own_v)
        return torch.cat(contexts, dim=1)


class ByNamesOnce(ByNames):
    def keep(self, cache, k, v):
        cache["k"] = k
        cache.setdefault("v", v)


def _stream(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_first_values_kept(B, H, L, Dk):
    return _stream(FirstKept, B, H, L, Dk)


def right_first_values_kept(B, H, L, Dk):
    return _stream(Stream, B, H, L, Dk)


def wrong_values_kept_too_long(B, H, L, Dk):
    return _stream(Rolled, B, H, L, Dk)


def right_values_kept_too_long(B, H, L, Dk):
    return _stream(Stream, B, H, L, Dk)


def wrong_values_of_the_first_chunk(B, H, L, Dk):
    return _stream(ByNamesOnce, B, H, L, Dk)


def right_values_of_the_first_chunk(B, H, L, Dk):
    return _stream(ByNames, B, H, L, Dk)


def reference_first_values_kept(module, x):
    q, k, v = (split(t, module.heads) for t in torch.einsum("bli,oi->blo", x, module.qkv.weight).chunk(3, -1))
    chunk = torch.arange(x.shape[1]) // CHUNK
    behind = chunk[:, None] - chunk
    return join(attention(q, k, v, keep=(behind == 0) | (behind == 1)))


reference_values_kept_too_long = reference_values_of_the_first_chunk = reference_first_values_kept
