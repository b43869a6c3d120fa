"""AS203: a learned temperature that scales the scores twice."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 8, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 7})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 11, "Dk": 5},
    {"B": 5, "H": 3, "Lq": 7, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS203", "temperature_of_queries_and_scores", *SIZES),
    ("AS203", "logarithm_of_both_sides", *CROSS),
    ("AS203", "divided_in_two_functions", *SIZES),
]


def _unit(t):
    return t / t.square().sum(-1, keepdim=True).sqrt()


class Channels(nn.Module):
    """Cosines of each head, with one learned temperature for each."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.rand(heads, 1, 1) + 1)
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = F.normalize(q, dim=-1)
        weights = (q @ F.normalize(k, dim=-1).mT * self.temperature).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class ScaledChannels(Channels):
    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = F.normalize(q, dim=-1) * self.temperature
        scores = q @ F.normalize(k, dim=-1).mT * self.temperature  # wrong: AS203 temperature_of_queries_and_scores
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


def _channels(cls, B, H, L, Dk):
    return cls(H, Dk), (torch.randn(B, L, H * Dk),), {}


def wrong_temperature_of_queries_and_scores(B, H, L, Dk):
    return _channels(ScaledChannels, B, H, L, Dk)


def right_temperature_of_queries_and_scores(B, H, L, Dk):
    return _channels(Channels, B, H, L, Dk)


def reference_temperature_of_queries_and_scores(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return join(attention(_unit(q) * module.temperature, _unit(k), v, scale=1.0))


class Logarithmic(nn.Module):
    """The logarithm of one scale for all heads is learned, as between images and texts."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.logit_scale = heads, nn.Parameter(torch.tensor(0.7))
        self.image, self.text = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def vectors(self, images, texts):
        return F.normalize(images, dim=-1), F.normalize(texts, dim=-1) * self.logit_scale.exp()

    def forward(self, images, texts):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.image(images), *self.text(texts).chunk(2, dim=-1))
        )
        q, k = self.vectors(q, k)
        return torch.einsum("bhqk,bhkd->bqhd", torch.softmax(q @ k.mT, dim=-1), v).flatten(2)


class LogarithmicTwice(Logarithmic):
    def vectors(self, images, texts):
        scale = self.logit_scale.exp()
        images = F.normalize(images, dim=-1) * scale
        return images, scale * F.normalize(texts, dim=-1)  # wrong: AS203 logarithm_of_both_sides


def _logarithmic(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_logarithm_of_both_sides(B, H, Lq, Lk, Dk):
    return _logarithmic(LogarithmicTwice, B, H, Lq, Lk, Dk)


def right_logarithm_of_both_sides(B, H, Lq, Lk, Dk):
    return _logarithmic(Logarithmic, B, H, Lq, Lk, Dk)


def reference_logarithm_of_both_sides(module, images, texts):
    q, k, v = (split(t, module.heads) for t in (module.image(images), *module.text(texts).chunk(2, dim=-1)))
    return join(attention(_unit(q), _unit(k), v, scale=module.logit_scale.exp()))


class Sharpened(nn.Module):
    """Divides products by a temperature in `weigh`, and passes all else on."""

    def __init__(self, n_heads):
        super().__init__()
        self.tau = nn.Parameter(torch.rand(1, n_heads, 1, 1) + 0.5)

    def weigh(self, products):
        return torch.softmax(torch.div(products, self.tau), dim=-1)

    def attend(self, q, k, v):
        return torch.matmul(self.weigh(torch.matmul(q, k.transpose(2, 3)) / q.size(3) ** 0.5), v)

    def forward(self, q, k, v):
        return self.attend(q, k, v)


class SharpenedTwice(Sharpened):
    def weigh(self, products):
        return torch.softmax(torch.div(products, self.tau), dim=-1)  # wrong: AS203 divided_in_two_functions

    def forward(self, q, k, v):
        return self.attend(q, k / self.tau, v)


def _sharpened(cls, B, H, L, Dk):
    return cls(H), tuple(torch.randn(3, B, H, L, Dk)), {}


def wrong_divided_in_two_functions(B, H, L, Dk):
    return _sharpened(SharpenedTwice, B, H, L, Dk)


def right_divided_in_two_functions(B, H, L, Dk):
    return _sharpened(Sharpened, B, H, L, Dk)


def reference_divided_in_two_functions(module, q, k, v):
    return attention(q / module.tau, k, v)
