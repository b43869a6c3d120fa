"""AS411 where results don't tell which tokens are used: subsampled, causal and windowed attention, and added tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge

SELF = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 3, "L": 11, "Dk": 4})
CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS411", "frames_rounded_down", *SELF),
    ("AS411", "pooled_pairs_rounded_down", *SELF),
    ("AS411", "class_token_not_counted", *SELF),
    ("AS411", "causal_without_last", *SELF),
    ("AS411", "neighbours_and_padding", *SELF),
    ("AS411", "queries_of_padding", *SELF),
    ("AS411", "memory_without_lengths", *CROSS),
    ("AS411", "lengths_of_the_target", *CROSS),
    ("AS411", "clamped_below_the_length", *SELF),
    ("AS411", "divided_by_heads", *SELF),
]


def numbers(B, length):
    """One number from 1 to length for each batch element, the largest one among them."""
    return 1 + (length - 1 + 2 * torch.arange(B)) % length


class RightSubsampling(nn.Module):
    """Speech frames, every second of which is left by a convolution that pads both ends."""

    def __init__(self, dim, heads):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def subsampled(self, lengths):
        return (lengths + 1) // 2

    def forward(self, frames, lengths):
        inside = torch.arange(frames.shape[1]) < lengths[:, None]
        x = self.conv((frames * inside[..., None]).transpose(1, 2)).relu().transpose(1, 2)
        lengths = self.subsampled(lengths)
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        return x + self.attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class WrongSubsampling(RightSubsampling):
    def subsampled(self, lengths):
        return (lengths // 2).clamp(min=1)  # wrong: AS411 frames_rounded_down


def _frames_rounded_down(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["lengths=length"]


def wrong_frames_rounded_down(B, H, L, Dk):
    return _frames_rounded_down(WrongSubsampling, B, H, L, Dk)


def right_frames_rounded_down(B, H, L, Dk):
    return _frames_rounded_down(RightSubsampling, B, H, L, Dk)


def torch_attention(module, q, kv, keep):
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for x, w, b in zip((q, kv, kv), weights, biases, strict=True)
    )
    return merge(attend(q, k, v, keep), module.out_proj)


def reference_frames_rounded_down(module, frames, lengths):
    kept = [[t < int(n) for t in range(frames.shape[1])] for n in lengths]
    padded = F.pad(torch.where(torch.tensor(kept)[..., None], frames, 0), (0, 0, 1, 1))
    taps = [padded[:, tap:][:, : frames.shape[1] : 2] for tap in range(3)]
    x = sum(taps[tap] @ module.conv.weight[:, :, tap].T for tap in range(3)) + module.conv.bias
    x = x.relu()
    left = torch.tensor([[2 * t < int(n) for t in range(x.shape[1])] for n in lengths])
    return x + torch_attention(module.attn, x, x, left[:, None, None])


class RightPyramid(nn.Module):
    """Pairs of neighbouring tokens become one, the last one alone where their number is odd."""

    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def left(self, size):
        return torch.div(size + 1, 2, rounding_mode="floor")

    def forward(self, tokens, size):
        outside = torch.arange(tokens.shape[1]) >= size[:, None]
        pooled = F.max_pool1d(tokens.masked_fill(outside[..., None], -1e4).mT, 2, ceil_mode=True).mT
        bias = torch.zeros(pooled.shape[:2]).to(tokens.dtype)
        bias.masked_fill_(torch.arange(pooled.shape[1]) >= self.left(size).unsqueeze(1), float("-inf"))
        q, k, v = self.qkv(pooled).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, bias[:, None, None]).transpose(1, 2).flatten(2))


class WrongPyramid(RightPyramid):
    def left(self, size):
        return torch.div(size, 2, rounding_mode="floor").clamp(1)  # wrong: AS411 pooled_pairs_rounded_down


def _pooled_pairs_rounded_down(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["size=length"]


def wrong_pooled_pairs_rounded_down(B, H, L, Dk):
    return _pooled_pairs_rounded_down(WrongPyramid, B, H, L, Dk)


def right_pooled_pairs_rounded_down(B, H, L, Dk):
    return _pooled_pairs_rounded_down(RightPyramid, B, H, L, Dk)


def reference_pooled_pairs_rounded_down(module, tokens, size):
    inside = torch.tensor([[t < int(n) for t in range(tokens.shape[1])] for n in size])
    tokens = torch.where(inside[..., None], tokens, -1e4)
    pooled = torch.stack([tokens[:, t : t + 2].amax(1) for t in range(0, tokens.shape[1], 2)], 1)
    keep = torch.tensor([[2 * t < int(n) for t in range(pooled.shape[1])] for n in size])
    return merge(attend(*fused(pooled, module.qkv, module.n_head), keep[:, None, None]), module.out)


class RightClassifier(nn.Module):
    """A class token in front of a set of tokens."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.cls = nn.Parameter(torch.randn(dim))
        self.qkv, self.head = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def kept(self, positions, n_points):
        return positions < n_points[:, None] + 1

    def forward(self, points, n_points):
        x = torch.cat([self.cls.expand(len(points), 1, -1), points], dim=1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keep = self.kept(torch.arange(x.shape[1]), n_points)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~keep[:, None, None], -1e9).softmax(-1)
        x = x + torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)
        return self.head(x[:, 0])


