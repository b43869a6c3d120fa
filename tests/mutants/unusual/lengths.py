"""Lengths of batch elements in unusual forms."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, multihead, split

SIZES = ({"B": 4, "H": 3, "L": 9, "Dk": 5}, {"B": 5, "H": 2, "L": 11, "Dk": 7})
CROSS = ({"B": 4, "H": 3, "Lq": 7, "Lk": 9, "Dk": 5}, {"B": 5, "H": 2, "Lq": 9, "Lk": 11, "Dk": 7})
UNUSUAL = [
    ("whole_frames_only", *SIZES),
    ("as_long_as_the_longest", *SIZES),
    ("tokens_beside_sentinels", *SIZES),
    ("causal_behind_left_padding", *SIZES),
    ("latents_read_what_is_there", *SIZES),
    ("first_token_unseen", *SIZES),
    ("two_lengths", *CROSS),
    ("values_set_to_zero", *SIZES),
    ("longer_is_sharper", *SIZES),
]


def lengths_from(least, length, B):
    """One length for each batch element, the largest one first."""
    return (length - 2 * torch.arange(B)).clamp(min=least)


class WholeFrames(nn.Module):
    """A convolution without padding, of which only frames count that lie within an utterance."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.conv = nn.Conv1d(dim, dim, 3, stride=2)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        keep = torch.arange(x.shape[1]) < ((lengths - 3) // 2 + 1).clamp(min=1)[:, None]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return multihead(q, k, v, self.heads, keep=keep[:, None, None])


def case_whole_frames_only(B, H, L, Dk):
    return WholeFrames(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(3, L, B)), {}, ["lengths=length"]


class Longest(nn.Module):
    """The mask is as wide as the longest text, and so are the texts."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, lengths):
        x = x[:, : int(lengths.max())]
        padding = torch.arange(int(lengths.max())) >= lengths[:, None]
        return x + self.attn(x, x, x, key_padding_mask=padding)[0]


def case_as_long_as_the_longest(B, H, L, Dk):
    return Longest(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["lengths=length"]


class Sentinels(nn.Module):
    """One learned token on each side, of which the second one follows the text, wherever that ends."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ends = nn.Parameter(torch.randn(2, dim))
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        first, last = (end.expand(len(x), 1, -1) for end in self.ends)
        x = torch.cat([first, x, last], dim=1)
        keep = torch.arange(x.shape[1]) <= lengths[:, None]
        keep[:, -1] = True
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return multihead(q, k, v, self.heads, keep=keep[:, None, None])[:, 1:-1]


def case_tokens_beside_sentinels(B, H, L, Dk):
    return Sentinels(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["lengths=length"]


class LeftPadded(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        length = x.shape[1]
        keep = torch.arange(length) >= length - lengths[:, None, None, None]
        keep = keep & torch.ones(length, length, dtype=torch.bool).tril() | torch.eye(length, dtype=torch.bool)
        q, k, v = (split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return x + F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2)


def case_causal_behind_left_padding(B, H, L, Dk):
    return LeftPadded(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["lengths=length", "causal"]


class Latents(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(3, dim))
        self.kv = nn.Linear(dim, 2 * dim)

    def forward(self, x, counts):
        keep = torch.arange(x.shape[1])[None, :] < counts[:, None]
        k, v = self.kv(x).chunk(2, dim=-1)
        q = self.latents.expand(len(x), -1, -1)
        latents = q + multihead(q, k, v, self.heads, keep=keep[:, None, None])
        return latents + multihead(latents, latents, latents, self.heads)


def case_latents_read_what_is_there(B, H, L, Dk):
    return Latents(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["counts=length"]


class Prompted(nn.Module):
    """The first token, of which every text has one, is never a key of others."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        at = torch.arange(x.shape[1])
        keep = (at > 0) & (at < lengths[:, None])
        q, k, v = (split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return x + attention(q, k, v, keep=keep[:, None, None]).transpose(1, 2).flatten(2)


def case_first_token_unseen(B, H, L, Dk):
    return Prompted(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(2, L, B)), {}, ["lengths=length"]


class TwoLengths(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(2))

    def forward(self, target, source, target_lengths, source_lengths):
        padding = torch.arange(target.shape[1]) >= target_lengths[:, None]
        x = target + self.own(target, target, target, key_padding_mask=padding)[0]
        padding = torch.arange(source.shape[1]) >= source_lengths[:, None]
        return x + self.other(x, source, source, key_padding_mask=padding)[0]


def case_two_lengths(B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), lengths_from(1, Lq, B), lengths_from(1, Lk, B)
    return TwoLengths(H * Dk, H), args, {}, ["target_lengths=length", "source_lengths=length"]


class ZeroedValues(nn.Module):
    """Attention without a softmax, to which padding adds zeros."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        keep = torch.arange(x.shape[1]) < lengths[:, None]
        q, k, v = (split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, (F.elu(k) + 1) * keep[:, None, :, None]
        summed = torch.einsum("bhkd,bhke->bhde", k, v)
        total = torch.einsum("bhqd,bhd->bhq", q, k.sum(2))
        return x + (torch.einsum("bhqd,bhde->bhqe", q, summed) / total[..., None]).transpose(1, 2).flatten(2)


def case_values_set_to_zero(B, H, L, Dk):
    return ZeroedValues(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["lengths=length"]


class Sharper(nn.Module):
    """Scores grow by the logarithm of the length, of which the mask is made as well."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, lengths):
        keep = torch.arange(x.shape[1]) < lengths[:, None]
        q, k, v = (split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q = q * (1 + lengths.to(x.dtype).log())[:, None, None, None]
        return x + attention(q, k, v, keep=keep[:, None, None]).transpose(1, 2).flatten(2)


def case_longer_is_sharper(B, H, L, Dk):
    return Sharper(H * Dk, H), (torch.randn(B, L, H * Dk), lengths_from(1, L, B)), {}, ["lengths=length"]
