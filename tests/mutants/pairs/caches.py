"""Families 1 and 8 in attention with a cache: whether it is used, returned with what is new, and joined in order."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 3, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS802", "past_value_twice", *PAST),
    ("AS905", "past_value_returned", *PAST),
    ("AS905", "returned_from_the_start", *PAST),
    ("AS905", "tuple_of_layers", *PAST),
    ("AS111", "new_tokens_viewed", *PAST),
    ("AS103", "new_tokens_convolved", *PAST),
    ("AS104", "new_tokens_standardised", *PAST),
    ("AS105", "new_tokens_as_image", *PAST),
    ("AS113", "new_tokens_cut_by_rows", *PAST),
]


class Cached(nn.Module):
    """New tokens attend to cached ones and to each other."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)

    def before(self, x):
        return x

    def parts(self, qkv):
        return qkv.chunk(3, dim=-1)

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def joined(self, past_key, past_value, k, v):
        return torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)

    def forward(self, x, past_key, past_value):
        q, k, v = (self.split(t) for t in self.parts(self.qkv(self.before(x))))
        k, v = self.joined(past_key, past_value, k, v)
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


def _case(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)), {}


def right_past_value_twice(B, H, L, Lp, Dk):
    return _case(Cached, B, H, L, Lp, Dk)


def reference_past_value_twice(module, x, past_key, past_value):
    q, k, v = fused(x, module.qkv, module.n_heads)
    return merge(attend(q, torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)))


class PastValueTwice(Cached):
    def joined(self, past_key, past_value, k, v):
        return torch.cat((past_value, k), dim=2), torch.cat((past_value, v), dim=2)  # wrong: AS802 past_value_twice


class NewTokensViewed(Cached):
    def split(self, t):
        return t.reshape(t.shape[0], self.n_heads, t.shape[1], -1)  # wrong: AS111 new_tokens_viewed


class NewTokensCutByRows(Cached):
    def parts(self, qkv):
        return qkv.view(qkv.shape[0], 3, qkv.shape[1], -1).unbind(1)  # wrong: AS113 new_tokens_cut_by_rows


def wrong_past_value_twice(B, H, L, Lp, Dk):
    return _case(PastValueTwice, B, H, L, Lp, Dk)


def wrong_new_tokens_viewed(B, H, L, Lp, Dk):
    return _case(NewTokensViewed, B, H, L, Lp, Dk)


def wrong_new_tokens_cut_by_rows(B, H, L, Lp, Dk):
    return _case(NewTokensCutByRows, B, H, L, Lp, Dk)


right_new_tokens_viewed = right_new_tokens_cut_by_rows = right_past_value_twice
reference_new_tokens_viewed = reference_new_tokens_cut_by_rows = reference_past_value_twice


class Depthwise(Cached):
    """Each feature is scaled by a kernel of one token."""

    def __init__(self, width, n_heads):
        super().__init__(width, n_heads)
        self.kernel = nn.Parameter(torch.randn(width, 1, 1))

    def before(self, x):
        return F.conv1d(x.mT, self.kernel, groups=x.shape[-1]).mT


class NewTokensConvolved(Depthwise):
    def before(self, x):
        kernel = self.kernel[: x.shape[1], 0] * torch.ones(x.shape[1])
        return x + torch.einsum("ij,bjd->bid", kernel, x)  # wrong: AS103 new_tokens_convolved


def wrong_new_tokens_convolved(B, H, L, Lp, Dk):
    return _case(NewTokensConvolved, B, H, L, Lp, Dk)


def right_new_tokens_convolved(B, H, L, Lp, Dk):
    return _case(Depthwise, B, H, L, Lp, Dk)


def reference_new_tokens_convolved(module, x, past_key, past_value):
    return reference_past_value_twice(module, x * module.kernel.flatten(), past_key, past_value)


class Standardised(Cached):
    def before(self, x):
        return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + 1e-5)


class StandardisedOverTokens(Standardised):
    def before(self, x):
        mean = x.mean(dim=1, keepdim=True)  # wrong: AS104 new_tokens_standardised
        return (x - mean) / (x.std(dim=1, keepdim=True) + 1e-5)


