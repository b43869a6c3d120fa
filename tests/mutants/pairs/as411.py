"""AS411: batch elements use one token more or less than an argument of lengths, or of last positions, says."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge
from tests.mutants.plain import softmax

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 8, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
MEMORY = (
    {"B": 4, "T": 5, "S": 9, "D": 6, "E": 8},
    {"B": 5, "T": 9, "S": 7, "D": 8, "E": 6},
    {"B": 6, "T": 7, "S": 11, "D": 4, "E": 9},
)
PAIRS = [
    ("AS411", "frames_up_to_the_end", *SELF),
    ("AS411", "keys_and_one_more", *SELF),
    ("AS411", "behind_the_last_token", *SELF),
    ("AS411", "cache_without_its_last", *CROSS),
    ("AS411", "padded_on_the_left", *SELF),
    ("AS411", "memory_and_one_more", *MEMORY),
]


def numbers(B, length):
    """One number from 1 to length - 1 for each batch element."""
    return 1 + (length // 2 + torch.arange(B)) % (length - 1)


class RightPooling(nn.Module):
    """Pools channels-first frames by weights that sum to one over those of an utterance."""

    def __init__(self, channels):
        super().__init__()
        self.score = nn.Conv1d(channels, channels, 1)

    def inside(self, frames, lengths):
        return frames[None, :] < lengths[:, None]

    def forward(self, x, lengths):
        mask = self.inside(torch.arange(x.shape[-1]), lengths)[:, None]
        weights = self.score(x.tanh()).masked_fill(~mask, -torch.inf).softmax(dim=2)
        return (weights * x).sum(dim=2)


class WrongPooling(RightPooling):
    def inside(self, frames, lengths):
        return frames[None, :] <= lengths[:, None]  # wrong: AS411 frames_up_to_the_end


def _frames_up_to_the_end(cls, B, H, L, Dk):
    return cls(H * Dk), (torch.randn(B, H * Dk, L), numbers(B, L))


def wrong_frames_up_to_the_end(B, H, L, Dk):
    return _frames_up_to_the_end(WrongPooling, B, H, L, Dk)


def right_frames_up_to_the_end(B, H, L, Dk):
    return _frames_up_to_the_end(RightPooling, B, H, L, Dk)


def reference_frames_up_to_the_end(module, x, lengths):
    scores = torch.einsum("oi,bil->bol", module.score.weight[..., 0], x.tanh()) + module.score.bias[:, None]
    keep = torch.tensor([[position < int(length) for position in range(x.shape[-1])] for length in lengths])
    return (softmax(torch.where(keep[:, None], scores, -torch.inf)) * x).sum(-1)


class RightEncoder(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def padding(self, positions, lens):
        return positions >= lens.view(-1, 1, 1, 1)

    def forward(self, x, lens):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(self.padding(torch.arange(x.shape[1]), lens), -torch.inf)
        return self.proj(torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).flatten(2))


class WrongEncoder(RightEncoder):
    def padding(self, positions, lens):
        return positions > lens.view(-1, 1, 1, 1)  # wrong: AS411 keys_and_one_more


def _keys_and_one_more(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["lens=length"]


def wrong_keys_and_one_more(B, H, L, Dk):
    return _keys_and_one_more(WrongEncoder, B, H, L, Dk)


def right_keys_and_one_more(B, H, L, Dk):
    return _keys_and_one_more(RightEncoder, B, H, L, Dk)


def reference_keys_and_one_more(module, x, lens):
    keep = torch.stack([torch.arange(x.shape[1]) < length for length in lens])[:, None, None]
    return merge(attend(*fused(x, module.qkv, module.heads), keep), module.proj)


class RightReward(nn.Module):
    """Causal attention, whose last token is read."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def last(self, x, sizes):
        return x[torch.arange(len(x)), sizes - 1]

    def forward(self, x, sizes):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.last(x + out.transpose(1, 2).reshape(B, L, D), sizes)


class WrongReward(RightReward):
    def last(self, x, sizes):
        return x[torch.arange(len(x)), sizes]  # wrong: AS411 behind_the_last_token


