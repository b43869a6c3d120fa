"""AS116: an axis that batch and heads share is folded in one order and unfolded, or met, in another."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS116", "split_and_cat", *SIZES),
    ("AS116", "bmm_unfold", *SIZES),
    ("AS116", "einops_unfold", *CROSS),
    ("AS116", "keys_heads_first", *CROSS),
    ("AS116", "repeated_bias", *SIZES),
    ("AS116", "gathered_values", *SIZES),
]


class PortedAttention(nn.Module):
    """Ported from graph code: heads are cut off the width and laid behind the batch."""

    def __init__(self, num_units, num_heads):
        super().__init__()
        self.num_units, self.num_heads = num_units, num_heads
        self.Q, self.K, self.V = (nn.Linear(num_units, num_units, bias=False) for _ in range(3))
        self.ln = nn.LayerNorm(num_units)

    def restore(self, outputs, shape):
        return torch.cat(outputs.chunk(self.num_heads, dim=0), dim=2)

    def forward(self, queries):
        size = self.num_units // self.num_heads
        Q_ = torch.cat(self.Q(queries).split(size, dim=2), dim=0)
        K_ = torch.cat(self.K(queries).split(size, dim=2), dim=0)
        V_ = torch.cat(self.V(queries).split(size, dim=2), dim=0)
        outputs = torch.bmm(Q_, K_.permute(0, 2, 1)) / math.sqrt(K_.size(-1))
        outputs = torch.bmm(F.softmax(outputs, dim=-1), V_)
        return self.ln(self.restore(outputs, queries.shape) + queries)


class PortedAttentionViewed(PortedAttention):
    def restore(self, outputs, shape):
        N, T, C = shape
        outputs = outputs.view(N, self.num_heads, T, C // self.num_heads)  # wrong: AS116 split_and_cat
        return outputs.transpose(1, 2).reshape(N, T, C)


def wrong_split_and_cat(B, H, L, Dk):
    return PortedAttentionViewed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_split_and_cat(B, H, L, Dk):
    return PortedAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_split_and_cat(module, x):
    return module.ln(multihead(module.Q(x), module.K(x), module.V(x), module.num_heads) + x)


class BatchedHeads(nn.Module):
    """Keys are needed transposed, so they are folded transposed."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def unfold(self, out, B, L, D):
        return out.view(B, self.num_heads, L, self.head_dim).permute(0, 2, 1, 3).reshape(B, L, D)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.in_proj(x).view(B, L, 3, self.num_heads, self.head_dim).unbind(2)
        q = q.transpose(1, 2).reshape(B * self.num_heads, L, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(B * self.num_heads, self.head_dim, L)
        v = v.transpose(1, 2).reshape(B * self.num_heads, L, self.head_dim)
        attn = torch.softmax(torch.bmm(q, k) / math.sqrt(self.head_dim), dim=2)
        return self.out_proj(self.unfold(torch.bmm(attn, v), B, L, D))


class BatchedHeadsUnfolded(BatchedHeads):
    def unfold(self, out, B, L, D):
        out = out.view(self.num_heads, B, L, self.head_dim)  # wrong: AS116 bmm_unfold
        return out.permute(1, 2, 0, 3).reshape(B, L, D)


def wrong_bmm_unfold(B, H, L, Dk):
    return BatchedHeadsUnfolded(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_bmm_unfold(B, H, L, Dk):
    return BatchedHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_bmm_unfold(module, x):
    return module.out_proj(multihead(*module.in_proj(x).chunk(3, dim=-1), module.num_heads))


class ImageTextAttention(nn.Module):
    """Cross-attention of pixels to words."""

    def __init__(self, query_dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(query_dim, query_dim, bias=False)
        self.to_v = nn.Linear(query_dim, query_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(query_dim, query_dim), nn.Dropout(0.1))

    def unfold(self, out):
        return rearrange(out, "(b h) n d -> b n (h d)", h=self.heads)

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=self.heads) for t in (q, k, v))
        sim = torch.einsum("b i d, b j d -> b i j", q, k) * q.shape[-1] ** -0.5
        return self.to_out(self.unfold(torch.einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)))


class ImageTextAttentionSwapped(ImageTextAttention):
    def unfold(self, out):
        return rearrange(out, "(h b) n d -> b n (h d)", h=self.heads)  # wrong: AS116 einops_unfold


