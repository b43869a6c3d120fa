"""Weights that are combined with others, scores that are normalised or only choose, and heads that are averaged."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, join, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 8}, {"B": 5, "H": 2, "L": 9, "Dk": 6})
UNUSUAL = [
    ("difference_by_a_number", *SIZES),
    ("gated_top_one", *SIZES),
    ("mixed_with_distances", *SIZES),
    ("chosen_keys", *SIZES),
    ("keys_above_zero", *SIZES),
    ("batch_norm_of_scores", *SIZES),
    ("averaged_heads", *SIZES),
    ("tables_of_even_width", *SIZES),
    ("two_ahead", *SIZES),
]


class Base(nn.Module):
    """`attend` gets query, key and value, (B, H, L, Dk) each."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.query, self.key, self.value, self.out = (nn.Linear(heads * depth, heads * depth) for _ in range(4))

    def project(self, linear, x):
        return linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def logits(self, q, k):
        return q @ k.transpose(-2, -1) / self.depth**0.5

    def forward(self, x, *more):
        context = self.attend(x, *(self.project(w, x) for w in (self.query, self.key, self.value)), *more)
        return self.out(context.transpose(1, 2).flatten(2))


def _case(module, B, H, L, Dk, more=(), claims=()):
    return module(H, Dk), (torch.randn(B, L, H * Dk), *more), {}, list(claims)


def parts(module, x):
    return (split(linear(x), module.heads) for linear in (module.query, module.key, module.value))


class DifferenceByANumber(Base):
    """The difference of two softmaxes with a coefficient that isn't learned."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.query2, self.key2 = (nn.Linear(heads * depth, heads * depth) for _ in range(2))

    def attend(self, x, q, k, v):
        other = self.logits(self.project(self.query2, x), self.project(self.key2, x))
        return (self.logits(q, k).softmax(-1) - 0.4 * other.softmax(-1)) @ v


def case_difference_by_a_number(B, H, L, Dk):
    return _case(DifferenceByANumber, B, H, L, Dk)


def reference_difference_by_a_number(module, x):
    q, k, v = parts(module, x)
    other = attention(split(module.query2(x), module.heads), split(module.key2(x), module.heads), v)
    return module.out(join(attention(q, k, v) - 0.4 * other))


class GatedTopOne(Base):
    """Each query takes the value of one key, times its probability, through which the scores are trained."""

    def attend(self, x, q, k, v):
        weights = self.logits(q, k).softmax(-1)
        best, index = weights.topk(1, dim=-1)
        return torch.zeros_like(weights).scatter_(-1, index, best) @ v


def case_gated_top_one(B, H, L, Dk):
    return _case(GatedTopOne, B, H, L, Dk)


def reference_gated_top_one(module, x):
    q, k, v = parts(module, x)
    weights = softmax(torch.einsum("bhid,bhjd->bhij", q, k) / module.depth**0.5)
    best, index = weights.max(-1)
    return module.out(join(best[..., None] * v.gather(2, index[..., None].expand(*index.shape, v.shape[-1]))))


class MixedWithDistances(Base):
    """Weights, a matrix of neighbours and a function of distances, each with its coefficient."""

    def attend(self, x, q, k, v, neighbours, distances):
        weights = 0.4 * self.logits(q, k).softmax(-1)
        weights = weights + 0.3 * neighbours[:, None]
        return (weights + 0.3 * torch.exp(-distances)[:, None]) @ v


def case_mixed_with_distances(B, H, L, Dk):
    return _case(MixedWithDistances, B, H, L, Dk, (torch.rand(B, L, L), 3 * torch.rand(B, L, L)))


def reference_mixed_with_distances(module, x, neighbours, distances):
    q, k, v = parts(module, x)
    graph = 0.3 * (neighbours + (-distances).exp()).unsqueeze(1)
    return module.out(join(0.4 * attention(q, k, v) + torch.einsum("bhij,bhjd->bhid", graph.expand(-1, 1, -1, -1), v)))


class ChosenKeys(Base):
    """Other queries and keys choose which keys are attended to, and get no gradient."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.ask, self.offer = nn.Linear(heads * depth, 3), nn.Linear(heads * depth, 3)

    def attend(self, x, q, k, v):
        index = (self.ask(x) @ self.offer(x).transpose(-2, -1)).topk(3, dim=-1).indices
        chosen = torch.zeros(*x.shape[:2], x.shape[1], dtype=torch.bool).scatter_(-1, index, True)
        return self.logits(q, k).masked_fill(~chosen[:, None], -torch.inf).softmax(-1) @ v