def _behind_the_last_token(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["sizes=length", "causal"]


def wrong_behind_the_last_token(B, H, L, Dk):
    return _behind_the_last_token(WrongReward, B, H, L, Dk)


def right_behind_the_last_token(B, H, L, Dk):
    return _behind_the_last_token(RightReward, B, H, L, Dk)


def reference_behind_the_last_token(module, x, sizes):
    lower = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    every = x + merge(attend(*fused(x, module.qkv, module.heads), lower))
    return torch.stack([one[int(size) - 1] for one, size in zip(every, sizes, strict=True)])


class RightMemory(nn.Module):
    """Reads a memory up to and including the slot that was written last."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def bias(self, slots, newest):
        return torch.where(slots <= newest[:, None], 0.0, -torch.inf)

    def forward(self, x, memory, newest):
        parts = (self.q(x), self.k(memory), self.v(memory))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        bias = self.bias(torch.arange(memory.shape[1]), newest).to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None, None])
        return out.transpose(1, 2).flatten(2)


class WrongMemory(RightMemory):
    def bias(self, slots, newest):
        return torch.where(slots < newest[:, None], 0.0, -torch.inf)  # wrong: AS411 cache_without_its_last


def _cache_without_its_last(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), numbers(B, Lk)
    return cls(H * Dk, H), args, {}, ["newest=last-token"]


def wrong_cache_without_its_last(B, H, Lq, Lk, Dk):
    return _cache_without_its_last(WrongMemory, B, H, Lq, Lk, Dk)


def right_cache_without_its_last(B, H, Lq, Lk, Dk):
    return _cache_without_its_last(RightMemory, B, H, Lq, Lk, Dk)


def reference_cache_without_its_last(module, x, memory, newest):
    q, k, v = (heads(t, p, module.heads) for t, p in ((x, module.q), (memory, module.k), (memory, module.v)))
    keep = torch.stack([torch.arange(memory.shape[1]) < slot + 1 for slot in newest])
    return merge(attend(q, k, v, keep[:, None, None]))


class RightPrompt(nn.Module):
    """Padding comes first, as where text is generated behind prompts of several lengths."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def is_padding(self, length, lengths):
        return torch.arange(length) < length - lengths[:, None]

    def forward(self, x, lengths):
        hidden = self.is_padding(x.shape[1], lengths)
        return self.attn(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


class WrongPrompt(RightPrompt):
    def is_padding(self, length, lengths):
        return torch.arange(length) <= length - lengths[:, None]  # wrong: AS411 padded_on_the_left


def _padded_on_the_left(cls, B, H, L, Dk):
    lengths = 2 + (L // 2 + torch.arange(B)) % (L - 2)
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), lengths), {}, ["lengths=length"]


def wrong_padded_on_the_left(B, H, L, Dk):
    return _padded_on_the_left(WrongPrompt, B, H, L, Dk)


def right_padded_on_the_left(B, H, L, Dk):
    return _padded_on_the_left(RightPrompt, B, H, L, Dk)


def reference_padded_on_the_left(module, x, lengths):
    inner = module.attn
    parts = zip(inner.in_proj_weight.chunk(3), inner.in_proj_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (inner.num_heads, -1)).transpose(1, 2) for w, b in parts)
    keep = torch.stack([torch.arange(x.shape[1]) >= x.shape[1] - length for length in lengths])
    return merge(attend(q, k, v, keep[:, None, None]), inner.out_proj)


class RightLuong(nn.Module):
    """Attention of decoder states to a memory of another length and width (Luong et al. 2015)."""

    def __init__(self, width, memory_width):
        super().__init__()
        self.general = nn.Linear(memory_width, width, bias=False)
        self.combine = nn.Linear(width + memory_width, width, bias=False)

    def padding(self, length, lengths):
        return torch.arange(length)[None, :] >= lengths[:, None]

    def forward(self, states, memory, memory_lengths):
        align = torch.bmm(states, self.general(memory).transpose(1, 2))
        align = align.masked_fill(self.padding(memory.shape[1], memory_lengths)[:, None], -torch.inf)
        weights = F.softmax(align, dim=-1)
        return torch.tanh(self.combine(torch.cat([torch.bmm(weights, memory), states], dim=2))), weights


class WrongLuong(RightLuong):
    def padding(self, length, lengths):
        return torch.arange(length)[None, :] > lengths[:, None]  # wrong: AS411 memory_and_one_more


def _luong(cls, B, T, S, D, E):
    return cls(D, E), (torch.randn(B, T, D), torch.randn(B, S, E), numbers(B, S)), {}, ["memory_lengths=length"]


def wrong_memory_and_one_more(B, T, S, D, E):
    return _luong(WrongLuong, B, T, S, D, E)


def right_memory_and_one_more(B, T, S, D, E):
    return _luong(RightLuong, B, T, S, D, E)


def reference_memory_and_one_more(module, states, memory, memory_lengths):
    scores = torch.einsum("btd,de,bse->bts", states, module.general.weight, memory)
    keep = torch.tensor([[place < int(length) for place in range(memory.shape[1])] for length in memory_lengths])
    weights = softmax(torch.where(keep[:, None], scores, -torch.inf))
    context = torch.einsum("bts,bse->bte", weights, memory)
    return torch.tanh(torch.cat([context, states], dim=-1) @ module.combine.weight.T), weights
