"""AS501 and AS505 in sparse attention, which hides more keys than the claims say."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SIZES = (
    {"B": 7, "H": 5, "L": 11, "Dk": 6},
    {"B": 5, "H": 3, "L": 13, "Dk": 7},
    {"B": 6, "H": 2, "L": 9, "Dk": 5},
)
WINDOWS = tuple(sizes | {"W": 4} for sizes in SIZES)
PAIRS = [
    ("AS501", "dilated_on_both_sides", *SIZES),
    ("AS501", "sinks_before_the_triangle", *SIZES),
    ("AS501", "fixed_blocks", *SIZES),
    ("AS501", "chosen_keys_added", *SIZES),
    ("AS501", "documents_or_triangle", *SIZES),
    ("AS505", "dilated_two_further", *WINDOWS),
    ("AS505", "random_keys_added", *WINDOWS),
    ("AS505", "dilated_by_width", *WINDOWS),
    ("AS505", "summaries_of_all", *WINDOWS),
    ("AS505", "every_third_of_all", *WINDOWS),
]


class Sparse(nn.Module):
    """`keep` gets the numbers of queries and keys."""

    def __init__(self, width, heads, window=None):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def keep(self, i, j):
        raise NotImplementedError

    def forward(self, x):
        at = torch.arange(x.shape[1])
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~self.keep(at[:, None], at[None, :]), -torch.inf).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def _causal(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def _windowed(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["window=W"]


def _reference(module, x, keep):
    table = torch.tensor([[bool(keep(i, j)) for j in range(x.shape[1])] for i in range(x.shape[1])])
    return merge(attend(*fused(x, module.qkv, module.heads), table), module.out)


class Dilated(Sparse):
    def keep(self, i, j):
        return (j <= i) & ((i - j) % 2 == 0)


class DilatedOnBothSides(Sparse):
    def keep(self, i, j):
        return (i - j) % 2 == 0  # wrong: AS501 dilated_on_both_sides


def wrong_dilated_on_both_sides(B, H, L, Dk):
    return _causal(DilatedOnBothSides, B, H, L, Dk)


def right_dilated_on_both_sides(B, H, L, Dk):
    return _causal(Dilated, B, H, L, Dk)


def reference_dilated_on_both_sides(module, x):
    return _reference(module, x, lambda i, j: j <= i and (i - j) % 2 == 0)


class Sinks(Sparse):
    """The first two tokens and the last three."""

    def keep(self, i, j):
        return (j <= i) & ((i - j < 3) | (j < 2))


class SinksForAll(Sparse):
    def keep(self, i, j):
        return (j <= i) & (i - j < 3) | (j < 2)  # wrong: AS501 sinks_before_the_triangle


def wrong_sinks_before_the_triangle(B, H, L, Dk):
    return _causal(SinksForAll, B, H, L, Dk)


def right_sinks_before_the_triangle(B, H, L, Dk):
    return _causal(Sinks, B, H, L, Dk)


def reference_sinks_before_the_triangle(module, x):
    return _reference(module, x, lambda i, j: j <= i and (i - j < 3 or j < 2))


class Fixed(nn.Module):
    """Half of the heads attend within their block, the others to the last token of each block before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def triangle(self, length):
        return torch.ones(length, length, dtype=torch.bool).tril()

    def mask(self, length):
        block = torch.arange(length) // 4
        own = (block[:, None] == block) & self.triangle(length)
        ends = (torch.arange(length) % 4 == 3) & (block < block[:, None])
        first = torch.arange(self.heads) < self.heads // 2
        return torch.where(first[:, None, None], own, ends | torch.eye(length, dtype=torch.bool))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x.shape[1]))
        return self.out(context.transpose(1, 2).flatten(2))


class FixedOpen(Fixed):
    def triangle(self, length):
        return torch.ones(length, length, dtype=torch.bool)


def wrong_fixed_blocks(B, H, L, Dk):
    return _causal(FixedOpen, B, H, L, Dk)


def right_fixed_blocks(B, H, L, Dk):
    return _causal(Fixed, B, H, L, Dk)


