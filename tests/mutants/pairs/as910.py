"""AS910: what a chunk of tokens gets from the chunks before it isn't what it would get in one chunk."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge

SIZES = (
    {"B": 4, "H": 5, "Nw": 3, "W": 6, "Dk": 7},
    {"B": 5, "H": 3, "Nw": 4, "W": 2, "Dk": 6},
    {"B": 2, "H": 3, "Nw": 5, "W": 4, "Dk": 8},
)
SHORTER = (
    {"B": 4, "H": 5, "L": 17, "C": 6, "Dk": 7},
    {"B": 3, "H": 2, "L": 14, "C": 4, "Dk": 6},
    {"B": 5, "H": 3, "L": 11, "C": 4, "Dk": 8},
)
PAIRS = [
    ("AS910", "first_step_forgotten", *SIZES),
    ("AS910", "state_decays_too_little", *SIZES),
    ("AS910", "gate_of_a_chunk_left_out", *SIZES),
    ("AS910", "norms_of_each_chunk", *SIZES),
    ("AS910", "own_chunk_counted_twice", *SIZES),
    ("AS910", "shorter_chunk_in_the_end", *SHORTER),
]


def decays(H):
    return 1 - 2.0 ** (-1 - torch.arange(H))


def summed(q, k, v, weights):
    """Sum over tokens up to one's own, with the weights of pairs."""
    pairs = torch.einsum("...id,...jd->...ij", q, k) * weights.tril()
    return torch.einsum("...ij,...je->...ie", pairs, v)


def retention(q, k, v, gamma, chunk, first=1):
    """Queries, keys and values are (batch, heads, tokens, features)."""
    steps = torch.arange(chunk, dtype=q.dtype)
    rate = gamma[:, None, None]
    near = (rate ** (steps[:, None] - steps).clamp(min=0)).tril()
    state, out = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for place in range(0, q.shape[2], chunk):
        qc, kc, vc = (t[:, :, place : place + chunk] for t in (q, k, v))
        inner = (qc @ kc.mT * near) @ vc
        cross = qc * rate ** (steps + first)[:, None] @ state  # wrong: AS910 first_step_forgotten
        out.append(inner + cross)
        state = rate**chunk * state + (kc * rate ** (chunk - 1 - steps)[:, None]).mT @ vc
    return torch.cat(out, dim=2)


def _first_step_forgotten(function, B, H, Nw, W, Dk):
    return partial(function, chunk=W), (*torch.randn(3, B, H, Nw * W, Dk), decays(H)), {}


def wrong_first_step_forgotten(B, H, Nw, W, Dk):
    return _first_step_forgotten(partial(retention, first=0), B, H, Nw, W, Dk)


def right_first_step_forgotten(B, H, Nw, W, Dk):
    return _first_step_forgotten(retention, B, H, Nw, W, Dk)


def reference_first_step_forgotten(_, q, k, v, gamma):
    places = torch.arange(q.shape[2])
    return summed(q, k, v, gamma[:, None, None] ** (places[:, None] - places))


class Decayed(nn.Module):
    """A mixer whose memory fades, with one rate for each head."""

    def __init__(self, width, n_heads, chunk_size):
        super().__init__()
        self.n_heads, self.chunk_size = n_heads, chunk_size
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("log_rate", decays(n_heads).log())

    def kept(self, size):
        return torch.exp(self.log_rate * size)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.q, self.k, self.v))
        ages = torch.arange(self.chunk_size, device=x.device)
        weights = torch.exp(self.log_rate[:, None, None] * (ages[:, None] - ages)).tril()
        since, until = (torch.exp(self.log_rate * age[:, None]) for age in (ages + 1, ages.flip(0)))
        memory, results = 0, []
        for qs, ks, vs in zip(*(t.split(self.chunk_size, dim=1) for t in (q, k, v)), strict=True):
            pairs = torch.einsum("bihd,bjhd->bhij", qs, ks) * weights
            now = torch.einsum("bhij,bjhe->bihe", pairs, vs)
            update = torch.einsum("bjhd,jh,bjhe->bhde", ks, until, vs)
            if results:
                past = torch.einsum("bihd,ih,bhde->bihe", qs, since, memory)  # wrong: AS910 state_decays_too_little
                now = now + past
                update = update + self.kept(len(ages))[:, None, None] * memory
            results.append(now)
            memory = update
        return self.out(torch.cat(results, dim=1).flatten(2))


