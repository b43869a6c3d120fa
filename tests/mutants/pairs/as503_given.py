"""AS503 where one mask hides later keys and others too, and the queries get the rows of the first tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge
from tests.mutants.pairs.caches import PAST

PAIRS = [
    ("AS503", "rows_cut_inside", *PAST),
    ("AS503", "first_rows_added", *PAST),
    ("AS503", "positions_from_zero", *PAST),
]


def _present(B, L, Lp):
    """One of the first tokens of each sequence was taken back."""
    return torch.arange(Lp + L) != 1 + torch.arange(B)[:, None] % 2


def _kept(B, L, Lp):
    """B Lk Lk: true for keys that are present and no later than the query."""
    return torch.ones(Lp + L, Lp + L, dtype=torch.bool).tril() & _present(B, L, Lp)[:, None]


class Masked(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.qkv = n_heads, nn.Linear(width, 3 * width)

    def hidden(self, mask, new):
        return ~mask[:, None, -new:]

    def forward(self, x, past, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        weights = torch.where(self.hidden(mask, x.shape[1]), -torch.inf, scores).softmax(dim=-1)
        return torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)


class FirstRows(Masked):
    def hidden(self, mask, new):
        return ~mask[:, None, :new]  # wrong: AS503 rows_cut_inside


def _case(cls, mask, B, H, L, Lp, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(2, B, H, Lp, Dk), mask(B, L, Lp)), {}, ["causal"]


def wrong_rows_cut_inside(B, H, L, Lp, Dk):
    return _case(FirstRows, _kept, B, H, L, Lp, Dk)


def right_rows_cut_inside(B, H, L, Lp, Dk):
    return _case(Masked, _kept, B, H, L, Lp, Dk)


def reference_rows_cut_inside(module, x, past, mask):
    q, k, v = fused(x, module.qkv, module.n_heads)
    keep = _kept(x.shape[0], x.shape[1], past.shape[3])[:, None, -x.shape[1] :]
    return merge(attend(q, torch.cat((past[0], k), 2), torch.cat((past[1], v), 2), keep))


def last_rows(q, k, v, past_key, past_value, later):
    key, value = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
    return F.scaled_dot_product_attention(q, key, value, attn_mask=later[..., past_key.shape[2] :, :])


def first_rows(q, k, v, past_key, past_value, later):
    key, value = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
    rows = later[..., : q.shape[2], :]  # wrong: AS503 first_rows_added
    return F.scaled_dot_product_attention(q, key, value, attn_mask=rows)


def _added(function, B, H, L, Lp, Dk):
    later = torch.where(_kept(B, L, Lp), 0.0, -torch.inf)[:, None]
    return function, (*torch.randn(3, B, H, L, Dk), *torch.randn(2, B, H, Lp, Dk), later), {}, ["causal"]


def wrong_first_rows_added(B, H, L, Lp, Dk):
    return _added(first_rows, B, H, L, Lp, Dk)


def right_first_rows_added(B, H, L, Lp, Dk):
    return _added(last_rows, B, H, L, Lp, Dk)


def reference_first_rows_added(function, q, k, v, past_key, past_value, later):
    keep = _kept(q.shape[0], q.shape[2], past_key.shape[2])[:, None, -q.shape[2] :]
    return attend(q, torch.cat((past_key, k), 2), torch.cat((past_value, v), 2), keep)


class Positions(Masked):
    """Compares the tokens' positions; `mask` tells which keys are present."""

    def hidden(self, mask, new):
        every = mask.shape[1]
        later = torch.arange(every) > torch.arange(every - new, every)[:, None]
        return later | ~mask[:, None, None]


class PositionsFromZero(Positions):
    def hidden(self, mask, new):
        later = torch.arange(mask.shape[1]) > torch.arange(new)[:, None]  # wrong: AS503 positions_from_zero
        return later | ~mask[:, None, None]


def wrong_positions_from_zero(B, H, L, Lp, Dk):
    return _case(PositionsFromZero, _present, B, H, L, Lp, Dk)


def right_positions_from_zero(B, H, L, Lp, Dk):
    return _case(Positions, _present, B, H, L, Lp, Dk)


reference_positions_from_zero = reference_rows_cut_inside