def wrong_new_tokens_standardised(B, H, L, Lp, Dk):
    return _case(StandardisedOverTokens, B, H, L, Lp, Dk)


def right_new_tokens_standardised(B, H, L, Lp, Dk):
    return _case(Standardised, B, H, L, Lp, Dk)


def reference_new_tokens_standardised(module, x, past_key, past_value):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) ** 0.5 + 1e-5)
    return reference_past_value_twice(module, x, past_key, past_value)


class Pixels(Cached):
    """Channels come first, as for a convolution of one pixel."""

    def channels(self, x):
        return x.mT

    def before(self, x):
        return self.channels(x).contiguous().mT


class PixelsByReshape(Pixels):
    def channels(self, x):
        return x.reshape(x.shape[0], x.shape[2], x.shape[1])  # wrong: AS105 new_tokens_as_image


def wrong_new_tokens_as_image(B, H, L, Lp, Dk):
    return _case(PixelsByReshape, B, H, L, Lp, Dk)


def right_new_tokens_as_image(B, H, L, Lp, Dk):
    return _case(Pixels, B, H, L, Lp, Dk)


reference_new_tokens_as_image = reference_past_value_twice


class Returning(nn.Module):
    """Returns the cache of the last tokens first, and then the context."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def cache(self, past_key, past_value, keys, values):
        length = past_key.shape[2]
        return keys[:, :, -length:], values[:, :, -length:]

    def forward(self, x, past_key, past_value):
        q, k, v = (one(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        keys = torch.cat((past_key, k), dim=2)
        values = torch.cat((past_value, v), dim=2)
        context = torch.softmax(q @ keys.mT * q.shape[-1] ** -0.5, dim=-1) @ values
        new_keys, new_values = self.cache(past_key, past_value, keys, values)
        return new_values, new_keys, context.transpose(1, 2).flatten(2)


class PastValueReturned(Returning):
    def cache(self, past_key, past_value, keys, values):
        return keys[:, :, -past_key.shape[2] :], past_value


def wrong_past_value_returned(B, H, L, Lp, Dk):
    return _case(PastValueReturned, B, H, L, Lp, Dk)


def right_past_value_returned(B, H, L, Lp, Dk):
    return _case(Returning, B, H, L, Lp, Dk)


def reference_past_value_returned(module, x, past_key, past_value):
    return torch.cat((past_value, heads(x, module.v, module.n_heads)), 2)[:, :, -past_value.shape[2] :]


class ReturnedFromStart(Returning):
    def cache(self, past_key, past_value, keys, values):
        length = past_key.shape[2]
        return keys[:, :, :length], values[:, :, :length]


def wrong_returned_from_the_start(B, H, L, Lp, Dk):
    return _case(ReturnedFromStart, B, H, L, Lp, Dk)


right_returned_from_the_start = right_past_value_returned
reference_returned_from_the_start = reference_past_value_returned


class Layers(nn.Module):
    """Two layers with a pair of keys and values each, which come and go as a tuple."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))

    def kept(self, past, both):
        return both[:, :, -past.shape[2] :]

    def forward(self, x, past):
        new = []
        for layer, (past_key, past_value) in zip(self.layers, past, strict=True):
            q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in layer(x).chunk(3, dim=-1))
            keys, values = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
            x = x + F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2)
            new.append((self.kept(past_key, keys), self.kept(past_value, values)))
        return tuple(new), x


class LayersStanding(Layers):
    def kept(self, past, both):
        return past


def _layers(cls, B, H, L, Lp, Dk):
    past = tuple((torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)) for _ in range(2))
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), past), {}


def wrong_tuple_of_layers(B, H, L, Lp, Dk):
    return _layers(LayersStanding, B, H, L, Lp, Dk)


def right_tuple_of_layers(B, H, L, Lp, Dk):
    return _layers(Layers, B, H, L, Lp, Dk)


def reference_tuple_of_layers(module, x, past):
    _, k, _ = fused(x, module.layers[0], module.n_heads)
    return torch.cat((past[0][0], k), 2)[:, :, -past[0][0].shape[2] :]
