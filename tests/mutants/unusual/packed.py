"""Several sequences on one axis, in unusual forms."""

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ({"N": 3, "H": 4, "L": 6, "Dk": 5}, {"N": 4, "H": 3, "L": 7, "Dk": 8})
BATCHES = ({"B": 3, "H": 2, "L": 6, "Dk": 5}, {"B": 5, "H": 3, "L": 10, "Dk": 4})
UNUSUAL = [
    ("blocks_see_earlier_ones", *SIZES),
    ("beginnings_seen_by_all", *SIZES),
    ("windows_across_sentences", *SIZES),
    ("padded_to_rows", *SIZES),
    ("lengths_of_a_batch", *BATCHES),
]


def boundaries(N, L):
    return F.pad(torch.tensor([L + 2 * (index % 2) for index in range(N)]).cumsum(0), (1, 0))


class Packed(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def keep(self, owner, cu_seqlens):
        return owner[:, None] == owner

    def forward(self, x, cu_seqlens):
        owner = torch.bucketize(torch.arange(len(x)), cu_seqlens, right=True)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~self.keep(owner, cu_seqlens), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


class EarlierBlocks(Packed):
    def keep(self, owner, cu_seqlens):
        return owner[:, None] >= owner


def _case(cls, N, H, L, Dk):
    cu_seqlens = boundaries(N, L)
    return cls(H * Dk, H), (torch.randn(int(cu_seqlens[-1]), H * Dk), cu_seqlens)


def case_blocks_see_earlier_ones(N, H, L, Dk):
    return _case(EarlierBlocks, N, H, L, Dk)


class Beginnings(Packed):
    """The first token of each sequence is visible to all."""

    def keep(self, owner, cu_seqlens):
        is_first = torch.zeros(len(owner), dtype=torch.bool)
        is_first[cu_seqlens[:-1]] = True
        return (owner[:, None] == owner) | is_first


def case_beginnings_seen_by_all(N, H, L, Dk):
    return _case(Beginnings, N, H, L, Dk)


class Positions(Packed):
    """Windows run on from one sentence to the next; only the positions begin again."""

    def forward(self, x, cu_seqlens):
        at = torch.arange(len(x))
        owner = torch.bucketize(at, cu_seqlens, right=True)
        x = x + ((at - cu_seqlens[owner - 1])[:, None] / (1 + torch.arange(x.shape[1]))).sin().to(x.dtype)
        return super().forward(x, cu_seqlens)

    def keep(self, owner, cu_seqlens):
        at = torch.arange(len(owner))
        return (at[:, None] - at).abs() < 3


def case_windows_across_sentences(N, H, L, Dk):
    return _case(Positions, N, H, L, Dk)


class Rows(Packed):
    """Each sequence gets a row of its own, padded to the longest one."""

    def forward(self, x, cu_seqlens):
        lengths = cu_seqlens.diff()
        inside = torch.arange(int(lengths.max())) < lengths[:, None]
        rows = x.new_zeros(*inside.shape, x.shape[-1])
        rows[inside] = x
        q, k, v = self.qkv(rows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=inside[:, None, None])
        return self.out(out.transpose(1, 2).flatten(2)[inside])


def case_padded_to_rows(N, H, L, Dk):
    return _case(Rows, N, H, L, Dk)


class Batch(nn.Module):
    """Lengths that add up to the length of the longest text, of which there is one bias for each pair."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, bias, x, lengths):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        outside = torch.arange(x.shape[1]) >= lengths[:, None]
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return (scores.masked_fill(outside[:, None, None], -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


def case_lengths_of_a_batch(B, H, L, Dk):
    lengths = torch.ones(B, dtype=torch.long)
    lengths[0] = L - B + 1
    claims = ["lengths=length", "bias=bias"]
    return Batch(H * Dk, H), (torch.randn(L, L), torch.randn(B, L, H * Dk), lengths), {}, claims
