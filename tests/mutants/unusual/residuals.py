"""Layers whose residual connections start in unusual places, on purpose."""

import torch
from torch import nn

from tests.mutants.pairs.as815_as816 import Attend, Encoder, _attend, _norm

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4})
UNUSUAL = [
    ("stem_normalised_once", *SIZES),
    ("sum_around_a_stack", *SIZES),
    ("norm_after_attention_only", *SIZES),
    ("dropout_before_the_head", *SIZES),
    ("parallel_branches", *SIZES),
]


class Tower(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.stem, self.first = nn.LayerNorm(width), Encoder(width, heads)
        self.mix, self.last = Attend(width, heads), nn.LayerNorm(width)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.first.attn(self.first.ln_1(x))
        x = x + self.first.mlp(self.first.ln_2(x))
        return x + self.mix(self.last(x))


def _case(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def case_stem_normalised_once(B, H, L, Dk):
    return _case(Tower, B, H, L, Dk)


def reference_stem_normalised_once(tower, x):
    x = _norm(tower.stem, x)
    y = _norm(tower.first.ln_1, x)
    x = x + _attend(tower.first.attn, y, y)
    x = x + tower.first.mlp(_norm(tower.first.ln_2, x))
    y = _norm(tower.last, x)
    return x + _attend(tower.mix, y, y)


class AroundStack(Tower):
    """The sum around several layers starts where their first one does."""

    def forward(self, x):
        y = x + self.first.attn(self.first.ln_1(x))
        y = y + self.first.mlp(self.first.ln_2(y))
        return self.stem(x + self.mix(self.last(y)))


def case_sum_around_a_stack(B, H, L, Dk):
    return _case(AroundStack, B, H, L, Dk)


def reference_sum_around_a_stack(tower, x):
    y = _norm(tower.first.ln_1, x)
    y = x + _attend(tower.first.attn, y, y)
    y = _norm(tower.last, y + tower.first.mlp(_norm(tower.first.ln_2, y)))
    return _norm(tower.stem, x + _attend(tower.mix, y, y))


class AfterAttentionOnly(Encoder):
    """A norm after the sum of attention, and one before the feed-forward layer."""

    def forward(self, h):
        h = self.ln_1(h + self.attn(h))
        return h + self.mlp(self.ln_2(h))


def case_norm_after_attention_only(B, H, L, Dk):
    return _case(AfterAttentionOnly, B, H, L, Dk)


def reference_norm_after_attention_only(layer, h):
    h = _norm(layer.ln_1, h + _attend(layer.attn, h, h))
    return h + layer.mlp(_norm(layer.ln_2, h))


class DropsBeforeTheHead(Encoder):
    def forward(self, h):
        h = h + self.attn(self.ln_1(h))
        return self.mlp(self.drop(h)) + self.ln_2.bias * self.ln_2.weight


def case_dropout_before_the_head(B, H, L, Dk):
    return _case(DropsBeforeTheHead, B, H, L, Dk)


def reference_dropout_before_the_head(layer, h):
    y = _norm(layer.ln_1, h)
    return layer.mlp(h + _attend(layer.attn, y, y)) + layer.ln_2.bias * layer.ln_2.weight


class Parallel(Encoder):
    """Both branches read one norm, and both are added to the stream."""

    def forward(self, h):
        y = self.ln_1(h)
        return self.ln_2(h + self.attn(y) + self.mlp(y))


def case_parallel_branches(B, H, L, Dk):
    return _case(Parallel, B, H, L, Dk)


def reference_parallel_branches(layer, h):
    y = _norm(layer.ln_1, h)
    return _norm(layer.ln_2, h + (_attend(layer.attn, y, y) + layer.mlp(y)))
