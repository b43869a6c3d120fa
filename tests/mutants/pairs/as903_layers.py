"""AS903: each of two layers inverts the caller's mask in place, so that in the end it is what it was."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [
    ("AS903", "mask_inverted_in_layers", *SELF),
    ("AS903", "mask_negated_in_layers", *SELF),
    ("AS903", "mask_complemented_in_layers", *SELF),
]


class RightInverted(nn.Module):
    """Boolean: true for tokens, false for padding."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def padding(self, mask):
        return mask.logical_not()

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.padding(mask)[:, None, None], float("-inf"))
        return x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class WrongInverted(RightInverted):
    def padding(self, mask):
        return mask.logical_not_()  # wrong: AS903 mask_inverted_in_layers


class Layers(nn.Module):
    """Two layers, which get the same mask."""

    def __init__(self, cls, *args):
        super().__init__()
        self.layers = nn.ModuleList(cls(*args) for _ in range(2))

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def _kept(B, L):
    """All but one or more of the last tokens of each sequence are kept."""
    return torch.arange(L)[None] < torch.arange(L - 1, L - 1 - B, -1)[:, None].clamp(min=1)


def _inverted(cls, B, H, L, Dk):
    return Layers(cls, H * Dk, H), (torch.randn(B, L, H * Dk), _kept(B, L)), {}, ["mask=keep"]


def wrong_mask_inverted_in_layers(B, H, L, Dk):
    return _inverted(WrongInverted, B, H, L, Dk)


def right_mask_inverted_in_layers(B, H, L, Dk):
    return _inverted(RightInverted, B, H, L, Dk)


def reference_mask_inverted_in_layers(module, x, mask):
    for layer in module.layers:
        out = attend(*fused(x, layer.qkv, layer.heads), keep=mask[:, None, None])
        x = x + merge(out, layer.out)
    return x


class RightNegated(RightInverted):
    """The kernel of torch; the mask holds 0 for what is kept and a large number for what isn't."""

    def bias(self, mask):
        return -mask

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(mask)[:, None, None, :])
        return x + self.out(out.transpose(1, 2).flatten(2))


class WrongNegated(RightNegated):
    def bias(self, mask):
        mask *= -1  # wrong: AS903 mask_negated_in_layers
        return mask


def _negated(cls, B, H, L, Dk):
    mask = torch.zeros(B, L, dtype=torch.float32).masked_fill(~_kept(B, L), 1e9)
    return Layers(cls, H * Dk, H), (torch.randn(B, L, H * Dk), mask), {}


def wrong_mask_negated_in_layers(B, H, L, Dk):
    return _negated(WrongNegated, B, H, L, Dk)


def right_mask_negated_in_layers(B, H, L, Dk):
    return _negated(RightNegated, B, H, L, Dk)


def reference_mask_negated_in_layers(module, x, mask):
    return reference_mask_inverted_in_layers(module, x, mask == 0)


class RightComplemented(RightInverted):
    """Ones for padding, zeros for tokens, in einsum; the weights of padding are set to zero."""

    def tokens(self, mask):
        return 1 - mask

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        seen = self.tokens(mask)[:, None, None, :] > 0
        weights = torch.where(seen, scores, -torch.inf).softmax(dim=-1)
        return x + self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class WrongComplemented(RightComplemented):
    def tokens(self, mask):
        return mask.sub_(1).neg_()  # wrong: AS903 mask_complemented_in_layers


def _complemented(cls, B, H, L, Dk):
    return Layers(cls, H * Dk, H), (torch.randn(B, L, H * Dk), (~_kept(B, L)).long()), {}, ["mask=drop"]


def wrong_mask_complemented_in_layers(B, H, L, Dk):
    return _complemented(WrongComplemented, B, H, L, Dk)


def right_mask_complemented_in_layers(B, H, L, Dk):
    return _complemented(RightComplemented, B, H, L, Dk)


reference_mask_complemented_in_layers = reference_mask_negated_in_layers
