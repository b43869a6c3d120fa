"""AS310: what is subtracted from the features of keys doesn't cancel."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge, visible

SIZES = ({"B": 2, "H": 4, "L": 7, "Dk": 5}, {"B": 5, "H": 3, "L": 9, "Dk": 4}, {"B": 4, "H": 2, "L": 11, "Dk": 8})
PAIRS = [
    ("AS310", "each_key_by_itself", *SIZES),
    ("AS310", "random_features", *SIZES),
    ("AS310", "running_sums", *SIZES),
]


def kernel(query, key, value):
    """Attend by exponential features, in (B, H, L, Dk)."""
    query = torch.exp(query - query.amax(dim=-1, keepdim=True))
    key = torch.exp(key - key.amax(dim=(-2, -1), keepdim=True))
    return query @ (key.mT @ value) / (query @ key.sum(dim=-2).unsqueeze(-1))


def kernel_by_key(query, key, value):
    """Attend by exponential features, in (B, H, L, Dk)."""
    query = torch.exp(query - query.amax(dim=-1, keepdim=True))
    key = torch.exp(key - key.amax(dim=-1, keepdim=True))  # wrong: AS310 each_key_by_itself
    return query @ (key.mT @ value) / (query @ key.sum(dim=-2).unsqueeze(-1))


def _given(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}


def wrong_each_key_by_itself(B, H, L, Dk):
    return _given(kernel_by_key, B, H, L, Dk)


def right_each_key_by_itself(B, H, L, Dk):
    return _given(kernel, B, H, L, Dk)


def by_sums_of_exponentials(query, key, value, keep=None):
    """The weight of a key is the sum of the exponentials of what its features and the query's add up to."""
    weights = (query[:, :, :, None] + key[:, :, None]).logsumexp(-1).exp()
    weights = weights if keep is None else weights * keep
    return torch.einsum("bhlm,bhmd->bhld", weights / weights.sum(-1, keepdim=True), value)


def reference_each_key_by_itself(_, query, key, value):
    return by_sums_of_exponentials(query, key, value)


class RandomFeatures(nn.Module):
    """Positive random features of the softmax."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("omega", torch.randn(12, width // n_heads))

    def stabiliser(self, exponent):
        return torch.amax(exponent, dim=(1, 3), keepdim=True).detach()

    def exponent(self, linear, x):
        t = linear(x).unflatten(-1, (self.n_heads, -1)) * (x.shape[-1] // self.n_heads) ** -0.25
        return torch.einsum("blhd,md->blhm", t, self.omega) - t.square().sum(-1, keepdim=True) / 2

    def forward(self, x):
        q, k = self.exponent(self.q, x), self.exponent(self.k, x)
        v = self.v(x).unflatten(-1, (self.n_heads, -1))
        q = (q - q.max(dim=-1, keepdim=True).values).exp() + 1e-6
        k = (k - self.stabiliser(k)).exp() + 1e-6
        total = torch.einsum("blhm,bhm->blh", q, k.sum(dim=1))
        context = torch.einsum("blhm,bhmd->blhd", q, torch.einsum("blhm,blhd->bhmd", k, v))
        return self.o((context / total.unsqueeze(-1)).flatten(2))


class RandomFeaturesByKey(RandomFeatures):
    def stabiliser(self, exponent):
        return torch.amax(exponent, dim=3, keepdim=True).detach()  # wrong: AS310 random_features


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_random_features(B, H, L, Dk):
    return _module(RandomFeaturesByKey, B, H, L, Dk)


def right_random_features(B, H, L, Dk):
    return _module(RandomFeatures, B, H, L, Dk)


def reference_random_features(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    q, k = (t * t.shape[-1] ** -0.25 for t in (q, k))
    q, k = (torch.einsum("bhld,md->bhlm", t, module.omega) - t.pow(2).sum(-1, keepdim=True) / 2 for t in (q, k))
    q, k = ((t - t.amax(axes, keepdim=True)).exp() + 1e-6 for t, axes in ((q, -1), (k, (-2, -1))))
    weights = torch.einsum("bhlm,bhnm->bhln", q, k)
    return merge(torch.einsum("bhln,bhnd->bhld", weights / weights.sum(-1, keepdim=True), v), module.o)


class Running(nn.Module):
    """Causal, by running sums."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def features(self, t):
        return (t - t.flatten(2).max(2).values[..., None, None]).exp()

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = (2 * q).exp(), self.features(2 * k)
        total = (q * k.cumsum(dim=2)).sum(dim=-1, keepdim=True)
        state = torch.einsum("bhld,bhle->bhlde", k, v).cumsum(dim=2)
        context = torch.einsum("bhld,bhlde->bhle", q, state) / total
        return self.proj(context.transpose(1, 2).flatten(2))


class RunningByKey(Running):
    def features(self, t):
        return (t - t.max(3, keepdim=True).values).exp()  # wrong: AS310 running_sums


def wrong_running_sums(B, H, L, Dk):
    return _module(RunningByKey, B, H, L, Dk)


def right_running_sums(B, H, L, Dk):
    return _module(Running, B, H, L, Dk)


def reference_running_sums(module, x):
    q, k, v = (
        torch.einsum("bli,hdi->bhld", x, weight.unflatten(0, (module.n_heads, -1)))
        + bias.unflatten(0, (module.n_heads, -1))[:, None]
        for weight, bias in zip(module.qkv.weight.chunk(3), module.qkv.bias.chunk(3), strict=True)
    )
    return merge(by_sums_of_exponentials(2 * q, 2 * k, v, visible(x.shape[1], x.shape[1])), module.proj)
