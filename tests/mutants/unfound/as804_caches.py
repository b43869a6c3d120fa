"""AS804 where one argument is the whole cache, and what is joined with it doesn't reach the scores."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge
from tests.mutants.pairs.caches import PAST

PAIRS = [
    ("AS804", "cut_off_again", *PAST),
    ("AS804", "past_behind_the_mask", *PAST),
    ("AS804", "past_times_zero", *PAST),
]


class Positioned(nn.Module):
    """New tokens get the positions after those of the cache, (2, B, H, Lp, Dk)."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.position = nn.Parameter(torch.randn(64, width // n_heads))

    def used(self, both, new):
        return both

    def forward(self, x, past):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        keys, values = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        q = q + self.position[keys.shape[2] - q.shape[2] : keys.shape[2]]
        context = F.scaled_dot_product_attention(q, self.used(keys, k), self.used(values, v))
        return context.transpose(1, 2).flatten(2)


class CutOffAgain(Positioned):
    def used(self, both, new):
        return both[:, :, -new.shape[2] :]


def _case(cls, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(2, B, H, Lp, Dk)), {}


def wrong_cut_off_again(B, H, L, Lp, Dk):
    return _case(CutOffAgain, B, H, L, Lp, Dk)


def right_cut_off_again(B, H, L, Lp, Dk):
    return _case(Positioned, B, H, L, Lp, Dk)


def reference_cut_off_again(module, x, past):
    q, k, v = fused(x, module.qkv, module.n_heads)
    q = q + module.position[past.shape[3] : past.shape[3] + x.shape[1]]
    return merge(attend(q, torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)))


class Masked(nn.Module):
    """Each token sees the whole cache, and the new tokens up to itself."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def seen(self, new, old):
        return torch.ones(new, old)

    def kept(self, past):
        return past

    def forward(self, x, past):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        past_key, past_value = self.kept(past).unbind(0)
        keys, values = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
        new, old = x.shape[1], past.shape[3]
        seen = torch.cat([self.seen(new, old), torch.ones(new, new).tril()], dim=1)
        scores = torch.einsum("bhid,bhjd->bhij", q, keys) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(seen == 0, -torch.inf).softmax(dim=-1)
        return torch.einsum("bhij,bhjd->bihd", weights, values).flatten(2)


class MaskedPast(Masked):
    def seen(self, new, old):
        return torch.zeros(new, old)


class TimesZero(Masked):
    def kept(self, past):
        return past * (torch.arange(past.shape[3]) >= past.shape[3])[:, None]


def wrong_past_behind_the_mask(B, H, L, Lp, Dk):
    return _case(MaskedPast, B, H, L, Lp, Dk)


def wrong_past_times_zero(B, H, L, Lp, Dk):
    return _case(TimesZero, B, H, L, Lp, Dk)


def right_past_behind_the_mask(B, H, L, Lp, Dk):
    return _case(Masked, B, H, L, Lp, Dk)


def reference_past_behind_the_mask(module, x, past):
    q, k, v = fused(x, module.qkv, module.n_heads)
    new, old = x.shape[1], past.shape[3]
    keep = torch.tensor([[j <= i + old for j in range(old + new)] for i in range(new)])
    return merge(attend(q, torch.cat((past[0], k), 2), torch.cat((past[1], v), 2), keep))


right_past_times_zero, reference_past_times_zero = right_past_behind_the_mask, reference_past_behind_the_mask
