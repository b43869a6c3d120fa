"""Code in which sizes, slots or parameters look like something else."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, split

CHUNKS = ({"B": 2, "H": 3, "L": 11, "Dk": 4, "W": 5}, {"B": 5, "H": 4, "L": 13, "Dk": 6, "W": 7})
HEADS = ({"B": 2, "H": 3, "L": 7, "Dk": 4}, {"B": 4, "H": 5, "L": 9, "Dk": 6})
ACROSS = ({"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 4}, {"B": 4, "H": 5, "Lq": 3, "Lk": 9, "Dk": 6})
PROMPT = ({"B": 2, "H": 3, "L": 5, "Dk": 4}, {"B": 4, "H": 5, "L": 9, "Dk": 6})
SEGMENTS = ({"B": 3, "H": 5, "L": 8, "Dk": 4}, {"B": 2, "H": 3, "L": 10, "Dk": 6})
BLOCKS = ({"B": 3, "H": 5, "Dk": 6}, {"B": 2, "H": 3, "Dk": 10})
UNUSUAL = [
    ("ring_of_chunks", *CHUNKS),
    ("bias_of_each_head", *HEADS),
    ("rows_hidden_by_a_finite_number", *HEADS),
    ("three_heads_at_a_time", *HEADS),
    ("segments_with_a_growing_memory", *SEGMENTS),
    ("blocks_of_a_square_map", *BLOCKS),
    ("channels_of_one_argument", *HEADS),
    ("one_query_of_folded_heads", *ACROSS),
    ("prompt_as_long_as_heads", *PROMPT),
]


def rotated(x, position):
    rates = 100.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angle = torch.outer(position.double(), rates).to(x)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


class RingOfChunks(nn.Module):
    """A sliding window over chunks: the keys of a ring buffer come before those of the chunk."""

    def __init__(self, heads, depth, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        ring = [q.new_zeros(*q.shape[:2], self.window, q.shape[-1]) for _ in range(2)]
        at = torch.full((self.window,), -1)
        out = []
        for place in torch.arange(x.shape[1]).split(3):
            query, *new = rotated(q[:, :, place], place), rotated(k[:, :, place], place), v[:, :, place]
            keys, values = (torch.cat(pair, dim=2) for pair in zip(ring, new, strict=True))
            known = torch.cat((at, place))
            distance = place[:, None] - known
            seen = (known >= 0) & (distance >= 0) & (distance < self.window)
            scores = query @ keys.mT * q.shape[-1] ** -0.5
            out.append(scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ values)
            slots = place % self.window
            ring = [old.index_copy(2, slots, one) for old, one in zip(ring, new, strict=True)]
            at = at.index_copy(0, slots, place)
        return join(torch.cat(out, dim=2))


def case_ring_of_chunks(B, H, L, Dk, W):
    claims = ["causal", "window=W", "rope=half"]
    return RingOfChunks(H, Dk, W), (torch.randn(B, L, H * Dk),), {}, claims


def reference_ring_of_chunks(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    place = torch.arange(x.shape[1])
    distance = place[:, None] - place
    seen = (distance >= 0) & (distance < module.window)
    return join(attention(rotated(q, place), rotated(k, place), v, keep=seen))


class BiasOfEachHead(nn.Module):
    """Parameters are laid out head by head."""

    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.weight = nn.ParameterList(nn.Parameter(torch.randn(heads, width, depth) / width**0.5) for _ in range(3))
        self.bias = nn.ParameterList(nn.Parameter(torch.randn(heads, depth)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(heads, depth, width) / width**0.5)

    def forward(self, x):
        q, k, v = (
            torch.einsum("bpm,hmd->bphd", x, weight) + bias for weight, bias in zip(self.weight, self.bias, strict=True)
        )
        place = torch.arange(x.shape[1])
        q, k = (rotated(t.transpose(1, 2), place).transpose(1, 2) for t in (q, k))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~causal(x.shape[1], x.shape[1]), -torch.inf).softmax(dim=-1)
        context = torch.einsum("bkhd,bhqk->bqhd", v, weights)
        return torch.einsum("bqhd,hdm->bqm", context, self.out)


def case_bias_of_each_head(B, H, L, Dk):
    return BiasOfEachHead(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def reference_bias_of_each_head(module, x):
    place, out = torch.arange(x.shape[1]), 0
    for head in range(len(module.out)):
        q, k, v = (x @ weight[head] + bias[head] for weight, bias in zip(module.weight, module.bias, strict=True))
        out = (
            out
            + attention(rotated(q, place), rotated(k, place), v, keep=causal(len(place), len(place))) @ module.out[head]
        )
    return out


class FiniteRows(nn.Module):
    """Padding may hide the first tokens too, and then all that a query may see."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x, padding):
        q, k, v = (split(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        hidden = padding[:, None, None, :] | ~causal(x.shape[1], x.shape[1])
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -10000.0)
        return join(scores.softmax(dim=-1) @ v)


def case_rows_hidden_by_a_finite_number(B, H, L, Dk):
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[::2, : L // 2] = True
    return FiniteRows(H, Dk), (torch.randn(B, L, H * Dk), padding), {}, ["causal", "padding=drop"]


def reference_rows_hidden_by_a_finite_number(module, x, padding):
    keep = ~padding[:, None, None, :] & causal(x.shape[1], x.shape[1])
    seen = keep.any(dim=-1, keepdim=True)
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    return torch.where(seen[:, 0], multihead(q, k, v, module.heads, keep=keep | ~seen), v.mean(dim=1, keepdim=True))


class ThreeHeads(nn.Module):
    """Heads are folded into the batch; three of them attend at a time."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x):
        q, k, v = (split(t, self.heads).flatten(0, 1) for t in self.qkv(x).chunk(3, dim=-1))
        out = torch.zeros_like(q)
        for start in range(0, len(q), 3):
            scores = torch.bmm(q[start : start + 3], k[start : start + 3].transpose(1, 2)) * q.shape[-1] ** -0.5
            out[start : start + 3] = torch.bmm(scores.softmax(dim=-1), v[start : start + 3])
        return join(out.unflatten(0, (-1, self.heads)))


def case_three_heads_at_a_time(B, H, L, Dk):
    return ThreeHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}, []


def reference_three_heads_at_a_time(module, x):
    return multihead(*module.qkv(x).chunk(3, dim=-1), module.heads)


class Segments(nn.Module):
    """The sequence first; each segment of two tokens attends to all before it."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(heads * depth, heads * depth), nn.Linear(heads * depth, 2 * heads * depth)

    def forward(self, x):
        memory, out = x[:0], []
        for segment in x.split(2, dim=0):
            q, (k, v) = self.q(segment), self.kv(torch.cat((memory, segment))).chunk(2, dim=-1)
            q, k, v = (split(t.transpose(0, 1), self.heads) for t in (q, k, v))
            keep = causal(q.shape[2], k.shape[2])
            out.append(join(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)).transpose(0, 1))
            memory = torch.cat((memory, segment))
        return torch.cat(out)


def case_segments_with_a_growing_memory(B, H, L, Dk):
    return Segments(H, Dk), (torch.randn(L, B, H * Dk),), {}, ["seq-first", "causal"]


def reference_segments_with_a_growing_memory(module, x):
    q, k, v = (t.transpose(0, 1) for t in (module.q(x), *module.kv(x).chunk(2, dim=-1)))
    return multihead(q, k, v, module.heads, keep=causal(len(x), len(x))).transpose(0, 1)


class Blocks(nn.Module):
    """A map of 4 by 4 pixels in blocks of 2 by 2: a block has as many queries as the map has rows."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth, bias=False)

    def blocks(self, x):
        return x.unflatten(2, (2, 2)).unflatten(4, (2, 2)).permute(0, 2, 4, 3, 5, 1).flatten(0, 2).flatten(1, 2)

    def forward(self, x):
        q, k, v = (split(t, self.heads) for t in self.qkv(self.blocks(x)).chunk(3, dim=-1))
        out = join((q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1) @ v)
        out = out.unflatten(0, (len(x), 2, 2)).unflatten(3, (2, 2)).permute(0, 5, 1, 3, 2, 4)
        return out.flatten(4, 5).flatten(2, 3)


def case_blocks_of_a_square_map(B, H, Dk):
    return Blocks(H, Dk), (torch.randn(B, H * Dk, 4, 4),), {}, []


def reference_blocks_of_a_square_map(module, x):
    out = torch.zeros_like(x)
    for top in (0, 2):
        for left in (0, 2):
            rows = x[:, :, top : top + 2, left : left + 2].flatten(2).mT
            context = multihead(*module.qkv(rows).chunk(3, dim=-1), module.heads)
            out[:, :, top : top + 2, left : left + 2] = context.mT.unflatten(2, (2, 2))
    return out


class Channels(nn.Module):
    """Queries, keys and values are channels of one argument, in front of the tokens."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, qkv):
        batch, width, length = qkv.shape
        depth = width // (3 * self.heads)
        q, k, v = (t.reshape(batch * self.heads, depth, length) for t in qkv.chunk(3, dim=1))
        scale = depth**-0.25
        weights = torch.einsum("bct,bcs->bts", q * scale, k * scale).softmax(dim=-1)
        return torch.einsum("bts,bcs->bct", weights, v).reshape(batch, -1, length)


def case_channels_of_one_argument(B, H, L, Dk):
    return Channels(H), (torch.randn(B, 3 * H * Dk, L),), {}, []


def reference_channels_of_one_argument(module, qkv):
    q, k, v = qkv.mT.chunk(3, dim=-1)
    return multihead(q, k, v, module.heads).mT


class OneQuery(nn.Module):
    """Each step attends to a memory with heads that are folded into the batch, and one query."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(heads * depth, heads * depth), nn.Linear(heads * depth, 2 * heads * depth)

    def step(self, token, k, v, padding):
        query = split(self.q(token), self.heads).flatten(0, 1) * k.shape[-1] ** -0.5
        scores = torch.bmm(query, k.transpose(1, 2)).unflatten(0, (-1, self.heads))
        weights = scores.masked_fill(padding[:, None, None], -torch.inf).flatten(0, 1).softmax(dim=-1)
        return join(torch.bmm(weights, v).unflatten(0, (-1, self.heads)))

    def forward(self, x, memory, padding):
        k, v = (split(t, self.heads).flatten(0, 1) for t in self.kv(memory).chunk(2, dim=-1))
        return torch.cat([self.step(token, k, v, padding) for token in x.split(1, dim=1)], dim=1)


def case_one_query_of_folded_heads(B, H, Lq, Lk, Dk):
    padding = torch.rand(B, Lk) < 0.4
    padding[:, 0] = False
    inputs = torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk), padding
    return OneQuery(H, Dk), inputs, {}, ["padding=drop"]


def reference_one_query_of_folded_heads(module, x, memory, padding):
    k, v = module.kv(memory).chunk(2, dim=-1)
    return multihead(module.q(x), k, v, module.heads, keep=~padding[:, None, None])


class Prompt(nn.Module):
    """The first half of the tokens comes at once, the others one by one; there are as many heads as prompted tokens."""

    def __init__(self, heads, depth):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth)

    def forward(self, x):
        keys, values, out = [], [], []
        prompt = (x.shape[1] + 1) // 2
        for piece in x.split([prompt, *[1] * (x.shape[1] - prompt)], dim=1):
            q, k, v = (split(t, self.heads) for t in self.qkv(piece).chunk(3, dim=-1))
            start = sum(one.shape[2] for one in keys)
            place = torch.arange(start, start + q.shape[2])
            keys, values = [*keys, rotated(k, place)], [*values, v]
            k, v = torch.cat(keys, dim=2), torch.cat(values, dim=2)
            scores = rotated(q, place) @ k.mT * q.shape[-1] ** -0.5
            seen = place[:, None] >= torch.arange(k.shape[2])
            out.append(join(scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v))
        return torch.cat(out, dim=1)


def case_prompt_as_long_as_heads(B, H, L, Dk):
    return Prompt(H, Dk), (torch.randn(B, L, H * Dk),), {}, ["causal", "rope=half"]


def reference_prompt_as_long_as_heads(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    place = torch.arange(x.shape[1])
    return join(attention(rotated(q, place), rotated(k, place), v, keep=causal(len(place), len(place))))
