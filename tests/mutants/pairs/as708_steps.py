"""AS708 and AS703: a layer rotates queries and keys in one call, and neither of them in another."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, turned, visible

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
STREAMS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 9, "Lk": 6, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS703", "single_token_not_rotated", *SIZES),
    ("AS703", "step_without_tables", *SIZES),
    ("AS708", "second_block_not_rotated", *SIZES),
    ("AS708", "second_pass_not_rotated", *SIZES),
    ("AS708", "other_stream_not_rotated", *STREAMS),
]


def turn(x, position):
    """Feature i is paired with feature i + Dk/2."""
    dim = x.shape[-1]
    angle = torch.outer(position.double(), 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.heads = n
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def rotated(self, q, k, past):
        place = torch.arange(past, past + q.shape[2])
        return turn(q, place), turn(k, place)

    def forward(self, x, past_k, past_v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        past = past_k.shape[2]
        q, k = self.rotated(q, k, past)
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(past)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out(context.transpose(1, 2).flatten(2)), k, v


class LayerOfPrompts(Layer):
    def rotated(self, q, k, past):
        return super().rotated(q, k, past) if q.shape[2] > 1 else (q, k)


class Decoder(nn.Module):
    """The prompt in one call of the layer, and the last token in another."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        k = v = x.new_zeros(x.shape[0], self.layer.heads, 0, x.shape[2] // self.layer.heads)
        first, k, v = self.layer(x[:, :-1], k, v)
        last, _, _ = self.layer(x[:, -1:], k, v)
        return torch.cat((first, last), dim=1)


def _decoder(cls, B, H, L, Dk):
    return Decoder(cls(H * Dk, H)), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def wrong_single_token_not_rotated(B, H, L, Dk):
    return _decoder(LayerOfPrompts, B, H, L, Dk)


def right_single_token_not_rotated(B, H, L, Dk):
    return _decoder(Layer, B, H, L, Dk)


def reference_single_token_not_rotated(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = fused(x, module.layer.qkv, module.layer.heads)
    return merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))), module.layer.out)


def turn_pairs(x, position):
    """Feature 2i is paired with feature 2i + 1, as complex numbers."""
    width = x.shape[-1]
    angle = position.double()[:, None] / 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    factor = torch.polar(torch.ones_like(angle), angle)
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * factor
    return torch.view_as_real(z).flatten(-2).to(x.dtype)


class Stepwise(nn.Module):
    """Weights as parameters, scores in einsum; the prompt, then one token after the other."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v = (
            nn.Parameter(torch.randn(width, heads, width // heads) / math.sqrt(width)) for _ in range(3)
        )

    def step(self, q, k, past):
        return self.prompt(q, k, past)

    def prompt(self, q, k, past):
        place = torch.arange(past, past + q.shape[2])
        return turn_pairs(q, place), turn_pairs(k, place)

    def forward(self, x):
        prompt, contexts, keys, values = x.shape[1] // 2, [], [], []
        for piece in (x[:, :prompt], *x[:, prompt:].split(1, dim=1)):
            q, k, v = (torch.einsum("bld,dhe->bhle", piece, w) for w in (self.w_q, self.w_k, self.w_v))
            past = sum(one.shape[2] for one in keys)
            q, k = self.step(q, k, past) if keys else self.prompt(q, k, past)
            keys, values = [*keys, k], [*values, v]
            scores = torch.einsum("bhid,bhjd->bhij", q, torch.cat(keys, 2)) / math.sqrt(q.shape[-1])
            hidden = torch.ones_like(scores[0, 0]).triu(past + 1) > 0
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            contexts.append(torch.einsum("bhij,bhjd->bihd", weights, torch.cat(values, 2)).flatten(2))
        return torch.cat(contexts, dim=1)


class StepWithoutTables(Stepwise):
    def step(self, q, k, past):
        return q, k


def _stepwise(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=interleaved"]


def wrong_step_without_tables(B, H, L, Dk):
    return _stepwise(StepWithoutTables, B, H, L, Dk)


def right_step_without_tables(B, H, L, Dk):
    return _stepwise(Stepwise, B, H, L, Dk)


def reference_step_without_tables(module, x):
    place = torch.arange(x.shape[1])
    q, k, v = (torch.einsum("bld,dhe->bhle", x, w) for w in (module.w_q, module.w_k, module.w_v))
    q, k = (turned(t, place, "interleaved") for t in (q, k))
    return merge(attend(q, k, v, visible(len(place), len(place))))


def _module(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


class Twice(nn.Module):
    """One layer, applied twice."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def place(self, q, k, depth):
        position = torch.arange(q.shape[2])
        return turn(q, position), turn(k, position)

    def forward(self, x):
        for depth in range(2):
            q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q, k = self.place(q, k, depth)
            scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
            hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            x = x + torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)
        return x


