"""AS704: rotation layouts are mixed, or another than the one claimed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS704", "interleaved_tables", *SELF),
    ("AS704", "interleaved_for_half", *SELF),
    ("AS704", "half_for_complex", *SELF),
    ("AS704", "query_half_key_pairs", *SELF),
    ("AS704", "rejoined_halves", *SELF),
    ("AS704", "halves_exchanged_first", *SELF),
    ("AS704", "factors_of_halves", *SELF),
    ("AS704", "beside_feed_forward", *SELF),
]


def angles(length, width, like):
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, width, 2, dtype=like.dtype, device=like.device) / width))
    return torch.outer(torch.arange(length, dtype=like.dtype, device=like.device), inv_freq)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_every_two(x):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((-odd, even), dim=-1).flatten(-2)


class RightTables(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def cos_sin(self, x):
        freqs = angles(x.shape[1], self.head_dim, x)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()

    def forward(self, hidden_states):
        B, L, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        cos, sin = self.cos_sin(hidden_states)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(B, L, -1))


class WrongTables(RightTables):
    def cos_sin(self, x):
        emb = angles(x.shape[1], self.head_dim, x)
        emb = emb.repeat_interleave(2, dim=-1)  # wrong: AS704 interleaved_tables
        return emb.cos(), emb.sin()


def _interleaved_tables(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_interleaved_tables(B, H, L, Dk):
    return _interleaved_tables(WrongTables, B, H, L, Dk)


def right_interleaved_tables(B, H, L, Dk):
    return _interleaved_tables(RightTables, B, H, L, Dk)


def reference_interleaved_tables(module, hidden_states):
    place = torch.arange(hidden_states.shape[1])
    q, k, v = (heads(hidden_states, p, module.num_heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.o_proj)


class RightHalf(nn.Module):
    """Pre-norm block without a feed-forward part."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def rotary(self, x):
        emb = angles(x.size(-2), x.size(-1), x).repeat(1, 2)
        return x * emb.cos() + rotate_half(x) * emb.sin()

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        attn = self.rotary(q) @ self.rotary(k).mT / math.sqrt(D // self.heads)
        return x + self.out((attn.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


class WrongHalf(RightHalf):
    def rotary(self, x):
        emb = angles(x.size(-2), x.size(-1), x).repeat_interleave(2, dim=-1)
        return x * emb.cos() + rotate_every_two(x) * emb.sin()  # wrong: AS704 interleaved_for_half


def _interleaved_for_half(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_interleaved_for_half(B, H, L, Dk):
    return _interleaved_for_half(WrongHalf, B, H, L, Dk)


def right_interleaved_for_half(B, H, L, Dk):
    return _interleaved_for_half(RightHalf, B, H, L, Dk)


def reference_interleaved_for_half(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(module.norm(x), module.qkv, module.heads)
    return x + merge(attend(turned(q, place), turned(k, place), v), module.out)


class RightComplex(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def apply_rotary_emb(self, x, freqs):
        spun = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.complex(freqs.cos(), freqs.sin())
        return torch.view_as_real(spun).flatten(-2)

    def forward(self, x):
        xq, xk, xv = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.wq, self.wk, self.wv))
        freqs = angles(x.size(1), xq.size(-1), x)[:, None]
        xq, xk = self.apply_rotary_emb(xq, freqs), self.apply_rotary_emb(xk, freqs)
        scores = torch.einsum("bihd,bjhd->bhij", xq, xk) / math.sqrt(xq.size(-1))
        return self.wo(torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), xv).flatten(2))


class WrongComplex(RightComplex):
    def apply_rotary_emb(self, x, freqs):
        pairs = torch.complex(*x.chunk(2, dim=-1))  # wrong: AS704 half_for_complex
        spun = pairs * torch.complex(freqs.cos(), freqs.sin())
        return torch.cat((spun.real, spun.imag), dim=-1)


def _half_for_complex(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=interleaved"]


def wrong_half_for_complex(B, H, L, Dk):
    return _half_for_complex(WrongComplex, B, H, L, Dk)


def right_half_for_complex(B, H, L, Dk):
    return _half_for_complex(RightComplex, B, H, L, Dk)


def reference_half_for_complex(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (heads(x, p, module.n_heads) for p in (module.wq, module.wk, module.wv))
    return merge(attend(turned(q, place, "interleaved"), turned(k, place, "interleaved"), v), module.wo)


def turn_half(x):
    emb = angles(x.size(-2), x.size(-1), x).tile(1, 2)
    return x * emb.cos() + rotate_half(x) * emb.sin()


def turn_pairs(x):
    emb = angles(x.size(-2), x.size(-1), x).repeat_interleave(2, -1)
    return x * emb.cos() + rotate_every_two(x) * emb.sin()


def one_layout(q, k, v):
    q = turn_half(q)
    k = turn_half(k)
    return F.scaled_dot_product_attention(q, k, v)


def two_layouts(q, k, v):
    q = turn_half(q)
    k = turn_pairs(k)  # wrong: AS704 query_half_key_pairs
    return F.scaled_dot_product_attention(q, k, v)


def _query_half_key_pairs(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}, ["rope=half"]


def wrong_query_half_key_pairs(B, H, L, Dk):
    return _query_half_key_pairs(two_layouts, B, H, L, Dk)


def right_query_half_key_pairs(B, H, L, Dk):
    return _query_half_key_pairs(one_layout, B, H, L, Dk)


def reference_query_half_key_pairs(function, q, k, v):
    place = torch.arange(q.shape[2])
    return attend(turned(q, place), turned(k, place), v)


def rotate_neighbours(x):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-odd, even), dim=-1).flatten(-2)


def rotate_and_rejoin(x):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat((-odd, even), dim=-1)  # wrong: AS704 rejoined_halves


class RightNeighbours(nn.Module):
    """Heads keep their place after the tokens; no claim is made."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def partner(self, x):
        return rotate_neighbours(x)

    def turn(self, x):
        emb = angles(x.size(1), x.size(-1), x).repeat_interleave(2, dim=-1)[:, None]
        return x * emb.cos() + self.partner(x) * emb.sin()

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)) for w in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", self.turn(q), self.turn(k)) / math.sqrt(q.size(-1))
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)


class WrongNeighbours(RightNeighbours):
    def partner(self, x):
        return rotate_and_rejoin(x)


def wrong_rejoined_halves(B, H, L, Dk):
    return WrongNeighbours(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_rejoined_halves(B, H, L, Dk):
    return RightNeighbours(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_rejoined_halves(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (heads(x, one, module.heads) for one in (module.q, module.k, module.v))
    return merge(attend(turned(q, place, "interleaved"), turned(k, place, "interleaved"), v))


class ExchangedFirst(RightTables):
    """The halves are exchanged once, then neighbours are rotated: no feature is rotated with the one half a head on."""

    def cos_sin(self, x):
        emb = angles(x.shape[1], self.head_dim, x).repeat_interleave(2, dim=-1)
        return emb.cos(), emb.sin()

    def forward(self, hidden_states):
        q, k, v = (
            layer(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.cos_sin(hidden_states)
        q, k = rotate_half(q), rotate_half(k)
        q, k = (x * cos + rotate_every_two(x) * sin for x in (q, k))  # wrong: AS704 halves_exchanged_first
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


def wrong_halves_exchanged_first(B, H, L, Dk):
    return _interleaved_tables(ExchangedFirst, B, H, L, Dk)


right_halves_exchanged_first, reference_halves_exchanged_first = right_interleaved_tables, reference_interleaved_tables


class RightFactors(nn.Module):
    """xPos: pairs of features are rotated and scaled by a factor, whose inverse scales those of the keys."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)

    def per_feature(self, factors):
        return factors.repeat_interleave(2, dim=-1)

    def rotated(self, x, power):
        length, width = x.shape[-2:]
        angle = angles(length, width, x).repeat_interleave(2, dim=-1)
        bases = (torch.arange(0, width, 2).to(x) + 0.4 * width) / (1.4 * width)
        positions = torch.arange(length).to(x)[:, None] - length // 2
        factor = self.per_feature(bases ** (power * positions / 16))
        return (x * angle.cos() + rotate_every_two(x) * angle.sin()) * factor

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(self.rotated(q, 1), self.rotated(k, -1), v).transpose(1, 2).flatten(2)


class WrongFactors(RightFactors):
    def per_feature(self, factors):
        return torch.cat((factors, factors), dim=-1)


def _factors_of_halves(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=interleaved"]


def wrong_factors_of_halves(B, H, L, Dk):
    return _factors_of_halves(WrongFactors, B, H, L, Dk)


def right_factors_of_halves(B, H, L, Dk):
    return _factors_of_halves(RightFactors, B, H, L, Dk)


def reference_factors_of_halves(module, x):
    q, k, v = fused(x, module.to_qkv, module.heads)
    length, width = q.shape[-2:]
    positions = torch.arange(length)
    base = (torch.arange(0, width, 2, dtype=torch.float64) + 0.4 * width) / (1.4 * width)
    scale = torch.stack([base ** ((place - length // 2) / 16) for place in range(length)])
    scale = torch.stack((scale, scale), -1).flatten(-2)
    q, k = turned(q, positions, "interleaved") * scale, turned(k, positions, "interleaved") / scale
    return merge(attend(q, k, v))


class ParallelBlock(nn.Module):
    """One projection makes queries, the key and the value that all heads share, and what feeds the other branch."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads, self.parts = heads, (width, width // heads, width // heads, hidden)
        self.fused = nn.Linear(width, sum(self.parts), bias=False)
        self.from_heads, self.from_hidden = nn.Linear(width, width, bias=False), nn.Linear(hidden, width, bias=False)

    def rotary(self, length, width, like):
        return angles(length, width, like).tile(1, 2)

    def forward(self, x):
        q, k, v, hidden = self.fused(x).split(self.parts, dim=-1)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        places = self.rotary(x.shape[1], k.shape[-1], x)
        q, k = (t * places.cos() + rotate_half(t) * places.sin() for t in (q, k))
        scores = torch.einsum("bhid,bjd->bhij", q * k.shape[-1] ** -0.5, k)
        context = torch.einsum("bhij,bjd->bihd", scores.softmax(dim=-1), v)
        return self.from_heads(context.flatten(2)) + self.from_hidden(F.silu(hidden))


class ParallelBlockOfPairs(ParallelBlock):
    def rotary(self, length, width, like):
        return angles(length, width, like).repeat_interleave(2, dim=-1)  # wrong: AS704 beside_feed_forward


def _beside_feed_forward(cls, B, H, L, Dk):
    return cls(H * Dk, H, H * Dk + 1), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_beside_feed_forward(B, H, L, Dk):
    return _beside_feed_forward(ParallelBlockOfPairs, B, H, L, Dk)


def right_beside_feed_forward(B, H, L, Dk):
    return _beside_feed_forward(ParallelBlock, B, H, L, Dk)


def reference_beside_feed_forward(module, x):
    place = torch.arange(x.shape[1])
    q, k, v, hidden = module.fused(x).split(module.parts, dim=-1)
    q = q.unflatten(-1, (module.heads, -1)).transpose(1, 2)
    context = attend(turned(q, place), turned(k[:, None], place), v[:, None])
    return merge(context, module.from_heads) + module.from_hidden(F.silu(hidden))
