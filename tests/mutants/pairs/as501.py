"""AS501: a query sees the future."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
BUCKETS = (
    {"B": 4, "H": 5, "L": 14, "Dk": 6, "W": 7},
    {"B": 5, "H": 6, "L": 12, "Dk": 8, "W": 4},
    {"B": 6, "H": 7, "L": 15, "Dk": 4, "W": 5},
)
PAIRS = [
    ("AS501", "tril_one", *SELF),
    ("AS501", "triu_two", *SELF),
    ("AS501", "no_mask", *SELF),
    ("AS501", "keeps_the_future", *SELF),
    ("AS501", "fused_branch", *SELF),
    ("AS501", "buckets", *BUCKETS),
    ("AS501", "score_of_no_key_first", *SELF),
]


class RightCausal(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.n_embd = n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.ones(block_size, block_size).view(1, 1, block_size, block_size))

    def mask(self, T):
        return torch.tril(self.bias[:, :, :T, :T])

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask(T) == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class WrongCausal(RightCausal):
    def mask(self, T):
        return torch.tril(self.bias[:, :, :T, :T], diagonal=1)  # wrong: AS501 tril_one


def _tril_one(cls, B, H, L, Dk):
    return cls(H * Dk, H, 2 * L), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_tril_one(B, H, L, Dk):
    return _tril_one(WrongCausal, B, H, L, Dk)


def right_tril_one(B, H, L, Dk):
    return _tril_one(RightCausal, B, H, L, Dk)


def reference_tril_one(module, x):
    return merge(attend(*fused(x, module.c_attn, module.n_head), visible(x.shape[1], x.shape[1])), module.c_proj)


def causal_fill(q, k, v):
    L = q.shape[-2]
    hidden = torch.ones(L, L, dtype=torch.bool, device=q.device).triu(diagonal=1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


def leaking_fill(q, k, v):
    L = q.shape[-2]
    hidden = torch.ones(L, L, dtype=torch.bool, device=q.device).triu(diagonal=2)  # wrong: AS501 triu_two
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


def _triu_two(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_triu_two(B, H, L, Dk):
    return _triu_two(leaking_fill, B, H, L, Dk)


def right_triu_two(B, H, L, Dk):
    return _triu_two(causal_fill, B, H, L, Dk)


def reference_triu_two(function, q, k, v):
    return attend(q, k, v, visible(q.shape[2], k.shape[2]))


class RightDecoderBlock(nn.Module):
    """Pre-norm decoder block around its own attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def weights(self, scores):
        causal = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
        return torch.softmax(scores + causal, dim=-1)

    def forward(self, x):
        h = self.ln_1(x)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.projections())
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        x = x + self.o_proj(torch.matmul(self.weights(scores), v).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.ln_2(x))))

    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj


class WrongDecoderBlock(RightDecoderBlock):
    def weights(self, scores):
        return torch.softmax(scores, dim=-1)