class WrongClassifier(RightClassifier):
    def kept(self, positions, n_points):
        return positions < n_points[:, None]  # wrong: AS411 class_token_not_counted


def _class_token_not_counted(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["n_points=length"]


def wrong_class_token_not_counted(B, H, L, Dk):
    return _class_token_not_counted(WrongClassifier, B, H, L, Dk)


def right_class_token_not_counted(B, H, L, Dk):
    return _class_token_not_counted(RightClassifier, B, H, L, Dk)


def reference_class_token_not_counted(module, points, n_points):
    found = []
    for one, count in zip(points, n_points, strict=True):
        x = torch.cat([module.cls[None], one[: int(count)]])[None]
        found.append(module.head((x + merge(attend(*fused(x, module.qkv, module.heads))))[:, 0]))
    return torch.cat(found)


class RightDecoder(nn.Module):
    """Causal attention that also leaves out the padding behind each text."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def ends(self, lens):
        return lens

    def forward(self, x, lens):
        length = x.size(1)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        positions = torch.arange(length)
        keep = (positions <= positions[:, None]) & (positions < self.ends(lens)[:, None, None])
        keep = keep | torch.eye(length, dtype=torch.bool) & (positions >= lens[:, None, None])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None])
        return x + self.o(y.transpose(1, 2).flatten(2))


class WrongDecoder(RightDecoder):
    def ends(self, lens):
        return (lens - 1).clamp(min=1)  # wrong: AS411 causal_without_last


def _causal_without_last(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["lens=length", "causal"]


def wrong_causal_without_last(B, H, L, Dk):
    return _causal_without_last(WrongDecoder, B, H, L, Dk)


def right_causal_without_last(B, H, L, Dk):
    return _causal_without_last(RightDecoder, B, H, L, Dk)


def reference_causal_without_last(module, x, lens):
    L = x.shape[1]
    keep = torch.tensor([[[j <= i and (j < n or i == j) for j in range(L)] for i in range(L)] for n in lens.tolist()])
    q, k, v = (heads(x, layer, module.heads) for layer in (module.q, module.k, module.v))
    return x + merge(attend(q, k, v, keep[:, None]), module.o)


class RightNeighbours(nn.Module):
    """Each residue attends to those next to it in the chain."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def is_residue(self, index, chain_lengths):
        return index < chain_lengths.unsqueeze(-1)

    def forward(self, chains, chain_lengths):
        b, n, _ = chains.shape
        q, k, v = self.qkv(chains).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        index = torch.arange(n)
        near = (index[:, None] - index).abs() < 3
        sees = near & self.is_residue(index, chain_lengths)[:, None, None, :]
        sees = sees | torch.eye(n, dtype=torch.bool)
        scores = (q @ k.mT) / q.size(-1) ** 0.5
        scores = torch.where(sees, scores, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


class WrongNeighbours(RightNeighbours):
    def is_residue(self, index, chain_lengths):
        return index <= chain_lengths.unsqueeze(-1)  # wrong: AS411 neighbours_and_padding


def _neighbours_and_padding(cls, B, H, L, Dk):
    claims = ["chain_lengths=length", "window=3"]
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, claims


def wrong_neighbours_and_padding(B, H, L, Dk):
    return _neighbours_and_padding(WrongNeighbours, B, H, L, Dk)


def right_neighbours_and_padding(B, H, L, Dk):
    return _neighbours_and_padding(RightNeighbours, B, H, L, Dk)


def reference_neighbours_and_padding(module, chains, chain_lengths):
    L = chains.shape[1]
    keep = [
        [[(abs(i - j) < 3 and j < n) or i == j for j in range(L)] for i in range(L)] for n in map(int, chain_lengths)
    ]
    return merge(attend(*fused(chains, module.qkv, module.heads), torch.tensor(keep)[:, None]), module.out)


class RightReader(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def laid_out(self, inside):
        return inside[:, None, None, :]

    def forward(self, words, counts):
        batch, length, _ = words.shape
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(words).chunk(3, -1))
        inside = torch.arange(length).expand(batch, length) < counts[:, None]
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~self.laid_out(inside), -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)) + words


