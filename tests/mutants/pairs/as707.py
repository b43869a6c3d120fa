"""AS707: a bias is laid along the wrong axis."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS707", "key_bias_over_queries", *SELF),
    ("AS707", "heads_over_batch", *SELF),
    ("AS707", "alibi_over_queries", *SELF),
    ("AS707", "functional_column", *SELF),
    ("AS707", "distance_with_the_wrong_sign", *SELF),
    ("AS707", "slopes_heads_first", *SELF),
]


class RightKeyBias(nn.Module):
    """Each token has a number that draws attention to it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def laid(self, key_bias):
        return key_bias[:, None, None, :]

    def forward(self, x, key_bias):
        B, L, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D // self.heads)
        weights = (scores + self.laid(key_bias)).softmax(dim=-1)
        return x + self.proj((weights @ v).transpose(1, 2).reshape(B, L, D))


class WrongKeyBias(RightKeyBias):
    def laid(self, key_bias):
        return key_bias[:, None, :, None]  # wrong: AS707 key_bias_over_queries


def _key_bias_over_queries(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L)), {}, ["key_bias=bias"]


def wrong_key_bias_over_queries(B, H, L, Dk):
    return _key_bias_over_queries(WrongKeyBias, B, H, L, Dk)


def right_key_bias_over_queries(B, H, L, Dk):
    return _key_bias_over_queries(RightKeyBias, B, H, L, Dk)


def reference_key_bias_over_queries(module, x, key_bias):
    q, k, v = fused(module.norm(x), module.qkv, module.heads)
    return x + merge(attend(q, k, v, bias=key_bias[:, None, None]), module.proj)


