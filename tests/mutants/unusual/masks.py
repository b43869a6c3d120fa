"""Masks and visibility in unusual forms."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6})
PAST = ({"B": 2, "H": 4, "Lp": 6, "L": 3, "Dk": 5}, {"B": 5, "H": 2, "Lp": 4, "L": 8, "Dk": 7})
WINDOW = ({"B": 2, "H": 4, "L": 7, "Dk": 5, "W": 3}, {"B": 5, "H": 3, "L": 9, "Dk": 7, "W": 4})
BLOCKS = ({"B": 2, "H": 3, "Dk": 5, "W": 4}, {"B": 5, "H": 3, "Dk": 7, "W": 2})
UNUSUAL = [
    ("sliding_window", *WINDOW),
    ("cached_bottom_right", *PAST),
    ("one_token", {"B": 2, "H": 4, "Lp": 6, "Dk": 5}, {"B": 5, "H": 2, "Lp": 9, "Dk": 7}),
    ("attention_sinks", *SIZES),
    ("prefix_seen_by_all", *PAST),
    ("running_softmax", *CROSS),
    ("local_chunks", *WINDOW),
    ("memory_tokens", *SIZES),
    ("masked_in_place", *CROSS),
    ("packed_sequences", *SIZES),
    ("empty_rows_zero", *CROSS),
    ("top_keys", *SIZES),
    ("zero_sink_of_blocks", *BLOCKS),
    ("round_windows", *BLOCKS),
    ("without_padding", *SIZES),
    ("scores_row_by_row", *SIZES),
]


class Base(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        self.heads, self.depth = heads, depth
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)
        self.proj = nn.Linear(heads * depth, heads * depth)

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.heads, self.depth)).permute(2, 0, 3, 1, 4)

    def merge(self, x):
        return self.proj(x.transpose(1, 2).flatten(2))


class SlidingWindow(Base):
    def __init__(self, heads, depth, window):
        super().__init__(heads, depth)
        self.window = window

    def forward(self, x):
        q, k, v = self.split(x)
        n = x.shape[1]
        band = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.window)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=band))


def case_sliding_window(B, H, L, Dk, W):
    return SlidingWindow(H, Dk, W), (torch.randn(B, L, H * Dk),), {}, ["causal", "window=W"]


def reference_sliding_window(module, x):
    keep = torch.tensor([[0 <= i - j < module.window for j in range(x.shape[1])] for i in range(x.shape[1])])
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, keep=keep))


class Cached(Base):
    """New tokens attend to the cache and causally to each other; also returns the extended cache."""

    def forward(self, x, past_key, past_value):
        q, k, v = self.split(x)
        k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
        new, seen = q.shape[2], k.shape[2]
        scores = q @ k.mT / math.sqrt(self.depth)
        hidden = torch.ones(new, seen, dtype=torch.bool).triu(1 + seen - new)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.merge(weights @ v), k, v


def case_cached_bottom_right(B, H, Lp, L, Dk):
    return Cached(H, Dk), (torch.randn(B, L, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}, ["causal"]


def case_one_token(B, H, Lp, Dk):
    return Cached(H, Dk), (torch.randn(B, 1, H * Dk), *torch.randn(2, B, H, Lp, Dk)), {}, ["causal"]


def reference_cached_bottom_right(module, x, past_key, past_value):
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    k, v = torch.cat((join(past_key), k), dim=1), torch.cat((join(past_value), v), dim=1)
    return module.proj(multihead(q, k, v, module.heads, keep=causal(q.shape[1], k.shape[1])))


reference_one_token = reference_cached_bottom_right


class AttentionSinks(Base):
    """A learned logit per head takes part in each softmax and is then dropped."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        q, k, v = self.split(x)
        scores = q @ k.mT * self.depth**-0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        sinks = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        return self.merge(weights @ v)


def case_attention_sinks(B, H, L, Dk):
    return AttentionSinks(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def reference_attention_sinks(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    powers = (torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(module.depth)).exp() * causal(x.shape[1], x.shape[1])
    total = powers.sum(-1, keepdim=True) + module.sinks.exp()[:, None, None]
    return module.proj(join(torch.einsum("bhij,bhjd->bhid", powers / total, v)))


class Prefix(Base):
    """Attention is bidirectional within the prefix and causal after it."""

    def forward(self, prefix, x):
        h = torch.cat((prefix, x), dim=1)
        q, k, v = self.split(h)
        place = torch.arange(h.shape[1])
        keep = (place <= place[:, None]) | (place < prefix.shape[1])
        scores = torch.where(keep, q @ k.mT / math.sqrt(self.depth), -torch.inf)
        return self.merge(scores.softmax(dim=-1) @ v)


def case_prefix_seen_by_all(B, H, Lp, L, Dk):
    return Prefix(H, Dk), (torch.randn(B, Lp, H * Dk), torch.randn(B, L, H * Dk)), {}


def reference_prefix_seen_by_all(module, prefix, x):
    h = torch.cat((prefix, x), dim=1)
    keep = causal(h.shape[1], h.shape[1])
    keep[:, : prefix.shape[1]] = True
    return module.proj(multihead(*module.qkv(h).chunk(3, dim=-1), module.heads, keep=keep))


def running_softmax(q, k, v, block=2):
    """Blocks of keys with a running maximum and sum of the softmax: (B, H, L, Dk)."""
    q = q / math.sqrt(q.shape[-1])
    peak = torch.full_like(q[..., :1], -torch.inf)
    total, output = torch.zeros_like(peak), torch.zeros_like(q)
    for keys, values in zip(k.split(block, dim=2), v.split(block, dim=2), strict=True):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, keys)
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        powers, shrink = (scores - higher).exp(), (peak - higher).exp()
        total = total * shrink + powers.sum(dim=-1, keepdim=True)
        output = output * shrink + powers @ values
        peak = higher
    return output / total


def case_running_softmax(B, H, Lq, Lk, Dk):
    return running_softmax, (torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)), {}