def reference_fixed_blocks(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    length, contexts = x.shape[1], []
    for head in range(module.heads):
        if head < module.heads // 2:
            keep = [[i // 4 == j // 4 and j <= i for j in range(length)] for i in range(length)]
        else:
            keep = [[i == j or (j % 4 == 3 and j // 4 < i // 4) for j in range(length)] for i in range(length)]
        one = slice(head, head + 1)
        contexts.append(attend(q[:, one], k[:, one], v[:, one], torch.tensor(keep)))
    return merge(torch.cat(contexts, 1), module.out)


def chosen(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the tokens so far that were chosen, and to oneself."""
    length = q.shape[2]
    earlier = torch.ones(length, length, dtype=torch.bool).tril(-1)
    keep = torch.eye(length, dtype=torch.bool) | (earlier & allowed)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bhjd->bhid", torch.where(keep, scores, -1e30).softmax(-1), v)


def chosen_by_all(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk) to the tokens so far that were chosen, and to oneself."""
    length = q.shape[2]
    earlier = torch.ones(length, length, dtype=torch.bool).tril(-1)
    keep = torch.eye(length, dtype=torch.bool) | earlier | allowed
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bhjd->bhid", torch.where(keep, scores, -1e30).softmax(-1), v)


def _chosen(function, B, H, L, Dk):
    allowed = torch.arange(L * L).view(L, L) * 7 % 5 < 2
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), allowed), {}, ["causal"]


def wrong_chosen_keys_added(B, H, L, Dk):
    return _chosen(chosen_by_all, B, H, L, Dk)


def right_chosen_keys_added(B, H, L, Dk):
    return _chosen(chosen, B, H, L, Dk)


def reference_chosen_keys_added(function, q, k, v, allowed):
    at = torch.arange(q.shape[2])
    return attend(q, k, v, (at == at[:, None]) | ((at < at[:, None]) & allowed))


class Documents(Sparse):
    """Three documents take turns in one row, as in interleaved streams."""

    def keep(self, i, j):
        return torch.logical_and(i % 3 == j % 3, i >= j)


class DocumentsOpen(Sparse):
    def keep(self, i, j):
        return torch.logical_or(i % 3 == j % 3, i >= j)  # wrong: AS501 documents_or_triangle


def wrong_documents_or_triangle(B, H, L, Dk):
    return _causal(DocumentsOpen, B, H, L, Dk)


def right_documents_or_triangle(B, H, L, Dk):
    return _causal(Documents, B, H, L, Dk)


def reference_documents_or_triangle(module, x):
    return _reference(module, x, lambda i, j: j <= i and (i - j) % 3 == 0)


class DilatedWindow(Sparse):
    def keep(self, i, j):
        return ((i - j).abs() < self.window) & ((i - j) % 2 == 0)


class DilatedWider(Sparse):
    def keep(self, i, j):
        return ((i - j).abs() < self.window + 2) & ((i - j) % 2 == 0)  # wrong: AS505 dilated_two_further


class DilatedByWidth(Sparse):
    def keep(self, i, j):
        return ((i - j).abs() < 2 * self.window) & ((i - j) % 2 == 0)  # wrong: AS505 dilated_by_width


def wrong_dilated_two_further(B, H, L, Dk, W):
    return _windowed(DilatedWider, B, H, L, Dk, W)


def right_dilated_two_further(B, H, L, Dk, W):
    return _windowed(DilatedWindow, B, H, L, Dk, W)


def wrong_dilated_by_width(B, H, L, Dk, W):
    return _windowed(DilatedByWidth, B, H, L, Dk, W)


def reference_dilated_two_further(module, x):
    return _reference(module, x, lambda i, j: abs(i - j) < module.window and (i - j) % 2 == 0)


right_dilated_by_width, reference_dilated_by_width = right_dilated_two_further, reference_dilated_two_further


class Random(Sparse):
    """Some keys of the window, which a fixed pattern chooses."""

    def pattern(self, i, j):
        return (i * 5 + j * 3) % 7 < 3

    def keep(self, i, j):
        near = (i - j).abs() < self.window
        return (near & self.pattern(i, j)) | (i == j)


class RandomAdded(Random):
    def keep(self, i, j):
        near = (i - j).abs() < self.window
        return near | self.pattern(i, j) | (i == j)


def wrong_random_keys_added(B, H, L, Dk, W):
    return _windowed(RandomAdded, B, H, L, Dk, W)


def right_random_keys_added(B, H, L, Dk, W):
    return _windowed(Random, B, H, L, Dk, W)


def reference_random_keys_added(module, x):
    return _reference(module, x, lambda i, j: i == j or (abs(i - j) < module.window and (i * 5 + j * 3) % 7 < 3))


def summaries(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Attend in (B, L, H, Dk) to oneself and to summaries, every third token, within the window."""
    at = torch.arange(q.shape[1])
    distance = (at[:, None] - at).abs()
    is_summary = (at % 3 == 0) & (distance < width)
    bias = torch.zeros(distance.shape).masked_fill(~(is_summary | (distance == 0)), -torch.inf)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(1, 2)


def summaries_of_all(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Attend in (B, L, H, Dk) to oneself and to summaries, every third token, within the window."""
    at = torch.arange(q.shape[1])
    distance = (at[:, None] - at).abs()
    is_summary = at % 3 == 0
    bias = torch.zeros(distance.shape).masked_fill(~(is_summary | (distance == 0)), -torch.inf)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(1, 2)


def _summaries(function, B, H, L, Dk, W):
    return function, (*(torch.randn(B, L, H, Dk) for _ in range(3)), W), {}, ["window=W"]


def wrong_summaries_of_all(B, H, L, Dk, W):
    return _summaries(summaries_of_all, B, H, L, Dk, W)


def right_summaries_of_all(B, H, L, Dk, W):
    return _summaries(summaries, B, H, L, Dk, W)


def reference_summaries_of_all(function, q, k, v, width):
    at = torch.arange(q.shape[1])
    distance = (at[:, None] - at).abs()
    keep = ((at % 3 == 0) & (distance < width)) | (distance == 0)
    return attend(*(t.transpose(1, 2) for t in (q, k, v)), keep).transpose(1, 2)


class EveryThird(nn.Module):
    """Scores are multiplied out in folded batch and heads, and every third key of the window is kept."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def band(self, ones):
        return ones.tril(self.window - 1).triu(1 - self.window)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4).reshape(3, B * self.heads, L, -1)
        at = torch.arange(L)
        keep = self.band(torch.ones(L, L)) * ((at[:, None] - at) % 3 == 0)
        scores = torch.baddbmm(torch.zeros(L, L, dtype=x.dtype), q, k.mT, alpha=q.shape[-1] ** -0.5)
        weights = scores.masked_fill(keep == 0, -torch.inf).softmax(dim=-1)
        return self.out(torch.bmm(weights, v).view(B, self.heads, L, -1).transpose(1, 2).reshape(B, L, D))


class EveryThirdOfAll(EveryThird):
    def band(self, ones):
        return ones


def wrong_every_third_of_all(B, H, L, Dk, W):
    return _windowed(EveryThirdOfAll, B, H, L, Dk, W)


def right_every_third_of_all(B, H, L, Dk, W):
    return _windowed(EveryThird, B, H, L, Dk, W)


def reference_every_third_of_all(module, x):
    return _reference(module, x, lambda i, j: abs(i - j) < module.window and (i - j) % 3 == 0)
