"""AS413: packed sequences affect each other, or the boundaries between them are missed by one token."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge

SIZES = ({"N": 3, "H": 4, "L": 6, "Dk": 5}, {"N": 4, "H": 3, "L": 7, "Dk": 8}, {"N": 5, "H": 2, "L": 8, "Dk": 6})
PAIRS = [
    ("AS413", "first_token_in_the_one_before", *SIZES),
    ("AS413", "last_token_in_the_one_behind", *SIZES),
    ("AS413", "running_count_of_ends", *SIZES),
    ("AS413", "slices_with_one_more", *SIZES),
    ("AS413", "boundaries_replaced", *SIZES),
    ("AS413", "first_sequence_left_out", *SIZES),
]


def lengths_of(N, L):
    return torch.tensor([L + 2 * (index % 2) for index in range(N)])


def boundaries(N, L):
    return F.pad(lengths_of(N, L).cumsum(0), (1, 0))


def same(boundaries):
    """Which tokens belong together, counted one by one."""
    owner = [
        index for index in range(len(boundaries) - 1) for _ in range(int(boundaries[index + 1] - boundaries[index]))
    ]
    return torch.tensor([[one == other for other in owner] for one in owner])


class RightTower(nn.Module):
    """Images of several sizes, the patches of all of them on one axis."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def image_of(self, patches, cu_seqlens):
        return torch.searchsorted(cu_seqlens[1:], patches, right=True)

    def forward(self, hidden, cu_seqlens):
        patches = torch.arange(hidden.shape[0])
        image = self.image_of(patches, cu_seqlens)
        q, k, v = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        keep = image[:, None] == image[None, :]
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=keep)
        return self.proj(out[0].transpose(0, 1).flatten(1))


class WrongTower(RightTower):
    def image_of(self, patches, cu_seqlens):
        return torch.searchsorted(cu_seqlens[1:], patches)  # wrong: AS413 first_token_in_the_one_before


def _first_token_in_the_one_before(cls, N, H, L, Dk):
    ends = boundaries(N, L)
    return cls(H * Dk, H), (torch.randn(int(ends[-1]), H * Dk), ends)


def wrong_first_token_in_the_one_before(N, H, L, Dk):
    return _first_token_in_the_one_before(WrongTower, N, H, L, Dk)


def right_first_token_in_the_one_before(N, H, L, Dk):
    return _first_token_in_the_one_before(RightTower, N, H, L, Dk)


def packed_reference(x, q, k, v, keep, out=None):
    """Attention of (tokens, features), with the tokens that are kept for each."""
    return merge(attend(q, k, v, keep), out)[0]


def reference_first_token_in_the_one_before(module, hidden, cu_seqlens):
    q, k, v = (part.unflatten(-1, (module.heads, -1)).transpose(0, 1)[None] for part in module.qkv(hidden).chunk(3, -1))
    return packed_reference(hidden, q, k, v, same(cu_seqlens), module.proj)


def right_texts(x, starts, heads):
    """Causal attention in a row of texts; `starts` also has the end of the last one."""
    at = torch.arange(x.shape[1])
    text = (at[:, None] >= starts[1:-1]).sum(1)
    return _texts(x, text, heads)


def wrong_texts(x, starts, heads):
    at = torch.arange(x.shape[1])
    text = (at[:, None] >= starts[1:-1] - 1).sum(1)  # wrong: AS413 last_token_in_the_one_behind
    return _texts(x, text, heads)


def _texts(x, text, heads):
    q = k = v = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    seen = (text[:, None] == text) & torch.ones(len(text), len(text)).tril().bool()
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bhjd->bihd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(2)


def _last_token_in_the_one_behind(function, N, H, L, Dk):
    starts = boundaries(N, L)
    return (lambda x, starts: function(x, starts, H)), (torch.randn(1, int(starts[-1]), H * Dk), starts), {}, ["causal"]


def wrong_last_token_in_the_one_behind(N, H, L, Dk):
    return _last_token_in_the_one_behind(wrong_texts, N, H, L, Dk)


def right_last_token_in_the_one_behind(N, H, L, Dk):
    return _last_token_in_the_one_behind(right_texts, N, H, L, Dk)