def reference_running_softmax(function, q, k, v):
    return attention(q, k, v)


class LocalChunks(SlidingWindow):
    """Chunks of W tokens, each of which attends only to itself; the last is padded."""

    def forward(self, x):
        n = x.shape[1]
        chunks = math.ceil(n / self.window)
        padded = F.pad(x, (0, 0, 0, chunks * self.window - n))
        real = (torch.arange(chunks * self.window) < n).view(chunks, 1, 1, self.window)
        q, k, v = (t.unflatten(2, (chunks, self.window)).transpose(1, 2) for t in self.split(padded))
        scores = (q @ k.mT / math.sqrt(self.depth)).masked_fill(~real, -torch.inf)
        return self.merge((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2, 3))[:, :n]


def case_local_chunks(B, H, L, Dk, W):
    return LocalChunks(H, Dk, W), (torch.randn(B, L, H * Dk),), {}


def reference_local_chunks(module, x):
    pieces = [multihead(*module.qkv(p).chunk(3, dim=-1), module.heads) for p in x.split(module.window, dim=1)]
    return module.proj(torch.cat(pieces, dim=1))


class MemoryTokens(Base):
    """Learned tokens, visible to all, are prepended to the sequence and removed from the output."""

    def __init__(self, heads, depth):
        super().__init__(heads, depth)
        self.memory = nn.Parameter(torch.randn(3, heads * depth))

    def forward(self, x):
        memory = self.memory.expand(x.shape[0], -1, -1)
        q, k, v = self.split(torch.cat((memory, x), dim=1))
        return self.merge(F.scaled_dot_product_attention(q, k, v))[:, len(self.memory) :]


def case_memory_tokens(B, H, L, Dk):
    return MemoryTokens(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_memory_tokens(module, x):
    h = torch.stack([torch.cat((module.memory, row)) for row in x])
    q, k, v = module.qkv(h).chunk(3, dim=-1)
    return module.proj(multihead(q[:, 3:], k, v, module.heads))


def masked_in_place(q, k, v, mask):
    """Masks and scales the scores in place; `mask` is (B, Lk), True at padding."""
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores /= math.sqrt(q.shape[-1])
    scores.masked_fill_(mask[:, None, None, :], -math.inf)
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def _lengths(B, Lk):
    return torch.arange(Lk) >= Lk - torch.arange(B).remainder(Lk - 1)[:, None]


def case_masked_in_place(B, H, Lq, Lk, Dk):
    qkv = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return masked_in_place, qkv, {"mask": _lengths(B, Lk)}, ["mask=drop"]


def reference_masked_in_place(function, q, k, v, mask):
    return attention(q, k, v, keep=~mask[:, None, None])


class Packed(Base):
    """Several documents in one row; `document` (B, L) has the document of each token."""

    def forward(self, x, document):
        q, k, v = self.split(x)
        same = document[:, :, None] == document[:, None, :]
        keep = (same & torch.ones_like(same).tril()).unsqueeze(1)
        scores = (q @ k.mT * self.depth**-0.5).masked_fill(~keep, -torch.inf)
        return self.merge(scores.softmax(dim=-1) @ v)


def case_packed_sequences(B, H, L, Dk):
    document = (torch.arange(L) + torch.arange(B)[:, None]) // 3
    return Packed(H, Dk), (torch.randn(B, L, H * Dk), document), {}, ["causal"]


def reference_packed_sequences(module, x, document):
    n = x.shape[1]
    keep = torch.tensor([[[r[i] == r[j] and j <= i for j in range(n)] for i in range(n)] for r in document.tolist()])
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, keep=keep[:, None]))