class TwiceRotatedOnce(Twice):
    def place(self, q, k, depth):
        return (q, k) if depth else super().place(q, k, depth)


def wrong_second_pass_not_rotated(B, H, L, Dk):
    return _module(TwiceRotatedOnce, B, H, L, Dk)


def right_second_pass_not_rotated(B, H, L, Dk):
    return _module(Twice, B, H, L, Dk)


def reference_second_pass_not_rotated(module, x):
    place = torch.arange(x.shape[1])
    for _ in range(2):
        q, k, v = fused(x, module.qkv, module.heads)
        x = x + merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))))
    return x


class TwoStreams(nn.Module):
    """A question and a passage go through the same attention, in the kernel; pairs of features are turned."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def attend(self, x, place):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if place is not None:
            q, k = turn_pairs(q, place), turn_pairs(k, place)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def place(self, passage):
        return torch.arange(passage.shape[1])

    def forward(self, question, passage):
        return self.attend(passage, self.place(passage)), self.attend(question, torch.arange(question.shape[1]))


class OneStreamRotated(TwoStreams):
    def place(self, passage):
        return None


def _streams(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)
    return cls(H * Dk, H), args, {}, ["rope=interleaved"]


def wrong_other_stream_not_rotated(B, H, Lq, Lk, Dk):
    return _streams(OneStreamRotated, B, H, Lq, Lk, Dk)


def right_other_stream_not_rotated(B, H, Lq, Lk, Dk):
    return _streams(TwoStreams, B, H, Lq, Lk, Dk)


def reference_other_stream_not_rotated(module, question, passage):
    results = []
    for x in (passage, question):
        q, k, v = (heads(x, one, module.heads) for one in (module.query, module.key, module.value))
        q, k = (turned(t, torch.arange(x.shape[1]), "interleaved") for t in (q, k))
        results.append(merge(attend(q, k, v)))
    return tuple(results)


class TiedBlocks(nn.Module):
    """Blocks with the same projections, spelled as parameters, and a loop over heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(width, width) / math.sqrt(width)) for _ in range(3))

    def positions(self, tokens):
        return torch.arange(tokens)

    def block(self, x, positions):
        contexts = []
        for q, k, v in zip(*((x @ w).chunk(self.heads, dim=-1) for w in (self.w_q, self.w_k, self.w_v)), strict=True):
            if positions is not None:
                q, k = turn(q, positions), turn(k, positions)
            scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
            later = torch.arange(q.shape[1]) > torch.arange(q.shape[1])[:, None]
            contexts.append(scores.masked_fill(later, -1e9).softmax(dim=2) @ v)
        return torch.cat(contexts, dim=2)

    def forward(self, x):
        x = x + self.block(x, torch.arange(x.shape[1]))
        return x + self.block(x, self.positions(x.shape[1]))


class SecondBlockWithout(TiedBlocks):
    def positions(self, tokens):
        return None


def wrong_second_block_not_rotated(B, H, L, Dk):
    return _module(SecondBlockWithout, B, H, L, Dk)


def right_second_block_not_rotated(B, H, L, Dk):
    return _module(TiedBlocks, B, H, L, Dk)


def reference_second_block_not_rotated(module, x):
    place = torch.arange(x.shape[1])
    for _ in range(2):
        parts = (torch.einsum("bli,io->blo", x, w) for w in (module.w_q, module.w_k, module.w_v))
        q, k, v = (torch.stack(t.chunk(module.heads, -1), 1) for t in parts)
        x = x + merge(attend(turned(q, place), turned(k, place), v, visible(len(place), len(place))))
    return x