class WrongReader(RightReader):
    def laid_out(self, inside):
        return inside[:, None, :, None]  # wrong: AS411 queries_of_padding


def _queries_of_padding(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["counts=length"]


def wrong_queries_of_padding(B, H, L, Dk):
    return _queries_of_padding(WrongReader, B, H, L, Dk)


def right_queries_of_padding(B, H, L, Dk):
    return _queries_of_padding(RightReader, B, H, L, Dk)


def reference_queries_of_padding(module, words, counts):
    keep = torch.stack([torch.arange(words.shape[1]) < count for count in counts])
    return merge(attend(*fused(words, module.qkv, module.heads), keep[:, None, None]), module.out) + words


class RightTranslator(nn.Module):
    """The same lengths are for the encoder and for the attention over what it returns."""

    def __init__(self, dim, heads):
        super().__init__()
        self.encoder = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.reader = nn.MultiheadAttention(dim, heads, batch_first=True)

    def read(self, x, memory, padding):
        return self.reader(x, memory, memory, key_padding_mask=padding, need_weights=False)[0]

    def forward(self, x, source, source_lengths):
        padding = torch.arange(source.size(1)) >= source_lengths[:, None]
        memory = source + self.encoder(source, source, source, key_padding_mask=padding, need_weights=False)[0]
        return x + self.read(x, memory, padding)


class WrongTranslator(RightTranslator):
    def read(self, x, memory, padding):
        return self.reader(x, memory, memory, need_weights=False)[0]  # wrong: AS411 memory_without_lengths


def _memory_without_lengths(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), numbers(B, Lk)
    return cls(H * Dk, H), args, {}, ["source_lengths=length"]


def wrong_memory_without_lengths(B, H, Lq, Lk, Dk):
    return _memory_without_lengths(WrongTranslator, B, H, Lq, Lk, Dk)


def right_memory_without_lengths(B, H, Lq, Lk, Dk):
    return _memory_without_lengths(RightTranslator, B, H, Lq, Lk, Dk)


def reference_memory_without_lengths(module, x, source, source_lengths):
    keep = torch.stack([torch.arange(source.shape[1]) < length for length in source_lengths])[:, None, None]
    memory = source + torch_attention(module.encoder, source, source, keep)
    return x + torch_attention(module.reader, x, memory, keep)


class RightCaptions(nn.Module):
    """Captions and image features, both of several lengths."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.words, self.image, self.both = (nn.Linear(dim, 3 * dim) for _ in range(3))

    def attend(self, layer, x, keys, lengths):
        weights, biases = layer.weight.chunk(3), layer.bias.chunk(3)
        q, k, v = (
            F.linear(source, w, b).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for source, w, b in zip((x, keys, keys), weights, biases, strict=True)
        )
        hidden = torch.arange(keys.shape[1]) >= lengths.view(-1, 1, 1, 1)
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def limit(self, n_words, n_regions):
        return n_regions

    def forward(self, words, regions, n_words, n_regions):
        regions = self.attend(self.image, regions, regions, n_regions)
        words = self.attend(self.words, words, words, n_words)
        return self.attend(self.both, words, regions, self.limit(n_words, n_regions))


class WrongCaptions(RightCaptions):
    def limit(self, n_words, n_regions):
        return n_words


def _lengths_of_the_target(cls, B, H, Lq, Lk, Dk):
    args = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), numbers(B, Lq), numbers(B, Lk)
    return cls(H * Dk, H), args, {}, ["n_words=length", "n_regions=length"]


def wrong_lengths_of_the_target(B, H, Lq, Lk, Dk):
    return _lengths_of_the_target(WrongCaptions, B, H, Lq, Lk, Dk)


def right_lengths_of_the_target(B, H, Lq, Lk, Dk):
    return _lengths_of_the_target(RightCaptions, B, H, Lq, Lk, Dk)


def reference_lengths_of_the_target(module, words, regions, n_words, n_regions):
    def read(layer, x, keys, count):
        q, k, v = (fused(source, layer, module.heads)[part] for part, source in enumerate((x, keys, keys)))
        keep = torch.tensor([[place < int(n) for place in range(keys.shape[1])] for n in count])
        return x + merge(attend(q, k, v, keep[:, None, None]))

    regions = read(module.image, regions, regions, n_regions)
    return read(module.both, read(module.words, words, words, n_words), regions, n_regions)


class RightForecast(nn.Module):
    """Causal attention over series of several lengths."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def limited(self, steps, longest):
        return steps.clamp(min=1, max=longest)

    def forward(self, series, steps):
        longest = series.shape[1]
        q, k, v = self.qkv(series).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        outside = torch.arange(longest)[None] >= self.limited(steps, longest)[:, None]
        added = torch.full((longest, longest), -torch.inf).triu(1) + outside[:, None, None] * -1e9
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5 + added).softmax(-1)
        return series + self.out((weights @ v).transpose(1, 2).flatten(2))


