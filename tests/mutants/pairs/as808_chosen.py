"""AS808: heads are chosen by scores of their own, and what they return isn't multiplied by these scores."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS808", "heads_scattered_as_ones", *SIZES),
    ("AS808", "heads_above_the_second", *SIZES),
    ("AS808", "best_head_as_one_hot", *SIZES),
    ("AS808", "chosen_heads_averaged", *SIZES),
]


class Heads(nn.Module):
    """Each token chooses two of the heads."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.router = nn.Linear(width, n_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def gates(self, x):
        scores, chosen = self.router(x).sigmoid().topk(2, dim=-1)
        return torch.zeros(*x.shape[:2], self.n_heads, dtype=x.dtype).scatter(-1, chosen, scores)

    def forward(self, x):
        projected = (one(x) for one in (self.query, self.key, self.value))
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in projected)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out((context * self.gates(x)[..., None]).flatten(2))


class Scattered(Heads):
    def gates(self, x):
        chosen = self.router(x).sigmoid().topk(2, dim=-1).indices
        gates = torch.zeros(*x.shape[:2], self.n_heads, dtype=x.dtype)
        return gates.scatter(-1, chosen, 1.0)  # wrong: AS808 heads_scattered_as_ones


class AboveTheSecond(Heads):
    def gates(self, x):
        scores = self.router(x).sigmoid()
        chosen = scores >= scores.topk(2, dim=-1).values[..., -1:]
        return chosen.to(x.dtype)  # wrong: AS808 heads_above_the_second


def _heads(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_heads_scattered_as_ones(B, H, L, Dk):
    return _heads(Scattered, B, H, L, Dk)


def wrong_heads_above_the_second(B, H, L, Dk):
    return _heads(AboveTheSecond, B, H, L, Dk)


def right_heads_scattered_as_ones(B, H, L, Dk):
    return _heads(Heads, B, H, L, Dk)


right_heads_above_the_second = right_heads_scattered_as_ones


def _contexts(module, x):
    return attend(*(heads(x, one, module.n_heads) for one in (module.query, module.key, module.value)))


def reference_heads_scattered_as_ones(module, x):
    scores = 1 / (1 + torch.exp(-project(x, module.router)))
    rank = (scores[..., None, :] > scores[..., None]).sum(-1)
    gates = torch.where(rank < 2, scores, 0.0)
    return merge(_contexts(module, x) * gates.permute(0, 2, 1).unsqueeze(-1), module.out)


reference_heads_above_the_second = reference_heads_scattered_as_ones


class BestHead(nn.Module):
    """Each sequence has the result of one head only, chosen by the mean of its tokens."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.choose = nn.Linear(width, n_heads)

    def weigh(self, probabilities):
        return F.one_hot(probabilities.argmax(-1), self.n_heads) * probabilities

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        context = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        gate = self.weigh(self.choose(x.mean(1)).softmax(-1))
        return torch.einsum("bihd,bh->bid", context, gate)


class HardBestHead(BestHead):
    def weigh(self, probabilities):
        return F.one_hot(probabilities.argmax(-1), self.n_heads).to(probabilities)  # wrong: AS808 best_head_as_one_hot


def _best_head(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_best_head_as_one_hot(B, H, L, Dk):
    return _best_head(HardBestHead, B, H, L, Dk)


def right_best_head_as_one_hot(B, H, L, Dk):
    return _best_head(BestHead, B, H, L, Dk)


def reference_best_head_as_one_hot(module, x):
    qkv = project(x, module.qkv).unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    odds = project(x.mean(1), module.choose).exp()
    share, best = (odds / odds.sum(-1, keepdim=True)).max(-1)
    context = attend(*qkv)
    return torch.stack([context[element, head] * share[element] for element, head in enumerate(best.tolist())])


class GatheredHeads(nn.Module):
    """The three heads with the largest scores are gathered, and summed by these scores."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.score = nn.Parameter(torch.randn(width, n_heads) / width**0.5)

    def combine(self, chosen, scores):
        return (chosen * scores.softmax(-1)[..., None]).sum(2)

    def forward(self, x):
        k, v = self.kv(x).chunk(2, dim=-1)
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (self.q(x), k, v))
        context = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2)
        scores, index = (x @ self.score).topk(3, dim=-1)
        chosen = context.gather(2, index.unsqueeze(-1).expand(*index.shape, context.shape[-1]))
        return self.combine(chosen, scores)


class AveragedHeads(GatheredHeads):
    def combine(self, chosen, scores):
        return chosen.mean(2)


def _gathered(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_chosen_heads_averaged(B, H, L, Dk):
    return _gathered(AveragedHeads, B, H, L, Dk)


def right_chosen_heads_averaged(B, H, L, Dk):
    return _gathered(GatheredHeads, B, H, L, Dk)


def reference_chosen_heads_averaged(module, x):
    k, v = project(x, module.kv).tensor_split(2, dim=-1)
    q, k, v = (one.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for one in (project(x, module.q), k, v))
    scores = torch.einsum("bli,ih->blh", x, module.score)
    rank = (scores[..., None, :] > scores[..., None]).sum(-1)
    odds = torch.where(rank < 3, scores.exp(), 0.0)
    return torch.einsum("bhld,blh->bld", attend(q, k, v), odds / odds.sum(-1, keepdim=True))
