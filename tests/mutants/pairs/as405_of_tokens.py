"""AS405 where the numbers of the tokens say which of them are padding, and nothing else is given."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 3, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
PAIRS = [("AS405", "exponent_of_unit", *SIZES), ("AS405", "zero_for_padding", *SIZES)]


def _padded(B, L):
    """Return numbers of tokens, of which 0 is padding, in rows of several lengths."""
    return torch.randint(1, 20, (B, L)) * (torch.arange(L) < L - torch.arange(B)[:, None] % 3)


class Purchases(nn.Module):
    lowest = -1e9

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.items = nn.Embedding(20, width, padding_idx=0)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, ids):
        q, k, v = self.qkv(self.items(ids)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.masked_fill((ids == 0)[:, None, None, :], self.lowest)  # wrong: AS405 exponent_of_unit
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class PurchasesFilledWithAlmostZero(Purchases):
    lowest = -1e-9


def _purchases(cls, B, H, L, Dk):
    return cls(H * Dk, H), (_padded(B, L),), {}


def wrong_exponent_of_unit(B, H, L, Dk):
    return _purchases(PurchasesFilledWithAlmostZero, B, H, L, Dk)


def right_exponent_of_unit(B, H, L, Dk):
    return _purchases(Purchases, B, H, L, Dk)


def reference_exponent_of_unit(module, ids):
    kept = (ids > 0)[:, None, None].expand(-1, 1, ids.shape[1], -1)
    return merge(attend(*fused(module.items(ids), module.qkv, module.n_heads), kept))


class Titles(nn.Module):
    """Every word reads the words of its title."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.words = n_heads, nn.Embedding(20, width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def hide(self, logits, words):
        return torch.where(words[:, None, :, None].gt(0).mT, logits, -torch.inf)

    def forward(self, words):
        x = self.words(words)
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.q, self.k, self.v))
        logits = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
        weights = self.hide(logits, words).softmax(dim=-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class TitlesTimesMask(Titles):
    def hide(self, logits, words):
        return logits * words[:, None, None, :].gt(0)  # wrong: AS405 zero_for_padding


def _titles(cls, B, H, L, Dk):
    return cls(H * Dk, H), (_padded(B, L),), {}


def wrong_zero_for_padding(B, H, L, Dk):
    return _titles(TitlesTimesMask, B, H, L, Dk)


def right_zero_for_padding(B, H, L, Dk):
    return _titles(Titles, B, H, L, Dk)


def reference_zero_for_padding(module, words):
    x, kept = module.words(words), (words > 0)[:, None, None].expand(-1, 1, words.shape[1], -1)
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.q, module.k, module.v))
    return merge(attend(q, k, v, kept), module.out)