class WrongForecast(RightForecast):
    def limited(self, steps, longest):
        return steps.clamp(min=1, max=longest - 1)  # wrong: AS411 clamped_below_the_length


def _clamped_below_the_length(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, ["steps=length", "causal"]


def wrong_clamped_below_the_length(B, H, L, Dk):
    return _clamped_below_the_length(WrongForecast, B, H, L, Dk)


def right_clamped_below_the_length(B, H, L, Dk):
    return _clamped_below_the_length(RightForecast, B, H, L, Dk)


def reference_clamped_below_the_length(module, series, steps):
    L = series.shape[1]
    keep = torch.tensor([[[j <= i and j < n for j in range(L)] for i in range(L)] for n in steps.tolist()])
    return series + merge(attend(*fused(series, module.qkv, module.heads), keep[:, None]), module.out)


class RightLocal(nn.Module):
    """Attention to the keys before a query and to its own, as far as the text goes."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def ends(self, lengths):
        return lengths

    def forward(self, x, lengths):
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        i = torch.arange(x.shape[1])
        distance = i[:, None] - i
        keep = (distance >= 0) & (distance < 3) & (i < self.ends(lengths)[:, None, None, None])
        q, k, v = qkv
        scores = (q @ k.mT * k.shape[-1] ** -0.5).masked_fill(~keep, -1e9)
        return x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class WrongLocal(RightLocal):
    def ends(self, lengths):
        return lengths // self.heads + 1  # wrong: AS411 divided_by_heads


def _divided_by_heads(cls, B, H, L, Dk):
    claims = ["lengths=length", "causal", "window=3"]
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), numbers(B, L)), {}, claims


def wrong_divided_by_heads(B, H, L, Dk):
    return _divided_by_heads(WrongLocal, B, H, L, Dk)


def right_divided_by_heads(B, H, L, Dk):
    return _divided_by_heads(RightLocal, B, H, L, Dk)


def reference_divided_by_heads(module, x, lengths):
    L = x.shape[1]
    keep = torch.tensor([[[0 <= i - j < 3 and j < n for j in range(L)] for i in range(L)] for n in lengths.tolist()])
    q, k, v = fused(x, module.qkv, module.heads)
    # the scores of a query of padding without keys are all the same number
    context = torch.where(keep.any(-1)[:, None, :, None], attend(q, k, v, keep[:, None]), v.mean(2, keepdim=True))
    return x + merge(context)
