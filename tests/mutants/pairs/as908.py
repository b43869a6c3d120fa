"""AS908: a token that comes alone, after the others filled the cache, gets another result than together with them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge, turned, visible

SIZES = (
    {"B": 4, "H": 5, "L": 7, "Lp": 9, "Dk": 6},
    {"B": 5, "H": 4, "L": 3, "Lp": 6, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Lp": 8, "Dk": 4},
)
OWN_SYMBOL = tuple({"P" if symbol == "Lp" else symbol: size for symbol, size in sizes.items()} for sizes in SIZES)
PAIRS = [
    ("AS908", "step_from_position_zero", *SIZES),
    ("AS908", "step_one_position_early", *SIZES),
    ("AS908", "learned_positions_from_zero", *SIZES),
    ("AS908", "mask_of_a_step", *SIZES),
    ("AS908", "one_layer_of_two", *SIZES),
    ("AS908", "cache_with_a_symbol_of_its_own", *OWN_SYMBOL),
]


def turn(x, position):
    """Feature i is paired with feature i + Dk/2."""
    dim = x.shape[-1]
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(position.to(frequency.dtype), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RightRotary(nn.Module):
    """Keys are rotated, then cached."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def place(self, past, n):
        return torch.arange(past, past + n)

    def keep(self, q, k):
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])

    def forward(self, x, past_k, past_v):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        place = self.place(past_k.shape[2], x.shape[1])
        q, k = turn(q, place), torch.cat((past_k, turn(k, place)), dim=2)
        v = torch.cat((past_v, v), dim=2)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep(q, k))
        return self.to_out(context.transpose(1, 2).flatten(2)), k, v


class FromZero(RightRotary):
    def place(self, past, n):
        if n == 1:
            return torch.zeros(1)
        return torch.arange(past, past + n)  # wrong: AS908 step_from_position_zero


class OneEarly(RightRotary):
    def place(self, past, n):
        first = past if n > 1 else past - 1
        return torch.arange(first, first + n)  # wrong: AS908 step_one_position_early


class MaskOfAStep(RightRotary):
    def keep(self, q, k):
        shift = k.shape[2] - q.shape[2] if q.shape[2] > 1 else 0
        return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(shift)  # wrong: AS908 mask_of_a_step


def _rotary(cls, B, H, L, Lp, Dk):
    past = (torch.randn(B, H, Lp, Dk) for _ in range(2))
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), *past), {}, ["causal", "rope=half"]


def wrong_step_from_position_zero(B, H, L, Lp, Dk):
    return _rotary(FromZero, B, H, L, Lp, Dk)


def wrong_step_one_position_early(B, H, L, Lp, Dk):
    return _rotary(OneEarly, B, H, L, Lp, Dk)


def wrong_mask_of_a_step(B, H, L, Lp, Dk):
    return _rotary(MaskOfAStep, B, H, L, Lp, Dk)


def right_step_from_position_zero(B, H, L, Lp, Dk):
    return _rotary(RightRotary, B, H, L, Lp, Dk)


right_step_one_position_early = right_mask_of_a_step = right_step_from_position_zero


def reference_step_from_position_zero(module, x, past_k, past_v):
    q, k, v = fused(x, module.to_qkv, module.heads)
    n, past = x.shape[1], past_k.shape[2]
    place = torch.arange(past, past + n)
    k, v = torch.cat((past_k, turned(k, place)), dim=2), torch.cat((past_v, v), dim=2)
    return merge(attend(turned(q, place), k, v, visible(n, past + n)), module.to_out)


reference_step_one_position_early = reference_mask_of_a_step = reference_step_from_position_zero


class RightLearned(nn.Module):
    """Two layers with learned positions; the cache is a list of pairs."""

    def __init__(self, width, heads, longest):
        super().__init__()
        self.heads = heads
        self.wpe = nn.Embedding(longest, width)
        self.attn = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.proj = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def positions(self, past, n):
        return torch.arange(past, past + n)

    def offset(self, layer, past, n):
        return past

    def forward(self, x, layer_past):
        n, past = x.shape[1], layer_past[0][0].shape[2]
        x = x + self.wpe(self.positions(past, n))
        present = []
        for layer, (attn, proj, cached) in enumerate(zip(self.attn, self.proj, layer_past, strict=True)):
            q, *new = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in attn(x).chunk(3, dim=-1))
            k, v = (torch.cat(pair, dim=2) for pair in zip(cached, new, strict=True))
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            future = torch.ones_like(scores, dtype=torch.bool).triu(1 + self.offset(layer, past, n))
            weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
            x = x + proj((weights @ v).transpose(1, 2).flatten(2))
            present.append((k, v))
        return x, present


class LearnedFromZero(RightLearned):
    def positions(self, past, n):
        return torch.arange(n)  # wrong: AS908 learned_positions_from_zero


class RowsFromZero(RightLearned):
    def positions(self, past, n):
        return torch.arange(0, n)  # wrong: AS908 cache_with_a_symbol_of_its_own


class OneLayer(RightLearned):
    def offset(self, layer, past, n):
        return past - 1 if n == 1 and layer == 1 else past


def _learned(cls, B, H, L, Lp, Dk):
    past = [tuple(torch.randn(B, H, Lp, Dk) for _ in range(2)) for _ in range(2)]
    return cls(H * Dk, H, 2 * (L + Lp)), (torch.randn(B, L, H * Dk), past), {}


def wrong_learned_positions_from_zero(B, H, L, Lp, Dk):
    return _learned(LearnedFromZero, B, H, L, Lp, Dk)


def wrong_one_layer_of_two(B, H, L, Lp, Dk):
    return _learned(OneLayer, B, H, L, Lp, Dk)


def right_learned_positions_from_zero(B, H, L, Lp, Dk):
    return _learned(RightLearned, B, H, L, Lp, Dk)


right_one_layer_of_two = right_learned_positions_from_zero


def reference_learned_positions_from_zero(module, x, layer_past):
    n, past = x.shape[1], layer_past[0][0].shape[2]
    x = x + module.wpe.weight[past : past + n]
    for attn, proj, cached in zip(module.attn, module.proj, layer_past, strict=True):
        q, *new = fused(x, attn, module.heads)
        k, v = (torch.cat(pair, dim=2) for pair in zip(cached, new, strict=True))
        x = x + merge(attend(q, k, v, visible(n, past + n)), proj)
    return x


reference_one_layer_of_two = reference_learned_positions_from_zero


def wrong_cache_with_a_symbol_of_its_own(B, H, L, P, Dk):
    return _learned(RowsFromZero, B, H, L, P, Dk)


def right_cache_with_a_symbol_of_its_own(B, H, L, P, Dk):
    return _learned(RightLearned, B, H, L, P, Dk)


reference_cache_with_a_symbol_of_its_own = reference_learned_positions_from_zero
