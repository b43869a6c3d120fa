"""AS302: the weights of all heads are summed, where a result takes them for one distribution."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, project

SIZES = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3, "V": 9},
    {"B": 3, "H": 2, "Lq": 9, "Lk": 8, "Dk": 6, "V": 11},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6, "V": 7},
)
PAIRS = [
    ("AS302", "copied_by_every_head", *SIZES),
    ("AS302", "sum_of_heads_in_logarithms", *SIZES),
    ("AS302", "retrieved_by_every_head", *SIZES),
]


class Copying(nn.Module):
    """Generates a word of the vocabulary, or copies one of the source."""

    def __init__(self, width, n_heads, words):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.vocabulary, self.gate = nn.Linear(width, words), nn.Linear(width, 1)

    def one_distribution(self, weights):
        return weights.mean(dim=1)

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x, memory, words):
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        context = (weights @ v).transpose(1, 2).flatten(2)
        generated, gate = self.vocabulary(context).softmax(dim=-1), torch.sigmoid(self.gate(context))
        copied = (1 - gate) * self.one_distribution(weights)
        return (gate * generated).scatter_add(-1, words[:, None].expand_as(copied), copied)


class CopyingByAll(Copying):
    def one_distribution(self, weights):
        return weights.sum(dim=1)  # wrong: AS302 copied_by_every_head


def _copying(cls, B, H, Lq, Lk, Dk, V):
    return cls(H * Dk, H, V), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), torch.randint(V, (B, Lk))), {}


def wrong_copied_by_every_head(B, H, Lq, Lk, Dk, V):
    return _copying(CopyingByAll, B, H, Lq, Lk, Dk, V)


def right_copied_by_every_head(B, H, Lq, Lk, Dk, V):
    return _copying(Copying, B, H, Lq, Lk, Dk, V)


def _attended(q, k, v):
    exponentials = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return weights, torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)


def _mixed(gate, generated, copied, words):
    exponentials = generated.exp()
    one_hot = (words[..., None] == torch.arange(generated.shape[-1])).to(copied.dtype)
    by_word = torch.einsum("bij,bjv->biv", copied, one_hot)
    return gate * exponentials / exponentials.sum(-1, keepdim=True) + (1 - gate) * by_word


def reference_copied_by_every_head(module, x, memory, words):
    inputs = zip((module.query, module.key, module.value), (x, memory, memory), strict=True)
    weights, context = _attended(*(heads(t, linear, module.n_heads) for linear, t in inputs))
    gate = 1 / (1 + torch.exp(-project(context, module.gate)))
    return _mixed(gate, project(context, module.vocabulary), weights.sum(1) / module.n_heads, words)


class InLogarithms(nn.Module):
    """Torch's own attention, and the logarithms of the mixed probabilities."""

    def __init__(self, width, n_heads, words):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.out = nn.Linear(2 * width, words + 1)

    def one_distribution(self, weights):
        return weights.mean(1)

    def forward(self, x, memory, words):
        context, weights = self.attention(x, memory, memory, average_attn_weights=False)
        gate, generated = self.out(torch.cat([x, context], -1)).tensor_split([1], dim=-1)
        by_word = torch.zeros_like(generated).scatter_add(
            2, words.unsqueeze(1).expand(-1, x.shape[1], -1), self.one_distribution(weights)
        )
        return torch.log(gate.sigmoid() * F.softmax(generated, -1) + (-gate).sigmoid() * by_word)


class InLogarithmsOfSum(InLogarithms):
    def one_distribution(self, weights):
        return weights.sum(1)  # wrong: AS302 sum_of_heads_in_logarithms


def wrong_sum_of_heads_in_logarithms(B, H, Lq, Lk, Dk, V):
    return _copying(InLogarithmsOfSum, B, H, Lq, Lk, Dk, V)


def right_sum_of_heads_in_logarithms(B, H, Lq, Lk, Dk, V):
    return _copying(InLogarithms, B, H, Lq, Lk, Dk, V)


def reference_sum_of_heads_in_logarithms(module, x, memory, words):
    own, n_heads = module.attention, module.attention.num_heads
    parts = zip((x, memory, memory), own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3), strict=True)
    projected = [torch.einsum("bli,oi->blo", t, weight) + bias for t, weight, bias in parts]
    weights, context = _attended(*(torch.stack(t.chunk(n_heads, -1), 1) for t in projected))
    features = project(torch.cat([x, project(context, own.out_proj)], -1), module.out)
    gate = 1 / (1 + torch.exp(-features[..., :1]))
    return _mixed(gate, features[..., 1:], weights.sum(1) / n_heads, words).log()


def retrieved(query, key, value, words, generated):
    """Mix the words of retrieved tokens with generated ones, in (B, H, L, Dk)."""
    weights = F.softmax(torch.einsum("bhid,bhjd->bhij", query, key) * query.shape[-1] ** -0.5, dim=-1)
    context = torch.einsum("bhij,bhjd->bhid", weights, value)
    one_hot = F.one_hot(words, generated.shape[-1]).to(weights.dtype)
    mixed = 0.7 * generated.softmax(-1) + 0.3 * (weights.mean(dim=1) @ one_hot)
    return mixed, context


def retrieved_by_all(query, key, value, words, generated):
    """Mix the words of retrieved tokens with generated ones, in (B, H, L, Dk)."""
    weights = F.softmax(torch.einsum("bhid,bhjd->bhij", query, key) * query.shape[-1] ** -0.5, dim=-1)
    context = torch.einsum("bhij,bhjd->bhid", weights, value)
    one_hot = F.one_hot(words, generated.shape[-1]).to(weights.dtype)
    summed = weights.sum(dim=1)  # wrong: AS302 retrieved_by_every_head
    mixed = 0.7 * generated.softmax(-1) + 0.3 * (summed @ one_hot)
    return mixed, context


def _retrieved(function, B, H, Lq, Lk, Dk, V):
    words = torch.randint(V, (B, Lk))
    words[0, 0] = V - 1
    q, k, v = (torch.randn(B, H, length, Dk) for length in (Lq, Lk, Lk))
    return function, (q, k, v, words, torch.randn(B, Lq, V)), {}


def wrong_retrieved_by_every_head(B, H, Lq, Lk, Dk, V):
    return _retrieved(retrieved_by_all, B, H, Lq, Lk, Dk, V)


def right_retrieved_by_every_head(B, H, Lq, Lk, Dk, V):
    return _retrieved(retrieved, B, H, Lq, Lk, Dk, V)


def reference_retrieved_by_every_head(function, query, key, value, words, generated):
    weights, _ = _attended(query, key, value)
    return _mixed(0.7, generated, weights.sum(1) / query.shape[1], words)