class RightHeadBias(nn.Module):
    """Batch and heads are folded, the batch outermost; the bias has a map for each head."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def fold(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).flatten(0, 1)

    def spread(self, position_bias, B):
        return position_bias.repeat(B, 1, 1)

    def forward(self, x, position_bias):
        q, k, v = self.fold(self.wq(x)), self.fold(self.wk(x)), self.fold(self.wv(x))
        scores = torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5
        weights = F.softmax(scores + self.spread(position_bias, x.size(0)), dim=-1)
        return self.wo(torch.bmm(weights, v).unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2))


class WrongHeadBias(RightHeadBias):
    def spread(self, position_bias, B):
        return position_bias.repeat_interleave(B, dim=0)  # wrong: AS707 heads_over_batch


def _heads_over_batch(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(H, L, L)), {}, ["position_bias=bias"]


def wrong_heads_over_batch(B, H, L, Dk):
    return _heads_over_batch(WrongHeadBias, B, H, L, Dk)


def right_heads_over_batch(B, H, L, Dk):
    return _heads_over_batch(RightHeadBias, B, H, L, Dk)


def reference_heads_over_batch(module, x, position_bias):
    q, k, v = (heads(x, p, module.n_heads) for p in (module.wq, module.wk, module.wv))
    return merge(attend(q, k, v, bias=position_bias), module.wo)


class RightBloom(nn.Module):
    """The keys' positions times a slope: the same as a distance, as softmax sees it."""

    def __init__(self, hidden_size, n_head):
        super().__init__()
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def alibi(self, slopes, position):
        return slopes[:, None, None] * position[None, None, :]

    def forward(self, hidden_states):
        B, L, _ = hidden_states.shape
        fused_qkv = self.query_key_value(hidden_states).view(B, L, 3, self.n_head, self.head_dim)
        q, k, v = (fused_qkv[:, :, i].transpose(1, 2) for i in range(3))
        slopes = 2.0 ** (-8.0 / self.n_head * torch.arange(1, self.n_head + 1, device=q.device, dtype=q.dtype))
        alibi = self.alibi(slopes, torch.arange(L, device=q.device, dtype=q.dtype))
        scores = alibi + q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        causal = torch.ones(L, L, dtype=torch.bool, device=q.device).triu(1)
        probs = scores.masked_fill(causal, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.dense((probs @ v).transpose(1, 2).reshape(B, L, -1))


class WrongBloom(RightBloom):
    def alibi(self, slopes, position):
        return slopes[:, None, None] * position[None, :, None]  # wrong: AS707 alibi_over_queries


def _alibi_over_queries(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_alibi_over_queries(B, H, L, Dk):
    return _alibi_over_queries(WrongBloom, B, H, L, Dk)


def right_alibi_over_queries(B, H, L, Dk):
    return _alibi_over_queries(RightBloom, B, H, L, Dk)


def reference_alibi_over_queries(module, hidden_states):
    L, H = hidden_states.shape[1], module.n_head
    q, k, v = fused(hidden_states, module.query_key_value, H)
    back = torch.tensor([[i - j for j in range(L)] for i in range(L)], dtype=torch.float64)
    bias = torch.stack([-(2.0 ** (-8 * (h + 1) / H)) * back for h in range(H)])
    return merge(attend(q, k, v, visible(L, L), bias), module.dense)


def row_of_decay(q, k, v, decay):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    scores = scores + decay[None, :]
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def column_of_decay(q, k, v, decay):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    scores = scores + decay[:, None]  # wrong: AS707 functional_column
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def _functional_column(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {"decay": torch.randn(L)}, ["decay=bias"]


def wrong_functional_column(B, H, L, Dk):
    return _functional_column(column_of_decay, B, H, L, Dk)


def right_functional_column(B, H, L, Dk):
    return _functional_column(row_of_decay, B, H, L, Dk)


def reference_functional_column(function, q, k, v, decay):
    return attend(q, k, v, bias=decay)


class RightTable(nn.Module):
    """Each head has a number for every distance to an earlier key."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.table = nn.Embedding(64, num_heads)

    def distance(self, length):
        i, j = torch.arange(length)[:, None], torch.arange(length)
        return (i - j).clamp(min=0)

    def forward(self, x):
        length = x.shape[1]
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        bias = self.table(self.distance(length)).permute(2, 0, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class WrongTable(RightTable):
    def distance(self, length):
        i, j = torch.arange(length)[:, None], torch.arange(length)
        return (j - i).clamp(min=0)


def _distance_with_the_wrong_sign(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_distance_with_the_wrong_sign(B, H, L, Dk):
    return _distance_with_the_wrong_sign(WrongTable, B, H, L, Dk)


def right_distance_with_the_wrong_sign(B, H, L, Dk):
    return _distance_with_the_wrong_sign(RightTable, B, H, L, Dk)


def reference_distance_with_the_wrong_sign(module, x):
    length = x.shape[1]
    q, k, v = fused(x, module.qkv, module.num_heads)
    bias = torch.zeros(module.num_heads, length, length, dtype=x.dtype)
    for i in range(length):
        for j in range(i + 1):
            bias[:, i, j] = module.table.weight[i - j]
    return attend(q, k, v, visible(length, length), bias=bias).transpose(1, 2).flatten(2)


class RightSlopes(nn.Module):
    """Heads are folded behind the batch, and each has a slope."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)

    def slopes(self, batch):
        return (2.0 ** -torch.arange(1, self.n_heads + 1)).repeat(batch)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, self.n_heads, 3, -1).permute(3, 0, 2, 1, 4).flatten(1, 2)
        slopes = self.slopes(batch).to(x.dtype)
        alibi = slopes[:, None, None] * torch.arange(length, dtype=x.dtype)
        scores = torch.baddbmm(alibi, q, k.mT, alpha=q.shape[-1] ** -0.5)
        weights = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        return (weights @ v).view(batch, self.n_heads, length, -1).transpose(1, 2).flatten(2)


class WrongSlopes(RightSlopes):
    def slopes(self, batch):
        return (2.0 ** -torch.arange(1, self.n_heads + 1)).repeat_interleave(batch)  # wrong: AS707 slopes_heads_first


def _slopes_heads_first(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "alibi"]


def wrong_slopes_heads_first(B, H, L, Dk):
    return _slopes_heads_first(WrongSlopes, B, H, L, Dk)


def right_slopes_heads_first(B, H, L, Dk):
    return _slopes_heads_first(RightSlopes, B, H, L, Dk)


def reference_slopes_heads_first(module, x):
    batch, length, _ = x.shape
    q, k, v = module.qkv(x).view(batch, length, module.n_heads, 3, -1).permute(3, 0, 2, 1, 4)
    rates = torch.tensor([2.0**-head for head in range(1, module.n_heads + 1)], dtype=x.dtype)
    steps = torch.arange(length)[:, None] - torch.arange(length)
    bias = -rates[:, None, None] * steps
    return attend(q, k, v, visible(length, length), bias=bias).transpose(1, 2).flatten(2)