class DecayedTooLittle(Decayed):
    def kept(self, size):
        return torch.exp(self.log_rate * (size - 1))


def _module(cls, B, H, Nw, W, Dk):
    return cls(H * Dk, H, W), (torch.randn(B, Nw * W, H * Dk),), {}


def wrong_state_decays_too_little(B, H, Nw, W, Dk):
    return _module(DecayedTooLittle, B, H, Nw, W, Dk)


def right_state_decays_too_little(B, H, Nw, W, Dk):
    return _module(Decayed, B, H, Nw, W, Dk)


def reference_state_decays_too_little(module, x):
    q, k, v = (heads(x, w, module.n_heads) for w in (module.q, module.k, module.v))
    places = torch.arange(x.shape[1])
    rates = module.log_rate.exp()[:, None, None]
    return merge(summed(q, k, v, rates ** (places[:, None] - places)), module.out)


class Gated(nn.Module):
    """Each token says how much of the memory stays."""

    def __init__(self, dim, heads, block):
        super().__init__()
        self.heads, self.block = heads, block
        self.qkv, self.gate = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, heads)

    def stays(self, total, own):
        """B H 1: how much of the state is left after a block."""
        return total[..., -1:]

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        g = F.logsigmoid(self.gate(x)).transpose(1, 2)
        state, out = x.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
        for i in range(x.shape[1] // self.block):
            part = slice(i * self.block, (i + 1) * self.block)
            total = g[:, :, part].cumsum(-1)
            ratio = (total[..., :, None] - total[..., None, :]).exp().tril()
            local = (q[:, :, part] @ k[:, :, part].mT * ratio) @ v[:, :, part]
            earlier = (q[:, :, part] * total.exp()[..., None]) @ state  # wrong: AS910 gate_of_a_chunk_left_out
            out.append(local + earlier)
            rest = (total[..., -1:] - total).exp()
            state = self.stays(total, g[:, :, part]).exp()[..., None] * state
            state = state + (k[:, :, part] * rest[..., None]).mT @ v[:, :, part]
        return torch.cat(out, dim=2).transpose(1, 2).flatten(2)


class GatedButLast(Gated):
    def stays(self, total, own):
        return total[..., -1:] - own[..., -1:]


def wrong_gate_of_a_chunk_left_out(B, H, Nw, W, Dk):
    return _module(GatedButLast, B, H, Nw, W, Dk)


def right_gate_of_a_chunk_left_out(B, H, Nw, W, Dk):
    return _module(Gated, B, H, Nw, W, Dk)


def reference_gate_of_a_chunk_left_out(module, x):
    q, k, v = torch.einsum("bli,chdi->cbhld", x, module.qkv.weight.unflatten(0, (3, module.heads, -1)))
    opened = (1 / (1 + (-(x @ module.gate.weight.T + module.gate.bias)).exp())).transpose(1, 2)
    tokens = x.shape[1]
    weights = opened.new_zeros(*opened.shape, tokens)
    for i in range(tokens):
        for j in range(i + 1):
            weights[..., i, j] = opened[..., j + 1 : i + 1].prod(-1)
    return merge(summed(q, k, v, weights))


def normalised(q, k, v, seg_len):
    """Linear attention with positive features, segment by segment."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    memory, norm, out = (
        q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]),
        q.new_zeros(*q.shape[:2], q.shape[-1], 1),
        [],
    )
    for qs, ks, vs in zip(*(t.split(seg_len, dim=-2) for t in (q, k, v)), strict=True):
        scores = (qs @ ks.mT).tril()
        total = scores.sum(-1, keepdim=True) + qs @ norm
        out.append((scores @ vs + qs @ memory) / total)
        memory, norm = memory + ks.mT @ vs, norm + ks.sum(-2)[..., None]
    return torch.cat(out, dim=-2)


def normalised_by_segments(q, k, v, seg_len):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    memory, out = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for qs, ks, vs in zip(*(t.split(seg_len, dim=-2) for t in (q, k, v)), strict=True):
        scores = (qs @ ks.mT).tril()
        total = scores.sum(-1, keepdim=True)
        out.append((scores @ vs + qs @ memory) / total)  # wrong: AS910 norms_of_each_chunk
        memory = memory + ks.mT @ vs
    return torch.cat(out, dim=-2)


def _norms_of_each_chunk(function, B, H, Nw, W, Dk):
    return function, tuple(torch.randn(3, B, H, Nw * W, Dk)), {"seg_len": W}


def wrong_norms_of_each_chunk(B, H, Nw, W, Dk):
    return _norms_of_each_chunk(normalised_by_segments, B, H, Nw, W, Dk)


def right_norms_of_each_chunk(B, H, Nw, W, Dk):
    return _norms_of_each_chunk(normalised, B, H, Nw, W, Dk)


def reference_norms_of_each_chunk(_, q, k, v, seg_len):
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    ones = torch.ones(q.shape[-2], q.shape[-2], dtype=q.dtype)
    return summed(q, k, v, ones) / summed(q, k, torch.ones_like(v[..., :1]), ones)


class Unscaled(nn.Module):
    """Sums of all earlier values, tile by tile."""

    def __init__(self, width, n_heads, tile):
        super().__init__()
        self.n_heads, self.tile = n_heads, tile
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def read(self, memory, q, k, v):
        result = q @ memory + (q @ k.mT).tril() @ v
        memory += k.mT @ v
        return result

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        memory = x.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        tiles = [self.read(memory, *parts) for parts in zip(*(t.split(self.tile, 2) for t in (q, k, v)), strict=True)]
        return torch.cat(tiles, dim=2).transpose(1, 2).flatten(2)


class UnscaledTwice(Unscaled):
    def read(self, memory, q, k, v):
        memory += k.mT @ v  # wrong: AS910 own_chunk_counted_twice
        return q @ memory + (q @ k.mT).tril() @ v


def wrong_own_chunk_counted_twice(B, H, Nw, W, Dk):
    return _module(UnscaledTwice, B, H, Nw, W, Dk)


def right_own_chunk_counted_twice(B, H, Nw, W, Dk):
    return _module(Unscaled, B, H, Nw, W, Dk)


def reference_own_chunk_counted_twice(module, x):
    q, k, v = (heads(x, w, module.n_heads) for w in (module.q, module.k, module.v))
    return merge(summed(q, k, v, torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)))


class Retentive(nn.Module):
    """Chunks are slices, and the last one may be shorter."""

    def __init__(self, hidden, n_heads, chunk_size):
        super().__init__()
        self.n_heads, self.chunk_size = n_heads, chunk_size
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.register_buffer("gamma", decays(n_heads))

    def carried(self, state, size):
        return state * self.gamma[:, None, None] ** size

    def chunk(self, q, k, v, state):
        size, gamma = q.shape[2], self.gamma[:, None, None]
        i = torch.arange(size).to(q)
        inner = (q @ k.mT * (gamma ** (i[:, None] - i)).tril()) @ v
        cross = q @ state * gamma ** (i[:, None] + 1)  # wrong: AS910 shorter_chunk_in_the_end
        new = (k * gamma ** (size - 1 - i)[:, None]).mT @ v
        return inner + cross, self.carried(state, size) + new

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        state, out = torch.zeros_like(q[:, :, :1].mT @ v[:, :, :1]), []
        for start in range(0, x.shape[1], self.chunk_size):
            here = slice(start, start + self.chunk_size)
            result, state = self.chunk(q[:, :, here], k[:, :, here], v[:, :, here], state)
            out.append(result)
        return self.wo(torch.cat(out, dim=2).transpose(1, 2).flatten(2))


class RetentiveOneLess(Retentive):
    def carried(self, state, size):
        return state * self.gamma[:, None, None] ** (size - 1)


def _shorter(cls, B, H, L, C, Dk):
    return cls(H * Dk, H, C), (torch.randn(B, L, H * Dk),), {}


def wrong_shorter_chunk_in_the_end(B, H, L, C, Dk):
    return _shorter(RetentiveOneLess, B, H, L, C, Dk)


def right_shorter_chunk_in_the_end(B, H, L, C, Dk):
    return _shorter(Retentive, B, H, L, C, Dk)


def reference_shorter_chunk_in_the_end(module, x):
    q, k, v = (heads(x, w, module.n_heads) for w in (module.wq, module.wk, module.wv))
    places = torch.arange(x.shape[1])
    return merge(summed(q, k, v, module.gamma[:, None, None] ** (places[:, None] - places)), module.wo)