def _no_mask(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_no_mask(B, H, L, Dk):
    return _no_mask(WrongDecoderBlock, B, H, L, Dk)


def right_no_mask(B, H, L, Dk):
    return _no_mask(RightDecoderBlock, B, H, L, Dk)


def reference_no_mask(module, x):
    q, k, v = (heads(module.ln_1(x), linear, module.heads) for linear in module.projections())
    x = x + merge(attend(q, k, v, visible(x.shape[1], x.shape[1])), module.o_proj)
    h = project(module.ln_2(x), module.up)
    return x + project(h * torch.sigmoid(h), module.down)


class RightFolded(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def subsequent(self, L, device):
        return torch.triu(torch.ones(L, L, device=device), diagonal=1) == 0

    def forward(self, x):
        B, L, D = x.shape
        qkv = self.in_proj(x).view(B, L, 3, self.n_heads, D // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, B * self.n_heads, L, D // self.n_heads)
        logits = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(D // self.n_heads))
        logits = logits.masked_fill(~self.subsequent(L, x.device), -1e20)
        context = torch.bmm(logits.softmax(dim=2), v).view(B, self.n_heads, L, -1)
        return self.out_proj(context.transpose(1, 2).reshape(B, L, D))


class WrongFolded(RightFolded):
    def subsequent(self, L, device):
        return torch.triu(torch.ones(L, L, device=device)) == 1  # wrong: AS501 keeps_the_future


def _keeps_the_future(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_keeps_the_future(B, H, L, Dk):
    return _keeps_the_future(WrongFolded, B, H, L, Dk)


def right_keeps_the_future(B, H, L, Dk):
    return _keeps_the_future(RightFolded, B, H, L, Dk)


def reference_keeps_the_future(module, x):
    return merge(attend(*fused(x, module.in_proj, module.n_heads), visible(x.shape[1], x.shape[1])), module.out_proj)


class RightTwoBranches(nn.Module):
    """The fused kernel if torch has it, otherwise the same computation by hand."""

    def __init__(self, config_width, config_heads):
        super().__init__()
        self.heads = config_heads
        self.flash = hasattr(F, "scaled_dot_product_attention")
        self.qkv = nn.Linear(config_width, 3 * config_width, bias=False)
        self.out = nn.Linear(config_width, config_width)

    def fused(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if self.flash:
            y = self.fused(q, k, v)
        else:
            att = q @ k.mT / math.sqrt(C // self.heads)
            att = att.masked_fill(torch.ones(T, T, device=x.device).tril() == 0, -math.inf)
            y = att.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class WrongTwoBranches(RightTwoBranches):
    def fused(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)  # wrong: AS501 fused_branch


def _fused_branch(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_fused_branch(B, H, L, Dk):
    return _fused_branch(WrongTwoBranches, B, H, L, Dk)


def right_fused_branch(B, H, L, Dk):
    return _fused_branch(RightTwoBranches, B, H, L, Dk)


def reference_fused_branch(module, x):
    return merge(attend(*fused(x, module.qkv, module.heads), visible(x.shape[1], x.shape[1])), module.out)


class Buckets(nn.Module):
    """Tokens attend within their own bucket and to the bucket before; the first bucket has none before it."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def hidden(self, i, j):
        return (j > i).logical_or(j < 0)

    def forward(self, q, k, v):
        length = q.size(2)
        q, k, v = (F.pad(t, (0, 0, 0, -length % self.size)).unflatten(2, (-1, self.size)) for t in (q, k, v))
        k, v = (torch.cat([t.roll(1, dims=2), t], dim=3) for t in (k, v))
        i = torch.arange(q.size(2) * self.size).view(-1, self.size)
        j = torch.cat([i - self.size, i], dim=1)
        scores = torch.einsum("bhnid,bhnjd->bhnij", q, k) * q.size(-1) ** -0.5
        scores = scores.masked_fill(self.hidden(i[:, :, None], j[:, None, :]), float("-inf"))
        return torch.einsum("bhnij,bhnjd->bhnid", scores.softmax(dim=-1), v).flatten(2, 3)[:, :, :length]


class OpenBuckets(Buckets):
    def hidden(self, i, j):
        return (j > i + 1).logical_or(j < 0)  # wrong: AS501 buckets


def _buckets(cls, B, H, L, Dk, W):
    return cls(W), tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def wrong_buckets(B, H, L, Dk, W):
    return _buckets(OpenBuckets, B, H, L, Dk, W)


def right_buckets(B, H, L, Dk, W):
    return _buckets(Buckets, B, H, L, Dk, W)


def reference_buckets(module, q, k, v):
    i, j = torch.arange(q.size(2))[:, None], torch.arange(q.size(2))
    return attend(q, k, v, (j <= i) & (i // module.size - j // module.size <= 1))


class RightWithout(nn.Module):
    """Each query may attend to nothing, which has a learned score and comes before the keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.nothing = nn.Parameter(torch.randn(heads, 1, 1))

    def of_keys(self, weights):
        return weights[..., 1:]

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        nothing = self.nothing.expand(*scores.shape[:-1], 1)
        weights = torch.cat((nothing, scores), dim=-1).softmax(dim=-1)
        return self.to_out((self.of_keys(weights) @ v).transpose(1, 2).flatten(2))


class WrongWithout(RightWithout):
    def of_keys(self, weights):
        return weights[..., :-1]  # wrong: AS501 score_of_no_key_first


def _score_of_no_key_first(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_score_of_no_key_first(B, H, L, Dk):
    return _score_of_no_key_first(WrongWithout, B, H, L, Dk)


def right_score_of_no_key_first(B, H, L, Dk):
    return _score_of_no_key_first(RightWithout, B, H, L, Dk)


def reference_score_of_no_key_first(module, x):
    q, k, v = fused(x, module.to_qkv, module.heads)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    weights = scores.exp() * visible(x.shape[1], x.shape[1])
    weights = weights / (weights.sum(-1, keepdim=True) + module.nothing.exp())
    return merge(torch.einsum("bhqk,bhkd->bhqd", weights, v), module.to_out)
