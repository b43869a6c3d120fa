"""AS703 and AS705: one call decodes several steps with a cache, and a token's rotation isn't that of its position."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
PAIRS = [
    ("AS703", "angles_by_length", *SELF),
    ("AS703", "offset_is_the_step", *SELF),
    ("AS703", "query_of_a_step_from_zero", *SELF),
    ("AS703", "offset_of_each_layer", *SELF),
    ("AS705", "cache_turned_in_each_step", *SELF),
    ("AS705", "chunks_turned_again", *SELF),
    ("AS705", "tokens_turned_again", *SELF),
    ("AS705", "pairs_turned_in_each_read", *SELF),
]


def turn(x, position):
    """Feature i is paired with feature i + Dk/2."""
    dim = x.shape[-1]
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(position.to(frequency.dtype), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def pieces(x):
    """The prompt, then one token after the other."""
    prompt = x.shape[1] // 2
    return (x[:, :prompt], *x[:, prompt:].split(1, dim=1))


class RightGenerator(nn.Module):
    """Keys are rotated, then cached."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def positions(self, memo, start, length):
        if (start, length) not in memo:
            memo[start, length] = torch.arange(start, start + length)
        return memo[start, length]

    def forward(self, x):
        memo, outputs = {}, []
        cached_k = cached_v = x.new_zeros(x.shape[0], self.heads, 0, x.shape[2] // self.heads)
        for piece in pieces(x):
            q, k, v = (
                p(piece).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            past, n = cached_k.shape[2], piece.shape[1]
            place = self.positions(memo, past, n)
            q = turn(q, place)
            cached_k = torch.cat((cached_k, turn(k, place)), dim=2)
            cached_v = torch.cat((cached_v, v), dim=2)
            keep = torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
            out = F.scaled_dot_product_attention(q, cached_k, cached_v, attn_mask=keep)
            outputs.append(self.o_proj(out.transpose(1, 2).flatten(2)))
        return torch.cat(outputs, dim=1)


class WrongGenerator(RightGenerator):
    def positions(self, memo, start, length):
        if length not in memo:
            memo[length] = torch.arange(start, start + length)
        return memo[length]


def _angles_by_length(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_angles_by_length(B, H, L, Dk):
    return _angles_by_length(WrongGenerator, B, H, L, Dk)


def right_angles_by_length(B, H, L, Dk):
    return _angles_by_length(RightGenerator, B, H, L, Dk)


def reference_angles_by_length(module, x):
    q, k, v = (heads(x, p, module.heads) for p in (module.q_proj, module.k_proj, module.v_proj))
    place, L = torch.arange(x.shape[1]), x.shape[1]
    return merge(attend(turned(q, place), turned(k, place), v, visible(L, L)), module.o_proj)


class RightStepwise(nn.Module):
    """Scores are spelled out."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def place(self, step, past, n):
        return past + torch.arange(n)

    def place_of_queries(self, past, n):
        return past + torch.arange(n)

    def keys(self, cached, k, place):
        return torch.cat((cached, turn(k, place)), dim=2)

    def pieces(self, x):
        return pieces(x)

    def forward(self, x):
        outputs = []
        key = value = x.new_zeros(x.shape[0], self.heads, 0, x.shape[2] // self.heads)
        for step, piece in enumerate(self.pieces(x)):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(piece).chunk(3, dim=-1))
            past, n = key.shape[2], q.shape[2]
            q = turn(q, self.place_of_queries(past, n))
            key = self.keys(key, k, self.place(step, past, n))
            value = torch.cat((value, v), dim=2)
            sim = torch.einsum("bhid,bhjd->bhij", q, key) / math.sqrt(q.size(-1))
            hidden = torch.ones_like(sim, dtype=torch.bool).triu(past + 1)
            weights = sim.masked_fill(hidden, -math.inf).softmax(dim=-1)
            outputs.append(torch.einsum("bhij,bhjd->bihd", weights, value).flatten(2))
        return self.to_out(torch.cat(outputs, dim=1))


class CountsSteps(RightStepwise):
    def place(self, step, past, n):
        return step + torch.arange(n)


class QueryFromZero(RightStepwise):
    def place_of_queries(self, past, n):
        return torch.arange(n)


class TurnsTheCache(RightStepwise):
    def keys(self, cached, k, place):
        k = torch.cat((cached, k), dim=2)
        return turn(k, torch.arange(k.shape[2]))  # wrong: AS705 cache_turned_in_each_step


class RightChunks(RightStepwise):
    def pieces(self, x):
        return x.split(2, dim=1)


class TurnsChunks(RightChunks):
    def keys(self, cached, k, place):
        k = torch.cat((cached, k), dim=2)
        return turn(k, torch.arange(k.shape[2]))  # wrong: AS705 chunks_turned_again


class RightTokens(RightStepwise):
    """Nothing is cached at first."""

    def pieces(self, x):
        return x.split(1, dim=1)


class TurnsTokens(RightTokens):
    def keys(self, cached, k, place):
        every = torch.cat((cached, k), dim=2)
        return turn(every, torch.arange(every.shape[2]))  # wrong: AS705 tokens_turned_again


def _stepwise(cls, B, H, L, Dk, claims=("causal",)):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, list(claims)


def wrong_offset_is_the_step(B, H, L, Dk):
    return _stepwise(CountsSteps, B, H, L, Dk)


def right_offset_is_the_step(B, H, L, Dk):
    return _stepwise(RightStepwise, B, H, L, Dk)


def reference_offset_is_the_step(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(x, module.to_qkv, module.heads)
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.to_out)


def wrong_query_of_a_step_from_zero(B, H, L, Dk):
    return _stepwise(QueryFromZero, B, H, L, Dk)


right_query_of_a_step_from_zero = right_offset_is_the_step
reference_query_of_a_step_from_zero = reference_offset_is_the_step


def wrong_cache_turned_in_each_step(B, H, L, Dk):
    return _stepwise(TurnsTheCache, B, H, L, Dk)


right_cache_turned_in_each_step = right_offset_is_the_step
reference_cache_turned_in_each_step = reference_offset_is_the_step


def wrong_chunks_turned_again(B, H, L, Dk):
    return _stepwise(TurnsChunks, B, H, L, Dk, ("causal", "rope=half"))


def right_chunks_turned_again(B, H, L, Dk):
    return _stepwise(RightChunks, B, H, L, Dk, ("causal", "rope=half"))


reference_chunks_turned_again = reference_offset_is_the_step


def wrong_tokens_turned_again(B, H, L, Dk):
    return _stepwise(TurnsTokens, B, H, L, Dk, ("causal", "rope=half"))


def right_tokens_turned_again(B, H, L, Dk):
    return _stepwise(RightTokens, B, H, L, Dk, ("causal", "rope=half"))


reference_tokens_turned_again = reference_offset_is_the_step


class Memory:
    """The keys and values of one layer, which grow token by token."""

    def __init__(self):
        self.k, self.v = [], []

    def add(self, k, v):
        self.k.append(spun(k, len(self.k)))
        self.v.append(v)
        return self.k, self.v


class MemorySpunAgain(Memory):
    def add(self, k, v):
        self.k.append(k)
        self.v.append(v)
        self.k = [spun(one, place) for place, one in enumerate(self.k)]  # wrong: AS705 pairs_turned_in_each_read
        return self.k, self.v


def spun(x, place):
    """Adjacent features are one complex number."""
    half = x.shape[-1] // 2
    angle = place * 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    pair = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class TokenByToken(nn.Module):
    """One query at a time, with the axes batch, heads, features."""

    memory = Memory

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        memory, out = self.memory(), []
        for place, token in enumerate(x.unbind(1)):
            q, k, v = (w(token).unflatten(-1, (self.heads, -1)) for w in (self.wq, self.wk, self.wv))
            keys, values = (torch.stack(one, dim=2) for one in memory.add(k, v))
            scores = torch.einsum("bhd,bhkd->bhk", spun(q, place), keys) * q.shape[-1] ** -0.5
            out.append(torch.einsum("bhk,bhkd->bhd", scores.softmax(-1), values).flatten(1))
        return self.wo(torch.stack(out, dim=1))


class TokenByTokenSpunAgain(TokenByToken):
    memory = MemorySpunAgain


def wrong_pairs_turned_in_each_read(B, H, L, Dk):
    return _stepwise(TokenByTokenSpunAgain, B, H, L, Dk)


def right_pairs_turned_in_each_read(B, H, L, Dk):
    return _stepwise(TokenByToken, B, H, L, Dk)


def reference_pairs_turned_in_each_read(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (heads(x, w, module.heads) for w in (module.wq, module.wk, module.wv))
    q, k = (turned(t, place, "interleaved") for t in (q, k))
    return merge(attend(q, k, v, visible(len(place), len(place))), module.wo)


class RightTwoLayers(nn.Module):
    """Every layer counts the tokens in its own cache."""

    def __init__(self, dim, heads):
        super().__init__()
        self.layers = nn.ModuleList(RightGenerator(dim, heads) for _ in range(2))

    def start(self, caches, layer):
        return caches[layer][0].shape[2]

    def step(self, layer, x, caches):
        own, heads = self.layers[layer], self.layers[layer].heads
        q, k, v = (p(x).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (own.q_proj, own.k_proj, own.v_proj))
        start, past, n = self.start(caches, layer), caches[layer][0].shape[2], x.shape[1]
        place = torch.arange(start, start + n)
        q, k = turn(q, place), turn(k, place)
        k, v = torch.cat((caches[layer][0], k), dim=2), torch.cat((caches[layer][1], v), dim=2)
        caches[layer] = k, v
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(
            ~torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past), -math.inf
        )
        return x + own.o_proj((weights.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        heads = self.layers[0].heads
        empty = x.new_zeros(x.shape[0], heads, 0, x.shape[2] // heads)
        caches, outputs = [(empty, empty)] * 2, []
        for h in pieces(x):
            for layer in range(2):
                h = self.step(layer, h, caches)
            outputs.append(h)
        return torch.cat(outputs, dim=1)


class WrongTwoLayers(RightTwoLayers):
    def start(self, caches, layer):
        return caches[0][0].shape[2]


def _offset_of_each_layer(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_offset_of_each_layer(B, H, L, Dk):
    return _offset_of_each_layer(WrongTwoLayers, B, H, L, Dk)


def right_offset_of_each_layer(B, H, L, Dk):
    return _offset_of_each_layer(RightTwoLayers, B, H, L, Dk)


def reference_offset_of_each_layer(module, x):
    place = torch.arange(x.shape[1])
    for own in module.layers:
        q, k, v = (heads(x, p, own.heads) for p in (own.q_proj, own.k_proj, own.v_proj))
        context = attend(turned(q, place), turned(k, place), v, visible(len(place), len(place)))
        x = x + merge(context, own.o_proj)
    return x
