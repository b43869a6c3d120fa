"""AS807: a parameter, or a block of its rows, has no effect on the result."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, project
from tests.mutants.plain import attention

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
ACROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 9, "Lk": 11, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS807", "key_norm_dropped", *SIZES),
    ("AS807", "layers_not_chained", *SIZES),
    ("AS807", "one_bias_for_both", *SIZES),
    ("AS807", "first_half_twice", *SIZES),
    ("AS807", "value_overlaps_key", *SIZES),
    ("AS807", "block_adds_norm", *SIZES),
    ("AS807", "tokens_as_values", *SIZES),
    ("AS807", "one_norm_for_both", *SIZES),
    ("AS807", "one_attention_for_both", *ACROSS),
    ("AS807", "one_list_of_heads_for_both", *ACROSS),
]


class Normed(nn.Module):
    """Queries and keys are normalised before their product."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys(self, k):
        return self.k_norm(k)

    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = self.q_norm(q) @ self.keys(k).mT / math.sqrt(q.size(-1))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class KeyNormDropped(Normed):
    def keys(self, k):
        _ = self.k_norm(k)  # wrong: AS807 key_norm_dropped
        return k


def wrong_key_norm_dropped(B, H, L, Dk):
    return KeyNormDropped(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_key_norm_dropped(B, H, L, Dk):
    return Normed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def normed(x, norm):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def reference_key_norm_dropped(module, x):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.q_proj, module.k_proj, module.v_proj))
    return merge(attend(normed(q, module.q_norm), normed(k, module.k_norm), v))