def reference_last_token_in_the_one_behind(function, x, starts):
    dim = x.shape[-1]
    count = next(cell.cell_contents for cell in function.__closure__ if isinstance(cell.cell_contents, int))
    q = x.unflatten(-1, (count, dim // count)).transpose(1, 2)
    return merge(attend(q, q, q, same(starts).tril()))


class RightRuns(nn.Module):
    """Melodies one after the other, told apart by a running count of their beginnings."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def flagged(self, notes, lengths):
        return lengths.cumsum(0)[:-1]

    def forward(self, notes, lengths):
        flags = torch.zeros(len(notes), dtype=torch.long)
        flags[self.flagged(notes, lengths)] = 1
        melody = flags.cumsum(0)
        q, k, v = (layer(notes).unflatten(-1, (self.n_heads, -1)) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
        scores = scores + torch.where(melody[:, None] == melody, 0.0, -1e9).to(scores.dtype)
        return self.o(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1))


class WrongRuns(RightRuns):
    def flagged(self, notes, lengths):
        return lengths.cumsum(0)[:-1] - 1  # wrong: AS413 running_count_of_ends


def _running_count_of_ends(cls, N, H, L, Dk):
    lengths = lengths_of(N, L)
    return cls(H * Dk, H), (torch.randn(int(lengths.sum()), H * Dk), lengths)


def wrong_running_count_of_ends(N, H, L, Dk):
    return _running_count_of_ends(WrongRuns, N, H, L, Dk)


def right_running_count_of_ends(N, H, L, Dk):
    return _running_count_of_ends(RightRuns, N, H, L, Dk)


def reference_running_count_of_ends(module, notes, lengths):
    q, k, v = (heads(notes[None], layer, module.n_heads) for layer in (module.q, module.k, module.v))
    return packed_reference(notes, q, k, v, same(F.pad(lengths.cumsum(0), (1, 0))), module.o)


class RightBlocks(nn.Module):
    """A mask of blocks on the diagonal, one for each molecule."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.kqv = nn.Linear(dim, 3 * dim, bias=False)

    def last(self, end):
        return end

    def forward(self, atoms, ptr):
        n = atoms.shape[0]
        hidden = torch.ones(n, n, dtype=torch.bool)
        for begin, end in itertools.pairwise(ptr.tolist()):
            hidden[begin : self.last(end), begin : self.last(end)] = False
        k, q, v = self.kqv(atoms).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        weights = ((q @ k.mT) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return atoms + (weights @ v).transpose(0, 1).flatten(1)


class WrongBlocks(RightBlocks):
    def last(self, end):
        return end + 1


def _slices_with_one_more(cls, N, H, L, Dk):
    ptr = boundaries(N, L)
    return cls(H * Dk, H), (torch.randn(int(ptr[-1]), H * Dk), ptr)


def wrong_slices_with_one_more(N, H, L, Dk):
    return _slices_with_one_more(WrongBlocks, N, H, L, Dk)


def right_slices_with_one_more(N, H, L, Dk):
    return _slices_with_one_more(RightBlocks, N, H, L, Dk)


def reference_slices_with_one_more(module, atoms, ptr):
    k, q, v = (part.unflatten(-1, (module.heads, -1)).transpose(0, 1)[None] for part in module.kqv(atoms).chunk(3, -1))
    return atoms + packed_reference(atoms, q, k, v, same(ptr))


class RightLinear(nn.Module):
    """Linear attention, whose state begins again with each sequence."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def bounds(self, x, cu_seqlens, mask):
        return cu_seqlens if cu_seqlens is not None else F.pad(mask.sum(1).cumsum(0), (1, 0))

    def forward(self, x, cu_seqlens=None, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        outs = []
        bounds = self.bounds(x, cu_seqlens, mask).tolist()
        for begin, end in itertools.pairwise(bounds):
            state = torch.einsum("bhld,bhle->bhlde", k[:, :, begin:end], v[:, :, begin:end]).cumsum(2)
            total = k[:, :, begin:end].cumsum(2)
            own = q[:, :, begin:end]
            outs.append(torch.einsum("bhld,bhlde->bhle", own, state) / (own * total).sum(-1, keepdim=True))
        return torch.cat(outs, 2).transpose(1, 2).flatten(2)


class WrongLinear(RightLinear):
    def bounds(self, x, cu_seqlens, mask):
        return F.pad(mask.sum(1).cumsum(0), (1, 0)) if mask is not None else cu_seqlens


def _boundaries_replaced(cls, N, H, L, Dk):
    cu_seqlens = boundaries(N, L)
    total = int(cu_seqlens[-1])
    arguments = {"cu_seqlens": cu_seqlens, "mask": torch.ones(1, total, dtype=torch.long)}
    return cls(H * Dk, H), (torch.randn(1, total, H * Dk),), arguments, ["causal"]


def wrong_boundaries_replaced(N, H, L, Dk):
    return _boundaries_replaced(WrongLinear, N, H, L, Dk)


def right_boundaries_replaced(N, H, L, Dk):
    return _boundaries_replaced(RightLinear, N, H, L, Dk)


def reference_boundaries_replaced(module, x, cu_seqlens, mask):
    q, k, v = (part.unflatten(-1, (module.heads, -1)).transpose(1, 2) for part in module.qkv(x).chunk(3, -1))
    q, k = (torch.where(part > 0, part + 1, part.exp()) for part in (q, k))
    weights = torch.einsum("bhid,bhjd->bhij", q, k) * same(cu_seqlens).tril()
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v))


def right_sentences(tokens, counts, module):
    bounds = F.pad(counts.cumsum(0), (1, 0))
    return _sentences(tokens, bounds, module)


def wrong_sentences(tokens, counts, module):
    bounds = counts.cumsum(0)  # wrong: AS413 first_sequence_left_out
    return _sentences(tokens, bounds, module)


def _sentences(tokens, bounds, module):
    out = torch.zeros_like(tokens)
    for i in range(len(bounds) - 1):
        one = tokens[bounds[i] : bounds[i + 1]].unsqueeze(0)
        out[bounds[i] : bounds[i + 1]] = module(one, one, one, need_weights=False)[0].squeeze(0)
    return out


class Sentences(nn.Module):
    def __init__(self, function, dim, heads):
        super().__init__()
        self.function = function
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, tokens, counts):
        return self.function(tokens, counts, self.attn)


def _first_sequence_left_out(function, N, H, L, Dk):
    counts = lengths_of(N, L)
    return Sentences(function, H * Dk, H), (torch.randn(int(counts.sum()), H * Dk), counts)


def wrong_first_sequence_left_out(N, H, L, Dk):
    return _first_sequence_left_out(wrong_sentences, N, H, L, Dk)


def right_first_sequence_left_out(N, H, L, Dk):
    return _first_sequence_left_out(right_sentences, N, H, L, Dk)


def reference_first_sequence_left_out(module, tokens, counts):
    inner = module.attn
    parts = zip(inner.in_proj_weight.chunk(3), inner.in_proj_bias.chunk(3), strict=True)
    q, k, v = ((tokens @ w.T + b).unflatten(-1, (inner.num_heads, -1)).transpose(0, 1)[None] for w, b in parts)
    return packed_reference(tokens, q, k, v, same(F.pad(counts.cumsum(0), (1, 0))), inner.out_proj)