def empty_rows_zero(q, k, v, mask):
    """`mask` (B, Lq, Lk) is True at visible keys; a query without visible keys gets zeros."""
    mask = mask.unsqueeze(1)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, torch.finfo(q.dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(~mask, 0.0)
    return weights @ v


def case_empty_rows_zero(B, H, Lq, Lk, Dk):
    qkv = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    mask = torch.rand(B, Lq, Lk) > 0.3
    mask[:, 0] = False
    return empty_rows_zero, qkv, {"mask": mask}, ["mask=keep", "zero-masked-rows"]


def reference_empty_rows_zero(function, q, k, v, mask):
    return attention(q, k, v, keep=mask[:, None]).nan_to_num(nan=0.0)


class TopKeys(Base):
    """Each query keeps its two best keys."""

    def forward(self, x):
        q, k, v = self.split(x)
        scores = q @ k.mT / math.sqrt(self.depth)
        best, where = scores.topk(2, dim=-1)
        scores = torch.full_like(scores, -torch.inf).scatter(-1, where, best)
        return self.merge(scores.softmax(dim=-1) @ v)


def case_top_keys(B, H, L, Dk):
    return TopKeys(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_top_keys(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(module.depth)
    second = scores.sort(dim=-1, descending=True).values[..., 1:2]
    weights = softmax(torch.where(scores >= second, scores, -torch.inf))
    return module.proj(join(torch.einsum("bhij,bhjd->bhid", weights, v)))


class ZeroSinks(SlidingWindow):
    """Blocks attend causally to themselves, and to a zero each, so that a token may attend to nothing."""

    def forward(self, x):
        q, k, v = (t.unflatten(2, (-1, self.window)) for t in self.split(x))
        k, v = (F.pad(t, (0, 0, 1, 0)) for t in (k, v))
        later = torch.ones(self.window, self.window + 1, dtype=torch.bool).triu(2)
        scores = (q @ k.mT / math.sqrt(self.depth)).masked_fill(later, -torch.inf)
        return self.merge((scores.softmax(dim=-1) @ v).flatten(2, 3))


def case_zero_sink_of_blocks(B, H, Dk, W):
    return ZeroSinks(H, Dk, W), (torch.randn(B, 3 * W, H * Dk),), {}, ["causal"]


def reference_zero_sink_of_blocks(module, x):
    contexts = []
    for part in x.split(module.window, dim=1):
        q, k, v = (split(t, module.heads) for t in module.qkv(part).chunk(3, dim=-1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(module.depth)
        weights = scores.exp().tril()
        contexts.append(join(torch.einsum("bhij,bhjd->bhid", weights / (1 + weights.sum(-1, keepdim=True)), v)))
    return module.proj(torch.cat(contexts, dim=1))


class RoundWindows(SlidingWindow):
    """Windows of a ring, whose end is next to its start: a roll moves them, and nothing needs to be masked."""

    def forward(self, x):
        by = self.window // 2
        q, k, v = (t.unflatten(2, (-1, self.window)) for t in self.split(x.roll(-by, dims=1)))
        context = F.scaled_dot_product_attention(q, k, v).flatten(2, 3)
        return self.merge(context).roll(by, dims=1)


def case_round_windows(B, H, Dk, W):
    return RoundWindows(H, Dk, W), (torch.randn(B, 3 * W, H * Dk),), {}


def reference_round_windows(module, x):
    window = (torch.arange(x.shape[1]) - module.window // 2).div(module.window, rounding_mode="floor") % 3
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, keep=window[:, None] == window))


class WithoutPadding(Base):
    """Attends with the tokens that are left without padding, and puts them back to their places."""

    def forward(self, x, mask):
        out = torch.zeros_like(x)
        for row, kept in enumerate(mask):
            q, k, v = self.qkv(x[row, kept]).unflatten(-1, (3, self.heads, self.depth)).permute(1, 2, 0, 3)
            weights = torch.softmax(q @ k.mT / math.sqrt(self.depth), dim=-1)
            out[row, kept] = self.proj((weights @ v).transpose(0, 1).flatten(1))
        return out


def case_without_padding(B, H, L, Dk):
    lengths = L - torch.arange(B) % (L - 1)
    mask = torch.arange(L) < lengths[:, None]
    return WithoutPadding(H, Dk), (torch.randn(B, L, H * Dk), mask), {}, ["mask=keep"]


def reference_without_padding(module, x, mask):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, -1))
    return module.proj(join(attention(q, k, v, keep=mask[:, None, None]))).where(mask[..., None], 0)


def scores_row_by_row(q, k, v):
    """Each row of scores is made by a product of its own, and is hidden from the next key on."""
    scores = torch.empty(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
    for row in range(q.shape[-2]):
        scores[..., row, : row + 1] = torch.einsum("...d,...jd->...j", q[..., row, :], k[..., : row + 1, :])
        scores[..., row, row + 1 :] = -torch.inf
    return (scores * q.shape[-1] ** -0.5).softmax(dim=-1) @ v


def case_scores_row_by_row(B, H, L, Dk):
    return scores_row_by_row, tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, ["causal"]


def reference_scores_row_by_row(function, q, k, v):
    return attention(q, k, v, keep=causal(q.shape[2], q.shape[2]))
