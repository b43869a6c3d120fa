"""Heads, keys and values that are chosen by scores which get no gradient, or get it elsewhere."""

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ({"B": 4, "H": 5, "L": 8, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8})
UNUSUAL = [
    ("heads_balanced_by_a_bias", *SIZES),
    ("gathered_heads_balanced_by_a_bias", *SIZES),
    ("heads_with_scores_kept", *SIZES),
    ("heads_straight_through", *SIZES),
    ("indexers_of_two_layers", *SIZES),
    ("gathered_keys_of_two_layers", *SIZES),
    ("heads_weighed_by_softmax", *SIZES),
]


class Heads(nn.Module):
    """Each token chooses two of the heads."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.router = nn.Linear(width, 3 * width), nn.Linear(width, n_heads)
        self.balance = nn.Parameter(torch.randn(n_heads))

    def gates(self, x):
        """Only the choice depends on the bias, which is adjusted by the load of each head."""
        scores = self.router(x).sigmoid()
        chosen = (scores + self.balance).topk(2, dim=-1).indices
        return torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return (context * self.gates(x).unsqueeze(-1)).flatten(2)


class GatheredHeads(Heads):
    """The chosen heads are gathered, and multiplied by their scores, in which the bias is left out."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        scores = self.router(x).sigmoid()
        chosen = (scores + self.balance).topk(2, dim=-1).indices
        heads = context.gather(2, chosen.unsqueeze(-1).expand(*chosen.shape, context.shape[-1]))
        return (heads * scores.gather(-1, chosen).unsqueeze(-1)).flatten(2)


class ScoresKept(Heads):
    """The caller adds a loss that trains the router, on the probabilities that the module keeps."""

    def __init__(self, width, n_heads):
        super().__init__(width, n_heads)
        del self.balance

    def gates(self, x):
        self.probabilities = self.router(x).softmax(-1)
        chosen = self.probabilities.topk(2, dim=-1).indices
        return torch.zeros_like(self.probabilities).scatter(-1, chosen, 1.0)


class StraightThrough(ScoresKept):
    def gates(self, x):
        soft = self.router(x).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), self.n_heads).to(soft)
        return hard + soft - soft.detach()


def _case(kind, B, H, L, Dk):
    return kind(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def case_heads_balanced_by_a_bias(B, H, L, Dk):
    return _case(Heads, B, H, L, Dk)


def case_gathered_heads_balanced_by_a_bias(B, H, L, Dk):
    return _case(GatheredHeads, B, H, L, Dk)


def case_heads_with_scores_kept(B, H, L, Dk):
    return _case(ScoresKept, B, H, L, Dk)


def case_heads_straight_through(B, H, L, Dk):
    return _case(StraightThrough, B, H, L, Dk)


class Indexed(nn.Module):
    """An indexer chooses the keys of each token, and is trained on its own."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.index = nn.Linear(width, 3 * width), nn.Linear(width, 6)

    def best(self, x):
        to = self.index(x)
        return (to[..., :3] @ to[..., 3:].mT).topk(4, dim=-1).indices

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool).scatter(-1, self.best(x), False)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Gathered(Indexed):
    """The keys and values that all tokens choose together are gathered."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        best = self.index(x).sum(-1).topk(5, dim=-1).indices[..., None].expand(-1, -1, x.shape[-1])
        k, v = k.gather(1, best), v.gather(1, best)
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def case_indexers_of_two_layers(B, H, L, Dk):
    return nn.Sequential(*(Indexed(H * Dk, H) for _ in range(2))), (torch.randn(B, L, H * Dk),), {}


def case_gathered_keys_of_two_layers(B, H, L, Dk):
    return nn.Sequential(*(Gathered(H * Dk, H) for _ in range(2))), (torch.randn(B, L, H * Dk),), {}


class Weighed(nn.Module):
    """A softmax weighs the results of the heads of each token."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.weigh = nn.Linear(width, 3 * width), nn.Linear(width, n_heads)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        context = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return (context * self.weigh(x).softmax(-1).transpose(1, 2).unsqueeze(-1)).sum(1)


def case_heads_weighed_by_softmax(B, H, L, Dk):
    return _case(Weighed, B, H, L, Dk)
