"""AS703: query and key are rotated with different offsets."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAST = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
PAIRS = [
    ("AS703", "new_keys_from_zero", *PAST),
    ("AS703", "queries_from_zero", *PAST),
    ("AS703", "from_another_axis", *PAST),
    ("AS703", "from_twice_the_cache", *PAST),
    ("AS703", "pairs_from_width", *PAST),
    ("AS703", "memory_at_same_positions", *SELF),
    ("AS703", "segment_from_zero", *SELF),
    ("AS703", "functional_memory", *SELF),
    ("AS703", "off_by_one", *SELF),
    ("AS703", "functional_shift", *SELF),
    ("AS703", "query_alone", *SELF),
]


def rope(x, position):
    """Feature i is paired with feature i + Dk/2."""
    dim = x.shape[-1]
    inv_freq = 1.0 / 10000 ** (torch.arange(0, dim, 2, device=x.device, dtype=x.dtype) / dim)
    emb = (position.to(x.dtype)[:, None] * inv_freq).repeat(1, 2)
    half = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), dim=-1)
    return x * emb.cos() + half * emb.sin()


class RightDecode(nn.Module):
    """The cache has rotated keys; the new ones follow it."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def new_key(self, k, past):
        return rope(k, past + torch.arange(k.size(2), device=k.device))

    def forward(self, x, past_key, past_value):
        past, L = past_key.size(2), x.size(1)
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.projections())
        q = rope(q, past + torch.arange(L, device=x.device))
        k = torch.cat([past_key, self.new_key(k, past)], dim=2)
        v = torch.cat([past_value, v], dim=2)
        keep = torch.ones(L, past + L, dtype=torch.bool, device=x.device).tril(past)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj


class WrongDecode(RightDecode):
    def new_key(self, k, past):
        return rope(k, torch.arange(k.size(2), device=k.device))  # wrong: AS703 new_keys_from_zero


def _new_keys_from_zero(cls, B, H, L, Lp, Dk):
    past_key = rope(torch.randn(B, H, Lp, Dk), torch.arange(Lp))
    args = torch.randn(B, L, H * Dk), past_key, torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal", "rope=half"]


def wrong_new_keys_from_zero(B, H, L, Lp, Dk):
    return _new_keys_from_zero(WrongDecode, B, H, L, Lp, Dk)


def right_new_keys_from_zero(B, H, L, Lp, Dk):
    return _new_keys_from_zero(RightDecode, B, H, L, Lp, Dk)


def reference_new_keys_from_zero(module, x, past_key, past_value):
    q, k, v = (heads(x, p, module.heads) for p in module.projections())
    place = torch.arange(x.shape[1]) + past_key.shape[2]
    k, v = torch.cat((past_key, turned(k, place)), 2), torch.cat((past_value, v), 2)
    return merge(attend(turned(q, place), k, v, visible(q.shape[2], k.shape[2])), module.o_proj)


class Placed(RightDecode):
    """Queries and new keys are rotated by the same positions."""

    def turn(self, x, first):
        return rope(x, first + torch.arange(x.size(2), device=x.device))

    def first(self, past_key):
        return past_key.size(2)

    def forward(self, x, past_key, past_value):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.projections())
        first = self.first(past_key)
        q, k = self.turn(q, first), torch.cat([past_key, self.turn(k, first)], dim=2)
        keep = torch.ones(x.size(1), k.size(2), dtype=torch.bool, device=x.device).tril(past_key.size(2))
        out = F.scaled_dot_product_attention(q, k, torch.cat([past_value, v], dim=2), attn_mask=keep)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class PlacedByHeads(Placed):
    def first(self, past_key):
        return past_key.shape[1]


class PlacedTwice(Placed):
    def first(self, past_key):
        return 2 * past_key.shape[-2]


class PlacedInPairs(Placed):
    def turn(self, x, first):
        return rotated_pairs(x, first)


class PlacedByWidth(PlacedInPairs):
    def first(self, past_key):
        return past_key.shape[3]


def wrong_from_another_axis(B, H, L, Lp, Dk):
    return _new_keys_from_zero(PlacedByHeads, B, H, L, Lp, Dk)


def right_from_another_axis(B, H, L, Lp, Dk):
    return _new_keys_from_zero(Placed, B, H, L, Lp, Dk)


def wrong_from_twice_the_cache(B, H, L, Lp, Dk):
    return _new_keys_from_zero(PlacedTwice, B, H, L, Lp, Dk)


def right_from_twice_the_cache(B, H, L, Lp, Dk):
    return _new_keys_from_zero(Placed, B, H, L, Lp, Dk)


def _pairs_from_width(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), rotated_pairs(torch.randn(B, H, Lp, Dk)), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal", "rope=interleaved"]


def wrong_pairs_from_width(B, H, L, Lp, Dk):
    return _pairs_from_width(PlacedByWidth, B, H, L, Lp, Dk)


