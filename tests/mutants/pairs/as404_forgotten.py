"""AS404: one attention hides padding, and another one over the same tokens is called without the mask."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project
from tests.mutants.plain import softmax

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS404", "pooled_padding", *SELF),
    ("AS404", "memory_without_its_padding", *CROSS),
    ("AS404", "encoder_without_padding", *CROSS),
    ("AS404", "readout_of_packed_heads", *SELF),
    ("AS404", "pooled_by_a_gate", *SELF),
]


def padded(*shape):
    """True for tokens; at least one of each batch element is padding."""
    keep = torch.rand(shape) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    return keep


class Attend(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory, keep=None):
        parts = (self.q(x), self.k(memory), self.v(memory))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def expected(self, x, memory, keep):
        q, k, v = (heads(t, linear, self.heads) for t, linear in ((x, self.q), (memory, self.k), (memory, self.v)))
        return merge(attend(q, k, v, keep[:, None, None]), self.out)


class RightPooled(nn.Module):
    """A block, and pooling of its tokens by learned seeds."""

    def __init__(self, dim, heads, seeds=3):
        super().__init__()
        self.block, self.pool = Attend(dim, heads), Attend(dim, heads)
        self.seeds = nn.Parameter(torch.randn(1, seeds, dim))

    def forward(self, x, keep):
        x = x + self.block(x, x, keep)
        return self.pool(self.seeds.expand(len(x), -1, -1), x, keep)


class WrongPooled(RightPooled):
    def forward(self, x, keep):
        x = x + self.block(x, x, keep)
        return self.pool(self.seeds.expand(len(x), -1, -1), x)  # wrong: AS404 pooled_padding


def _pooled_padding(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), padded(B, L)), {}, ["keep=keep"]


def wrong_pooled_padding(B, H, L, Dk):
    return _pooled_padding(WrongPooled, B, H, L, Dk)


def right_pooled_padding(B, H, L, Dk):
    return _pooled_padding(RightPooled, B, H, L, Dk)


def reference_pooled_padding(module, x, keep):
    x = x + module.block.expected(x, x, keep)
    return module.pool.expected(module.seeds.expand(len(x), -1, -1), x, keep)


class Translator(nn.Module):
    """Encodes a source with torch's attention, and reads it from the target's tokens."""

    def __init__(self, dim, heads):
        super().__init__()
        self.encode, self.cross = (nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))

    def encoded(self, source, padding):
        return source + self.encode(source, source, source, key_padding_mask=padding, need_weights=False)[0]

    def read(self, target, memory, padding):
        return target + self.cross(target, memory, memory, key_padding_mask=padding, need_weights=False)[0]

    def forward(self, source, target, padding):
        return self.read(target, self.encoded(source, padding), padding)


class UnmaskedMemory(Translator):
    def read(self, target, memory, padding):
        return target + self.cross(target, memory, memory)[0]  # wrong: AS404 memory_without_its_padding


class UnmaskedEncoder(Translator):
    def encoded(self, source, padding):
        return source + self.encode(source, source, source)[0]  # wrong: AS404 encoder_without_padding


def _translator(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lk, H * Dk), torch.randn(B, Lq, H * Dk), ~padded(B, Lk)
    return cls(H * Dk, H), args, {}, ["padding=drop"]


def _of_torch(module, x, memory, padding):
    parts = zip(module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), (x, memory, memory), strict=True)
    q, k, v = (F.linear(t, w, b).unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for w, b, t in parts)
    return merge(attend(q, k, v, ~padding[:, None, None]), module.out_proj)


def _translated(module, source, target, padding):
    memory = source + _of_torch(module.encode, source, source, padding)
    return target + _of_torch(module.cross, target, memory, padding)


def wrong_memory_without_its_padding(B, H, Lq, Lk, Dk):
    return _translator(UnmaskedMemory, B, H, Lq, Lk, Dk)


def right_memory_without_its_padding(B, H, Lq, Lk, Dk):
    return _translator(Translator, B, H, Lq, Lk, Dk)


def reference_memory_without_its_padding(module, source, target, padding):
    return _translated(module, source, target, padding)


def wrong_encoder_without_padding(B, H, Lq, Lk, Dk):
    return _translator(UnmaskedEncoder, B, H, Lq, Lk, Dk)


def right_encoder_without_padding(B, H, Lq, Lk, Dk):
    return _translator(Translator, B, H, Lq, Lk, Dk)


def reference_encoder_without_padding(module, source, target, padding):
    return _translated(module, source, target, padding)


class Readout(nn.Module):
    """Adds the mask to scores in einsum, and answers one question about the tokens with torch's fused attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.kv, self.ask = nn.Linear(dim, 3 * dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def answer(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def forward(self, x, question, bias):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5 + bias[:, None, None]
        x = x + torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = self.ask(question).unflatten(-1, (self.heads, 1, -1))
        return self.answer(q, k, v, bias[:, None, None]).flatten(1)


class UnmaskedReadout(Readout):
    def answer(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v)  # wrong: AS404 readout_of_packed_heads


def _readout(cls, B, H, L, Dk):
    bias = torch.zeros(B, L).masked_fill(~padded(B, L), -torch.inf)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, H * Dk), bias), {}, ["bias=add"]


def wrong_readout_of_packed_heads(B, H, L, Dk):
    return _readout(UnmaskedReadout, B, H, L, Dk)


def right_readout_of_packed_heads(B, H, L, Dk):
    return _readout(Readout, B, H, L, Dk)


def reference_readout_of_packed_heads(module, x, question, bias):
    keep = (bias == 0)[:, None, None]
    q, k, v = (t.unflatten(-1, (module.heads, -1)).transpose(1, 2) for t in project(x, module.qkv).chunk(3, -1))
    x = x + merge(attend(q, k, v, keep))
    k, v = (t.unflatten(-1, (module.heads, -1)).transpose(1, 2) for t in project(x, module.kv).chunk(2, -1))
    q = project(question, module.ask).unflatten(-1, (module.heads, 1, -1))
    return merge(attend(q, k, v, keep)).flatten(1)


class RightGate(nn.Module):
    """A block, and pooling of its tokens by a score that each has by itself."""

    def __init__(self, dim, heads):
        super().__init__()
        self.block, self.gate = Attend(dim, heads), nn.Linear(dim, 1)

    def masked(self, scores, keep):
        return scores.masked_fill(~keep, -torch.inf)

    def forward(self, x, keep):
        x = x + self.block(x, x, keep)
        weights = self.masked(self.gate(x.tanh()).squeeze(-1), keep).softmax(-1)
        return torch.einsum("bl,bld->bd", weights, x)


class WrongGate(RightGate):
    def masked(self, scores, keep):
        return scores


def _pooled_by_a_gate(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), padded(B, L)), {}, ["keep=keep"]


def wrong_pooled_by_a_gate(B, H, L, Dk):
    return _pooled_by_a_gate(WrongGate, B, H, L, Dk)


def right_pooled_by_a_gate(B, H, L, Dk):
    return _pooled_by_a_gate(RightGate, B, H, L, Dk)


def reference_pooled_by_a_gate(module, x, keep):
    x = x + module.block.expected(x, x, keep)
    scores = project(x.tanh(), module.gate)[..., 0]
    return torch.einsum("bl,bld->bd", softmax(torch.where(keep, scores, -torch.inf)), x)
