"""AS713: linear biases are scaled along with the scores."""

import math

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 3})
PAIRS = [
    ("AS713", "divided_sum", *SELF),
    ("AS713", "addend_of_the_product", *SELF),
    ("AS713", "powers_of_two", *SELF),
    ("AS713", "one_module_for_each_head", *SELF),
]


def slopes(count):
    """Those of the published code, where the number of heads may be no power of two."""
    power = 2 ** int(math.log2(count))
    own, twice = ([2.0 ** (-8 * (head + 1) / number) for head in range(number)] for number in (power, 2 * power))
    return torch.tensor([*own, *twice[::2]][:count])


def behind(length):
    return torch.tensor([[j - i for j in range(length)] for i in range(length)])


def falling(values, length):
    """H L L, entry by entry: minus the slope for each token between the query and the key."""
    return values.double()[:, None, None] * -behind(length).abs()


class RightDecoder(nn.Module):
    """Causal attention with linear biases."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.scale = n_heads, math.sqrt(width // n_heads)
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("slopes", slopes(n_heads)[:, None, None])

    def logits(self, q, k, steps):
        return q @ k.mT / self.scale + self.slopes * steps

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        steps = torch.arange(x.size(1)) - torch.arange(x.size(1))[:, None]
        weights = self.logits(q, k, steps).masked_fill(steps > 0, float("-inf")).softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class WrongDecoder(RightDecoder):
    def logits(self, q, k, steps):
        return (q @ k.mT + self.slopes * steps) / self.scale  # wrong: AS713 divided_sum


def _divided_sum(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_divided_sum(B, H, L, Dk):
    return _divided_sum(WrongDecoder, B, H, L, Dk)


def right_divided_sum(B, H, L, Dk):
    return _divided_sum(RightDecoder, B, H, L, Dk)


def reference_divided_sum(module, x):
    n = x.shape[1]
    q, k, v = fused(x, module.in_proj, module.n_heads)
    bias = falling(slopes(module.n_heads), n).to(q)
    return merge(attend(q, k, v, keep=visible(n, n), bias=bias), module.out_proj)


class RightFolded(nn.Module):
    """Heads are folded into the batch, and the product begins with the bias."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def logits(self, bias, q, k):
        return torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=q.size(-1) ** -0.5)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (w(x).view(B, L, self.n_heads, -1).transpose(1, 2).flatten(0, 1) for w in (self.q, self.k, self.v))
        far = (torch.arange(L)[:, None] - torch.arange(L)).abs()
        rates = 2.0 ** -torch.arange(1, self.n_heads + 1)
        bias = (-rates[:, None, None] * far).repeat(B, 1, 1).to(q.dtype)
        scores = self.logits(bias, q, k)
        return self.o((scores.softmax(-1) @ v).view(B, self.n_heads, L, -1).transpose(1, 2).reshape(B, L, D))


class WrongFolded(RightFolded):
    def logits(self, bias, q, k):
        scores = torch.baddbmm(bias, q, k.transpose(1, 2))  # wrong: AS713 addend_of_the_product
        return scores.mul(q.size(-1) ** -0.5)


def _addend_of_the_product(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_addend_of_the_product(B, H, L, Dk):
    return _addend_of_the_product(WrongFolded, B, H, L, Dk)


def right_addend_of_the_product(B, H, L, Dk):
    return _addend_of_the_product(RightFolded, B, H, L, Dk)


def reference_addend_of_the_product(module, x):
    q, k, v = (heads(x, one, module.n_heads) for one in (module.q, module.k, module.v))
    rates = torch.tensor([0.5 ** (head + 1) for head in range(module.n_heads)])
    return merge(attend(q, k, v, bias=falling(rates, x.shape[1]).to(q)), module.o)


def powers(q, k, v):
    """The softmax is one of powers of two, whose logarithm is part of the factor."""
    n, turns = q.shape[2], 1 / math.log(2)
    bias = slopes(q.shape[1]).to(q)[:, None, None] * (torch.arange(n) - torch.arange(n).unsqueeze(1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * (turns * q.shape[-1] ** -0.5)
    scores = scores.add_(bias * turns)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v)


def powers_of_the_sum(q, k, v):
    n, turns = q.shape[2], 1 / math.log(2)
    bias = slopes(q.shape[1]).to(q)[:, None, None] * (torch.arange(n) - torch.arange(n).unsqueeze(1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores.add_(bias)  # wrong: AS713 powers_of_two
    scores = (scores * (turns * q.shape[-1] ** -0.5)).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf)
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v)


def wrong_powers_of_two(B, H, L, Dk):
    return powers_of_the_sum, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "alibi"]


def right_powers_of_two(B, H, L, Dk):
    return powers, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "alibi"]


def reference_powers_of_two(called, q, k, v):
    n = q.shape[2]
    return attend(q, k, v, keep=visible(n, n), bias=falling(slopes(q.shape[1]), n).to(q))


class RightHead(nn.Module):
    def __init__(self, width, depth, slope):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, depth, bias=False) for _ in range(3))
        self.slope, self.temperature = slope, depth**0.5

    def forward(self, x):
        place = torch.arange(x.shape[-2], dtype=x.dtype)
        scores = self.q(x) @ self.k(x).mT
        scores = scores / self.temperature - self.slope * (place[:, None] - place).abs()
        return scores.softmax(dim=-1) @ self.v(x)


class WrongHead(RightHead):
    def forward(self, x):
        place = torch.arange(x.shape[-2], dtype=x.dtype)
        scores = self.q(x) @ self.k(x).mT
        scores = scores - self.slope * (place[:, None] - place).abs()  # wrong: AS713 one_module_for_each_head
        return (scores / self.temperature).softmax(dim=-1) @ self.v(x)


class Heads(nn.Module):
    def __init__(self, head, width, count):
        super().__init__()
        self.slopes = [2 ** (-8 * (number + 1) / count) for number in range(count)]
        self.heads = nn.ModuleList(head(width, width // count, slope) for slope in self.slopes)
        self.join = nn.Linear(width, width)

    def forward(self, x):
        return self.join(torch.cat([head(x) for head in self.heads], dim=-1))


def _one_module_for_each_head(head, B, H, L, Dk):
    return Heads(head, H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["alibi"]


def wrong_one_module_for_each_head(B, H, L, Dk):
    return _one_module_for_each_head(WrongHead, B, H, L, Dk)


def right_one_module_for_each_head(B, H, L, Dk):
    return _one_module_for_each_head(RightHead, B, H, L, Dk)


def reference_one_module_for_each_head(module, x):
    q, k, v = (torch.stack([getattr(head, name)(x) for head in module.heads], dim=1) for name in "qkv")
    return merge(
        attend(q, k, v, bias=falling(torch.tensor(module.slopes, dtype=torch.float64), x.shape[1]).to(q)), module.join
    )