def right_pairs_from_width(B, H, L, Lp, Dk):
    return _pairs_from_width(PlacedInPairs, B, H, L, Lp, Dk)


reference_from_another_axis = reference_from_twice_the_cache = reference_new_keys_from_zero


def reference_pairs_from_width(module, x, past_key, past_value):
    q, k, v = (heads(x, p, module.heads) for p in module.projections())
    place = torch.arange(x.shape[1]) + past_key.shape[2]
    k, v = torch.cat((past_key, turned(k, place, "interleaved")), 2), torch.cat((past_value, v), 2)
    keep = visible(q.shape[2], k.shape[2])
    return merge(attend(turned(q, place, "interleaved"), k, v, keep), module.o_proj)


class RightLateRotation(nn.Module):
    """The cache has keys as projected; all are rotated together."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def query_positions(self, T, S, device):
        return torch.arange(S - T, S, device=device)

    def forward(self, x, past_key, past_value):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        k, v = torch.cat((past_key, k), dim=-2), torch.cat((past_value, v), dim=-2)
        S = k.size(-2)
        q = rope(q, self.query_positions(T, S, x.device))
        k = rope(k, torch.arange(S, device=x.device))
        att = (q @ k.mT) / math.sqrt(q.size(-1)) + x.new_full((T, S), -math.inf).triu(S - T + 1)
        return self.c_proj((att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class WrongLateRotation(RightLateRotation):
    def query_positions(self, T, S, device):
        return torch.arange(T, device=device)


def _queries_from_zero(cls, B, H, L, Lp, Dk):
    args = torch.randn(B, L, H * Dk), torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk)
    return cls(H * Dk, H), args, {}, ["causal", "rope=half"]


def wrong_queries_from_zero(B, H, L, Lp, Dk):
    return _queries_from_zero(WrongLateRotation, B, H, L, Lp, Dk)


def right_queries_from_zero(B, H, L, Lp, Dk):
    return _queries_from_zero(RightLateRotation, B, H, L, Lp, Dk)


def reference_queries_from_zero(module, x, past_key, past_value):
    q, k, v = fused(x, module.c_attn, module.n_head)
    k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    place = torch.arange(k.shape[2])
    out = attend(turned(q, place[past_key.shape[2] :]), turned(k, place), v, visible(q.shape[2], k.shape[2]))
    return merge(out, module.c_proj)


class RightSelf(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qk = nn.Linear(dim, 2 * dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def turn(self, q, k):
        position = torch.arange(q.size(-2), device=q.device)
        return rope(q, position), rope(k, position)

    def forward(self, x):
        q, k = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qk(x).chunk(2, dim=-1))
        v = self.to_v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k = self.turn(q, k)
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
        return self.to_out(torch.einsum("bhij,bhjd->bihd", sim.softmax(dim=-1), v).flatten(2))


class WrongSelf(RightSelf):
    def turn(self, q, k):
        position = torch.arange(q.size(-2) + 1, device=q.device)
        return rope(q, position[1:]), rope(k, position[:-1])  # wrong: AS703 off_by_one


def _off_by_one(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["rope=half"]


def wrong_off_by_one(B, H, L, Dk):
    return _off_by_one(WrongSelf, B, H, L, Dk)


def right_off_by_one(B, H, L, Dk):
    return _off_by_one(RightSelf, B, H, L, Dk)


def reference_off_by_one(module, x):
    place = torch.arange(x.shape[1]) + 3
    both = torch.einsum("bli,oi->blo", x, module.to_qk.weight).unflatten(-1, (2, module.heads, -1))
    q, k = (turned(t, place) for t in both.permute(2, 0, 3, 1, 4))
    return merge(attend(q, k, heads(x, module.to_v, module.heads)), module.to_out)


def rotated_pairs(x, start=0):
    """Features 2i and 2i + 1 are a pair."""
    dim, length = x.shape[-1], x.shape[-2]
    angle = torch.arange(start, start + length, dtype=x.dtype, device=x.device)[:, None]
    angle = angle / 10000 ** (torch.arange(0, dim, 2, dtype=x.dtype, device=x.device) / dim)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1).flatten(-2)


def same_start(query, key, value):
    return F.scaled_dot_product_attention(rotated_pairs(query), rotated_pairs(key), value, is_causal=True)


def another_start(query, key, value):
    key = rotated_pairs(key, start=1)  # wrong: AS703 functional_shift
    return F.scaled_dot_product_attention(rotated_pairs(query), key, value, is_causal=True)


def _functional_shift(function, B, H, L, Dk):
    return function, tuple(torch.randn(3, B, H, L, Dk)), {}, ["causal", "rope=interleaved"]


def wrong_functional_shift(B, H, L, Dk):
    return _functional_shift(another_start, B, H, L, Dk)


def right_functional_shift(B, H, L, Dk):
    return _functional_shift(same_start, B, H, L, Dk)


def reference_functional_shift(function, query, key, value):
    place = torch.arange(query.shape[2])
    q, k = (turned(t, place, "interleaved") for t in (query, key))
    return attend(q, k, value, visible(len(place), len(place)))


class RightBoth(nn.Module):
    """Causal self-attention; no claim is made."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def place(self, q, k):
        return rope(q, torch.arange(q.size(-2))), rope(k, torch.arange(k.size(-2)))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.place(q, k)
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(
            torch.ones(q.size(2), k.size(2)).triu(1) > 0, -torch.inf
        )
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WrongBoth(RightBoth):
    def place(self, q, k):
        return rope(q, torch.arange(q.size(-2))), k  # wrong: AS703 query_alone