def case_chosen_keys(B, H, L, Dk):
    return _case(ChosenKeys, B, H, L, Dk)


class KeysAboveZero(Base):
    """A comparison chooses the keys, besides each query's own."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.gate = nn.Linear(heads * depth, 1)

    def attend(self, x, q, k, v):
        kept = (self.gate(x.detach()) > 0).transpose(1, 2) | torch.eye(x.shape[1], dtype=torch.bool)
        return self.logits(q, k).masked_fill(~kept[:, None], -torch.inf).softmax(-1) @ v


def case_keys_above_zero(B, H, L, Dk):
    return _case(KeysAboveZero, B, H, L, Dk)


class BatchNormOfScores(Base):
    """A batch norm brings the scores to one magnitude."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.norm = nn.BatchNorm2d(heads)

    def attend(self, x, q, k, v):
        return self.norm(q @ k.transpose(-2, -1)).softmax(-1) @ v


def case_batch_norm_of_scores(B, H, L, Dk):
    return _case(BatchNormOfScores, B, H, L, Dk)


class AveragedHeads(nn.Module):
    """Each head is an attention of its own with common values, and their mean is projected."""

    def __init__(self, heads, depth):
        super().__init__()
        self.depth = depth
        self.queries, self.keys = (
            nn.ModuleList(nn.Linear(heads * depth, depth) for _ in range(heads)) for _ in range(2)
        )
        self.value, self.out = nn.Linear(heads * depth, depth), nn.Linear(depth, heads * depth)

    def forward(self, x):
        value = self.value(x)
        heads = []
        for query, key in zip(self.queries, self.keys, strict=True):
            scores = query(x) @ key(x).transpose(-2, -1) / self.depth**0.5
            heads.append(scores.softmax(-1) @ value)
        return self.out(torch.stack(heads, dim=2).mean(dim=2))


def case_averaged_heads(B, H, L, Dk):
    return AveragedHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_averaged_heads(module, x):
    pairs = zip(module.queries, module.keys, strict=True)
    heads = [attention(query(x), key(x), module.value(x)) for query, key in pairs]
    return module.out(sum(heads) / len(heads))


class TablesOfEvenWidth(Base):
    """Tables of angles whose features are paired by halves; for an odd width the last feature is cut off."""

    def rotate(self, x):
        half = (self.depth + 1) // 2
        angles = torch.arange(x.shape[-2])[:, None] / 50 ** (torch.arange(half) / half)
        cos, sin = (table.repeat(1, 2)[:, : self.depth].to(x.dtype) for table in (angles.cos(), angles.sin()))
        turned = torch.cat((-x[..., self.depth // 2 :], x[..., : self.depth // 2]), dim=-1)
        return x * cos + turned * sin

    def attend(self, x, q, k, v):
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)


def case_tables_of_even_width(B, H, L, Dk):
    return _case(TablesOfEvenWidth, B, H, L, Dk, claims=["rope=half"])


class TwoAhead(Base):
    """Heads for the tokens that follow read these tokens up to their own target, and end earlier."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.joins = nn.ModuleList(nn.Linear(2 * heads * depth, heads * depth) for _ in range(2))

    def attend(self, x, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        states = [super().forward(x)]
        for ahead, joined in enumerate(self.joins, 1):
            states.append(joined(torch.cat([states[-1][:, :-1], x[:, ahead:]], dim=-1)))
        return states


def case_two_ahead(B, H, L, Dk):
    return _case(TwoAhead, B, H, L, Dk, claims=["causal"])


def reference_two_ahead(module, x):
    length = x.shape[1]
    hidden = torch.arange(length)[:, None] < torch.arange(length)
    q, k, v = parts(module, x)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / module.depth**0.5
    state = module.out(join(softmax(scores.masked_fill(hidden, -torch.inf)) @ v))
    second = module.joins[0](torch.cat([state[:, :-1], x[:, 1:]], -1))
    return [state, second, module.joins[1](torch.cat([second[:, :-1], x[:, 2:]], -1))]
