"""AS301: the softmax runs along another axis than the one that the values are summed over."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS301", "over_heads", *SIZES),
    ("AS301", "over_queries", *CROSS),
    ("AS301", "folded_first_axis", *CROSS),
    ("AS301", "heads_last_scores", *SIZES),
    ("AS301", "keys_first_scores", *CROSS),
    ("AS301", "over_batch", *SIZES),
]


class BertStyle(nn.Module):
    """The softmax is a separate layer."""

    def __init__(self, hidden_size, heads, dim=-1):
        super().__init__()
        self.heads, self.head_size = heads, hidden_size // heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense, self.norm = nn.Linear(hidden_size, hidden_size), nn.LayerNorm(hidden_size)
        self.softmax = nn.Softmax(dim=dim)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states):
        q, k, v = (self.split(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        context = torch.matmul(self.softmax(scores), v).permute(0, 2, 1, 3).contiguous()
        return self.norm(self.dense(context.view(hidden_states.shape)) + hidden_states)


def wrong_over_heads(B, H, L, Dk):
    return BertStyle(H * Dk, H, dim=1), (torch.randn(B, L, H * Dk),), {}


def right_over_heads(B, H, L, Dk):
    return BertStyle(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_over_heads(module, x):
    context = multihead(module.query(x), module.key(x), module.value(x), module.heads)
    return module.norm(module.dense(context) + x)


class CrossAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def weights(self, scores):
        return torch.softmax(scores, dim=-1)

    def forward(self, x, memory):
        q, k, v = (
            f(t).unflatten(-1, (self.heads, -1)) for f, t in ((self.wq, x), (self.wk, memory), (self.wv, memory))
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        return self.wo(torch.einsum("bhij,bjhd->bihd", self.weights(scores), v).flatten(2))


class CrossAttentionQueries(CrossAttention):
    def weights(self, scores):
        return torch.softmax(scores, dim=-2)  # wrong: AS301 over_queries


def _crossed(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)


def wrong_over_queries(B, H, Lq, Lk, Dk):
    return CrossAttentionQueries(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def right_over_queries(B, H, Lq, Lk, Dk):
    return CrossAttention(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def reference_over_queries(module, x, memory):
    return module.wo(multihead(module.wq(x), module.wk(memory), module.wv(memory), module.heads))


def attend_folded(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attend in (B*H, L, Dk); return the output and the weights."""
    attn = torch.bmm(query * query.size(-1) ** -0.5, key.transpose(1, 2))
    attn = F.softmax(attn, dim=2)
    return torch.bmm(attn, value), attn


def attend_folded_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attend in (B*H, L, Dk); return the output and the weights."""
    attn = torch.bmm(query * query.size(-1) ** -0.5, key.transpose(1, 2))
    attn = F.softmax(attn, dim=0)  # wrong: AS301 folded_first_axis
    return torch.bmm(attn, value), attn


def _folded(B, H, Lq, Lk, Dk):
    return torch.randn(B * H, Lq, Dk), torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, Dk)


def wrong_folded_first_axis(B, H, Lq, Lk, Dk):
    return attend_folded_first, _folded(B, H, Lq, Lk, Dk), {}


def right_folded_first_axis(B, H, Lq, Lk, Dk):
    return attend_folded, _folded(B, H, Lq, Lk, Dk), {}


def reference_folded_first_axis(function, query, key, value):
    return attention(query, key, value)


class ScoresHeadsLast(nn.Module):
    """The scores are (B, queries, keys, H), as broadcasting gives them."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def normalise(self, logits):
        return logits.softmax(dim=2)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, dim=-1))
        logits = (q[:, :, None] * k[:, None]).sum(-1) / math.sqrt(q.shape[-1])
        return (self.normalise(logits)[..., None] * v[:, None]).sum(2).flatten(2)


class ScoresHeadsLastLast(ScoresHeadsLast):
    def normalise(self, logits):
        return logits.softmax(dim=-1)  # wrong: AS301 heads_last_scores


def wrong_heads_last_scores(B, H, L, Dk):
    return ScoresHeadsLastLast(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_heads_last_scores(B, H, L, Dk):
    return ScoresHeadsLast(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_heads_last_scores(module, x):
    return multihead(*module.to_qkv(x).chunk(3, dim=-1), module.heads)


def keys_first(q: Tensor, k: Tensor, v: Tensor, w_out: Tensor) -> Tensor:
    """The scores are (B, H, keys, queries); query, key and value (B, H, L, Dk)."""
    energy = torch.matmul(k, q.transpose(-1, -2)) * q.shape[-1] ** -0.5
    alpha = F.softmax(energy, dim=-2)
    context = torch.matmul(alpha.transpose(-1, -2), v)
    return context.transpose(1, 2).flatten(2) @ w_out


def keys_first_last(q: Tensor, k: Tensor, v: Tensor, w_out: Tensor) -> Tensor:
    """The scores are (B, H, keys, queries); query, key and value (B, H, L, Dk)."""
    energy = torch.matmul(k, q.transpose(-1, -2)) * q.shape[-1] ** -0.5
    alpha = F.softmax(energy, dim=-1)  # wrong: AS301 keys_first_scores
    context = torch.matmul(alpha.transpose(-1, -2), v)
    return context.transpose(1, 2).flatten(2) @ w_out


def _heads(B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return q, k, v, torch.randn(H * Dk, H * Dk)


def wrong_keys_first_scores(B, H, Lq, Lk, Dk):
    return keys_first_last, _heads(B, H, Lq, Lk, Dk), {}


def right_keys_first_scores(B, H, Lq, Lk, Dk):
    return keys_first, _heads(B, H, Lq, Lk, Dk), {}


def reference_keys_first_scores(function, q, k, v, w_out):
    return join(attention(q, k, v)) @ w_out


class SeparateHeads(nn.Module):
    """A list of heads; each normalises its own scores."""

    def __init__(self, heads, depth):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(heads * depth, 3 * depth, bias=False) for _ in range(heads))
        self.out = nn.Linear(heads * depth, heads * depth)

    def head(self, q, k, v):
        scores = torch.einsum("bik,bjk->bij", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bij,bjk->bik", self.normalise(scores), v)

    def normalise(self, scores):
        return F.softmax(scores, dim=2)

    def forward(self, x):
        return x + self.out(torch.cat([self.head(*qkv(x).chunk(3, dim=-1)) for qkv in self.qkv], dim=-1))


class SeparateHeadsBatch(SeparateHeads):
    def normalise(self, scores):
        return F.softmax(scores, dim=0)  # wrong: AS301 over_batch


def wrong_over_batch(B, H, L, Dk):
    return SeparateHeadsBatch(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_over_batch(B, H, L, Dk):
    return SeparateHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_over_batch(module, x):
    heads = [attention(*(x @ w.T for w in qkv.weight.chunk(3))) for qkv in module.qkv]
    return x + module.out(torch.cat(heads, dim=-1))