def _crossed(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)


def wrong_einops_unfold(B, H, Lq, Lk, Dk):
    return ImageTextAttentionSwapped(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def right_einops_unfold(B, H, Lq, Lk, Dk):
    return ImageTextAttention(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def reference_einops_unfold(module, x, context):
    out = multihead(module.to_q(x), module.to_k(context), module.to_v(context), module.heads)
    return module.to_out[0](out)


class FoldedMemory(nn.Module):
    """Folds the queries, the keys and the values on separate lines."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def fold(self, x):
        b, n, d = x.shape
        return x.reshape(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3).flatten(0, 1)

    def fold_keys(self, x):
        return self.fold(x)

    def forward(self, x, memory):
        b, n, d = x.shape
        q, k, v = self.fold(self.q(x)), self.fold_keys(self.k(memory)), self.fold(self.v(memory))
        w = F.softmax(q @ k.transpose(1, 2) / (d // self.heads) ** 0.5, dim=-1)
        return self.o((w @ v).unflatten(0, (b, self.heads)).transpose(1, 2).reshape(b, n, d))


class FoldedMemoryKeys(FoldedMemory):
    def fold_keys(self, x):
        b, n, d = x.shape
        x = x.reshape(b, n, self.heads, d // self.heads)
        return x.permute(2, 0, 1, 3).flatten(0, 1)  # wrong: AS116 keys_heads_first


def wrong_keys_heads_first(B, H, Lq, Lk, Dk):
    return FoldedMemoryKeys(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def right_keys_heads_first(B, H, Lq, Lk, Dk):
    return FoldedMemory(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def reference_keys_heads_first(module, x, memory):
    return module.o(multihead(module.q(x), module.k(memory), module.v(memory), module.heads))


class BiasedAttention(FoldedMemory):
    """Adds a bias of each sequence, such as distances, to the folded scores."""

    def for_heads(self, bias):
        return bias.repeat_interleave(self.heads, dim=0)

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        scores = q @ k.transpose(1, 2) / (d // self.heads) ** 0.5 + self.for_heads(bias)
        return self.o((scores.softmax(-1) @ v).unflatten(0, (b, self.heads)).transpose(1, 2).reshape(b, n, d))


class BiasedAttentionRepeated(BiasedAttention):
    def for_heads(self, bias):
        return bias.repeat(self.heads, 1, 1)  # wrong: AS116 repeated_bias


def _biased(B, H, L, Dk):
    return torch.randn(B, L, H * Dk), torch.randn(B, L, L)


def wrong_repeated_bias(B, H, L, Dk):
    return BiasedAttentionRepeated(H * Dk, H), _biased(B, H, L, Dk), {}


def right_repeated_bias(B, H, L, Dk):
    return BiasedAttention(H * Dk, H), _biased(B, H, L, Dk), {}


def reference_repeated_bias(module, x, bias):
    q, k, v = (layer(x).unflatten(-1, (module.heads, -1)).transpose(1, 2) for layer in (module.q, module.k, module.v))
    return module.o(F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:, None]).transpose(1, 2).flatten(2))


class DelayedValues(FoldedMemory):
    """Each sequence reads its values in an order of its own, which it scores from its tokens."""

    def for_heads(self, order):
        return order.repeat_interleave(self.heads, dim=0)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.fold(self.q(x)), self.fold(self.k(x)), self.fold(self.v(x))
        order = self.for_heads(x.mean(dim=-1).argsort(dim=-1))
        v = v.gather(1, order[..., None].expand(-1, -1, d // self.heads))
        w = F.softmax(q @ k.transpose(1, 2) / (d // self.heads) ** 0.5, dim=-1)
        return self.o((w @ v).unflatten(0, (b, self.heads)).transpose(1, 2).reshape(b, n, d))


class DelayedValuesTiled(DelayedValues):
    def for_heads(self, order):
        return order.repeat(self.heads, 1)  # wrong: AS116 gathered_values


def wrong_gathered_values(B, H, L, Dk):
    return DelayedValuesTiled(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_gathered_values(B, H, L, Dk):
    return DelayedValues(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_gathered_values(module, x):
    values = module.v(x)
    order = x.mean(dim=-1).argsort(dim=-1)
    in_order = torch.stack([values[index, order[index]] for index in range(len(x))])
    return module.o(multihead(module.q(x), module.k(x), in_order, module.heads))