def wrong_query_alone(B, H, L, Dk):
    return WrongBoth(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_query_alone(B, H, L, Dk):
    return RightBoth(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_query_alone(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(x, module.qkv, module.heads)
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.out)


class RightSegment(nn.Module):
    """Causal attention to the tokens of the segment before, given as they entered it, and to its own."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def rotated(self, q, memory, k):
        first = memory.size(2)
        place = first + torch.arange(k.size(2))
        return rope(q, place), torch.cat((rope(memory, torch.arange(first)), rope(k, place)), dim=2)

    def forward(self, x, memory):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        both = (self.to_kv(t).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4) for t in (memory, x))
        (old_k, old_v), (k, v) = both
        q, k = self.rotated(q, old_k, k)
        i, j = q.size(2), k.size(2)
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(torch.ones(i, j).triu(j - i + 1) > 0, -torch.inf)
        return self.to_out((scores.softmax(-1) @ torch.cat((old_v, v), dim=2)).transpose(1, 2).flatten(2))


class WrongSegment(RightSegment):
    def rotated(self, q, memory, k):
        place = torch.arange(k.size(2))
        return rope(q, place), torch.cat((rope(memory, torch.arange(memory.size(2))), rope(k, place)), dim=2)


class SegmentByOneTable(RightSegment):
    """Takes the angles of as many positions as it has tokens."""

    def rotated(self, q, memory, k):
        rows = torch.arange(k.size(2))
        k = torch.stack((memory, k))
        return rope(q, rows), rope(k, rows).transpose(0, 1).transpose(1, 2).flatten(2, 3)


def _segment(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}, ["causal", "rope=half"]


def wrong_memory_at_same_positions(B, H, L, Dk):
    return _segment(WrongSegment, B, H, L, Dk)


def right_memory_at_same_positions(B, H, L, Dk):
    return _segment(RightSegment, B, H, L, Dk)


def wrong_segment_from_zero(B, H, L, Dk):
    return _segment(SegmentByOneTable, B, H, L, Dk)


def right_segment_from_zero(B, H, L, Dk):
    return _segment(RightSegment, B, H, L, Dk)


def reference_memory_at_same_positions(module, x, memory):
    every = torch.cat((memory, x), dim=1)
    place = torch.arange(every.shape[1])
    k, v = (
        torch.einsum("bli,oi->blo", every, weight).unflatten(-1, (module.heads, -1)).transpose(1, 2)
        for weight in module.to_kv.weight.chunk(2)
    )
    q = turned(heads(x, module.to_q, module.heads), place[-x.shape[1] :])
    return merge(attend(q, turned(k, place), v, visible(x.shape[1], len(place))), module.to_out)


reference_segment_from_zero = reference_memory_at_same_positions


def _to_memory(start, query, key, value, old_key, old_value):
    query, key = rotated_pairs(query, start), rotated_pairs(key, start)
    keys, values = torch.cat((rotated_pairs(old_key), key), 2), torch.cat((old_value, value), 2)
    keep = torch.ones(query.shape[2], keys.shape[2], dtype=torch.bool).tril(keys.shape[2] - query.shape[2])
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=keep)


def to_memory(query, key, value, old_key, old_value):
    return _to_memory(old_key.shape[2], query, key, value, old_key, old_value)


def to_memory_from_zero(query, key, value, old_key, old_value):
    return _to_memory(0, query, key, value, old_key, old_value)


def _functional_memory(function, B, H, L, Dk):
    return function, tuple(torch.randn(5, B, H, L, Dk)), {}, ["causal", "rope=interleaved"]


def wrong_functional_memory(B, H, L, Dk):
    return _functional_memory(to_memory_from_zero, B, H, L, Dk)


def right_functional_memory(B, H, L, Dk):
    return _functional_memory(to_memory, B, H, L, Dk)


def reference_functional_memory(function, query, key, value, old_key, old_value):
    place = torch.arange(2 * query.shape[2])
    keys = turned(torch.cat((old_key, key), 2), place, "interleaved")
    own = turned(query, place[query.shape[2] :], "interleaved")
    return attend(own, keys, torch.cat((old_value, value), 2), visible(query.shape[2], len(place)))