class Stack(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.layers = nn.ModuleList(Normed(width, heads) for _ in range(2))

    def forward(self, x):
        out = x
        for layer in self.layers:
            out = out + layer(out)
        return out.tanh()


class UnchainedStack(Stack):
    def forward(self, x):
        for layer in self.layers:
            out = x + layer(x)  # wrong: AS807 layers_not_chained
        return out.tanh()


def wrong_layers_not_chained(B, H, L, Dk):
    return UnchainedStack(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_layers_not_chained(B, H, L, Dk):
    return Stack(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_layers_not_chained(module, x):
    for layer in module.layers:
        x = x + reference_key_norm_dropped(layer, x)
    return x.tanh()


class TwoBiases(nn.Module):
    """The queries have one bias for the content and one for the positions."""

    def __init__(self, heads, length, width):
        super().__init__()
        self.content_bias = nn.Parameter(torch.randn(heads, 1, width))
        self.position_bias = nn.Parameter(torch.randn(heads, 1, width))
        self.register_buffer("positions", torch.randn(length, width))

    def for_positions(self, q):
        return q + self.position_bias

    def forward(self, q, k, v):
        content = torch.einsum("bhid,bhjd->bhij", q + self.content_bias, k)
        position = torch.einsum("bhid,jd->bhij", self.for_positions(q), self.positions)
        weights = F.softmax((content + position) * q.shape[-1] ** -0.5, dim=-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)


class OneBias(TwoBiases):
    def forward(self, q, k, v):
        content = torch.einsum("bhid,bhjd->bhij", q + self.content_bias, k)
        shifted = q + self.content_bias  # wrong: AS807 one_bias_for_both
        position = torch.einsum("bhid,jd->bhij", shifted, self.positions)
        weights = F.softmax((content + position) * q.shape[-1] ** -0.5, dim=-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)


def wrong_one_bias_for_both(B, H, L, Dk):
    return OneBias(H, L, Dk), tuple(torch.randn(3, B, H, L, Dk)), {}


def right_one_bias_for_both(B, H, L, Dk):
    return TwoBiases(H, L, Dk), tuple(torch.randn(3, B, H, L, Dk)), {}


def reference_one_bias_for_both(module, q, k, v):
    added = (q + module.position_bias) @ module.positions.T / math.sqrt(q.shape[-1])
    return attend(q + module.content_bias, k, v, bias=added)


class TwoMaps(nn.Module):
    """Each head attends twice, by the halves of its queries and keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.wv = nn.Linear(width, width, bias=False)

    def second(self, q):
        return q[..., 1, :]

    def forward(self, x):
        q, k = (w(x).unflatten(-1, (self.heads, 2, -1)).transpose(1, 2) for w in (self.wq, self.wk))
        v = self.wv(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        one = F.scaled_dot_product_attention(q[..., 0, :], k[..., 0, :], v)
        other = F.scaled_dot_product_attention(self.second(q), k[..., 1, :], v)
        return torch.cat((one, other), -1).transpose(1, 2).flatten(2)


class FirstHalfTwice(TwoMaps):
    def second(self, q):
        return q[..., 0, :]  # wrong: AS807 first_half_twice


def wrong_first_half_twice(B, H, L, Dk):
    return FirstHalfTwice(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_first_half_twice(B, H, L, Dk):
    return TwoMaps(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_first_half_twice(module, x):
    (q, k), v = (
        (heads(x, w, module.heads).chunk(2, -1) for w in (module.wq, module.wk)),
        heads(x, module.wv, module.heads),
    )
    return merge(torch.cat([attention(a, b, v) for a, b in zip(q, k, strict=True)], -1))


class MultiQuery(nn.Module):
    """One projection for all queries, one key and one value."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width, self.head_width = heads, width, width // heads
        self.qkv = nn.Linear(width, width + 2 * self.head_width)

    def value(self, qkv):
        return qkv[..., self.width + self.head_width :]

    def forward(self, x):
        qkv = self.qkv(x)
        q = qkv[..., : self.width].unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = qkv[..., self.width : self.width + self.head_width]
        v = self.value(qkv)
        scores = q @ k.unsqueeze(1).transpose(-2, -1) / self.head_width**0.5
        return (torch.softmax(scores, dim=-1) @ v.unsqueeze(1)).transpose(1, 2).flatten(2)


class ValueOverlapsKey(MultiQuery):
    def value(self, qkv):
        return qkv[..., self.width : -self.head_width]  # wrong: AS807 value_overlaps_key


def wrong_value_overlaps_key(B, H, L, Dk):
    return ValueOverlapsKey(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_value_overlaps_key(B, H, L, Dk):
    return MultiQuery(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_value_overlaps_key(module, x):
    q, k, v = project(x, module.qkv).split([module.width, module.head_width, module.head_width], -1)
    q = torch.stack(q.split(module.head_width, -1), 1)
    return merge(attend(q, k[:, None].expand_as(q), v[:, None].expand_as(q)))


class Block(nn.Module):
    """A block with torch's own attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        h = self.norm(x)
        h, _ = self.attn(h, h, h)
        return x + h


class BlockAddsNorm(Block):
    def forward(self, x):
        h = self.norm(x)
        _h, _ = self.attn(h, h, h)  # wrong: AS807 block_adds_norm
        return x + h


def wrong_block_adds_norm(B, H, L, Dk):
    return BlockAddsNorm(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_block_adds_norm(B, H, L, Dk):
    return Block(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_block_adds_norm(module, x):
    joint = F.linear(normed(x, module.norm), module.attn.in_proj_weight, module.attn.in_proj_bias).chunk(3, -1)
    q, k, v = (torch.stack(part.chunk(module.attn.num_heads, -1), 1) for part in joint)
    return x + merge(attention(q, k, v), module.attn.out_proj)


class OneProjectionOfBoth(nn.Module):
    """Keys and values come from one projection, and all tensors are split into heads by one expression."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.pairs = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)

    def parts(self, x):
        return tuple(one.unflatten(-1, (self.heads, -1)) for one in (self.query(x), *self.pairs(x).chunk(2, dim=-1)))

    def forward(self, x):
        q, k, v = self.parts(x)
        weights = torch.einsum("bihd,bjhd->bhij", q, k).div(q.size(-1) ** 0.5).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


class TokensAsValues(OneProjectionOfBoth):
    def parts(self, x):
        every = self.query(x), *self.pairs(x).chunk(2, dim=-1), x
        q, k, _v, x = (one.unflatten(-1, (self.heads, -1)) for one in every)  # wrong: AS807 tokens_as_values
        return q, k, x


def wrong_tokens_as_values(B, H, L, Dk):
    return TokensAsValues(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_tokens_as_values(B, H, L, Dk):
    return OneProjectionOfBoth(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_tokens_as_values(module, x):
    k, v = torch.einsum("bli,chdi->cbhld", x, module.pairs.weight.unflatten(0, (2, module.heads, -1)))
    return merge(attend(heads(x, module.query, module.heads), k, v))


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(1 + torch.rand(width))

    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class OwnNorms(Normed):
    """The norms are a module of the same file."""

    def __init__(self, width, heads):
        super().__init__(width, heads)
        self.q_norm, self.k_norm = RootMeanSquare(width // heads), RootMeanSquare(width // heads)


class OneNorm(OwnNorms):
    def forward(self, x):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        query = self.q_norm(q)
        key = self.q_norm(k)  # wrong: AS807 one_norm_for_both
        return ((query @ key.mT / math.sqrt(q.size(-1))).softmax(-1) @ v).transpose(1, 2).flatten(2)


def wrong_one_norm_for_both(B, H, L, Dk):
    return OneNorm(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_one_norm_for_both(B, H, L, Dk):
    return OwnNorms(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_one_norm_for_both(module, x):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.q_proj, module.k_proj, module.v_proj))
    q, k = (
        t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight
        for t, norm in ((q, module.q_norm), (k, module.k_norm))
    )
    return merge(attend(q, k, v))


class Projected(nn.Module):
    """Attention from one sequence to another, with projections."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.of_query, self.of_key, self.of_value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        q, k, v = self.split(self.of_query(x)), self.split(self.of_key(memory)), self.split(self.of_value(memory))
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.own, self.cross = Projected(width, heads), Projected(width, heads)

    def forward(self, x, memory):
        x = x + self.own(x, x)
        return x + self.cross(x, memory)


class OwnForBoth(DecoderLayer):
    def forward(self, x, memory):
        x = x + self.own(x, x)
        return x + self.own(x, memory)  # wrong: AS807 one_attention_for_both


def _one_attention_for_both(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_one_attention_for_both(B, H, Lq, Lk, Dk):
    return _one_attention_for_both(OwnForBoth, B, H, Lq, Lk, Dk)


def right_one_attention_for_both(B, H, Lq, Lk, Dk):
    return _one_attention_for_both(DecoderLayer, B, H, Lq, Lk, Dk)


def reference_one_attention_for_both(module, x, memory):
    for layer, keys in ((module.own, None), (module.cross, memory)):
        keys = x if keys is None else keys
        k, v = heads(keys, layer.of_key, layer.heads), heads(keys, layer.of_value, layer.heads)
        x = x + merge(attend(heads(x, layer.of_query, layer.heads), k, v), layer.out)
    return x


class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, x, memory):
        scores = self.query(x) @ self.key(memory).transpose(1, 2)
        return F.softmax(scores * self.key.out_features**-0.5, dim=-1) @ self.value(memory)


class ListOfHeads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(width, width // heads) for _ in range(heads)])

    def forward(self, x, memory):
        return torch.cat([head(x, memory) for head in self.heads], dim=-1)


class DecoderOfHeads(nn.Module):
    """Both attentions are lists of heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.self_attn, self.cross_attn = ListOfHeads(width, heads), ListOfHeads(width, heads)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, memory):
        h = self.ln1(x)
        x = x + self.self_attn(h, h)
        return x + self.cross_attn(self.ln2(x), memory)


class OwnHeadsForBoth(DecoderOfHeads):
    def forward(self, x, memory):
        h = self.ln1(x)
        x = x + self.self_attn(h, h)
        return x + self.self_attn(self.ln2(x), memory)  # wrong: AS807 one_list_of_heads_for_both


def wrong_one_list_of_heads_for_both(B, H, Lq, Lk, Dk):
    return _one_attention_for_both(OwnHeadsForBoth, B, H, Lq, Lk, Dk)


def right_one_list_of_heads_for_both(B, H, Lq, Lk, Dk):
    return _one_attention_for_both(DecoderOfHeads, B, H, Lq, Lk, Dk)


def reference_one_list_of_heads_for_both(module, x, memory):
    for attended, norm, keys in ((module.self_attn, module.ln1, None), (module.cross_attn, module.ln2, memory)):
        h = normed(x, norm)
        contexts = []
        for head in attended.heads:
            k, v = (project(h if keys is None else keys, linear) for linear in (head.key, head.value))
            contexts.append(attention(project(h, head.query), k, v))
        x = x + torch.cat(contexts, -1)
    return x
