"""AS804: the output does not depend on the memory."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project, visible

CROSS = (
    {"B": 4, "H": 5, "Lq": 7, "Lk": 9, "Dk": 6},
    {"B": 5, "H": 4, "Lq": 11, "Lk": 7, "Dk": 8},
    {"B": 6, "H": 7, "Lq": 5, "Lk": 8, "Dk": 4},
)
PAIRS = [
    ("AS804", "decoder_layer", *CROSS),
    ("AS804", "context_or_self", *CROSS),
    ("AS804", "residual_overwrites", *CROSS),
    ("AS804", "torch_multihead_self", *CROSS),
]


class Attention(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, causal=False):
        q, k, v = (
            w(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for w, x in ((self.wq, query), (self.wk, key), (self.wv, value))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -1e9)
        return self.wo((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def exact(attention, query, key, keep=None):
    parts = (query, attention.wq), (key, attention.wk), (key, attention.wv)
    return merge(attend(*(heads(x, w, attention.h) for x, w in parts), keep), attention.wo)


class RightDecoderLayer(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.self_attn = Attention(d_model, h)
        self.src_attn = Attention(d_model, h)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(3)])

    def source(self, h, memory):
        return self.src_attn(h, memory, memory)

    def forward(self, x, memory):
        h = self.norms[0](x)
        x = x + self.self_attn(h, h, h, causal=True)
        x = x + self.source(self.norms[1](x), memory)
        return x + self.feed_forward(self.norms[2](x))


class WrongDecoderLayer(RightDecoderLayer):
    def source(self, h, memory):
        return self.src_attn(h, h, h)


def _decoder_layer(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_decoder_layer(B, H, Lq, Lk, Dk):
    return _decoder_layer(WrongDecoderLayer, B, H, Lq, Lk, Dk)


def right_decoder_layer(B, H, Lq, Lk, Dk):
    return _decoder_layer(RightDecoderLayer, B, H, Lq, Lk, Dk)


def reference_decoder_layer(module, x, memory):
    h = module.norms[0](x)
    x = x + exact(module.self_attn, h, h, visible(x.shape[1], x.shape[1]))
    x = x + exact(module.src_attn, module.norms[1](x), memory)
    return x + module.feed_forward(module.norms[2](x))


class RightOptionalContext(nn.Module):
    """Attends to the context, or to itself where there is none."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def attended(self, x, context):
        return x if context is None else context

    def forward(self, x, context=None):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(self.attended(x, context)).unflatten(-1, (2, self.heads, -1)).unbind(2)
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
        return self.to_out(torch.einsum("bhij,bjhd->bihd", sim.softmax(dim=-1), v).flatten(2))


class WrongOptionalContext(RightOptionalContext):
    def attended(self, x, context):
        return x if context is not None else context


def _context_or_self(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk),), {"context": torch.randn(B, Lk, H * Dk)}


def wrong_context_or_self(B, H, Lq, Lk, Dk):
    return _context_or_self(WrongOptionalContext, B, H, Lq, Lk, Dk)


def right_context_or_self(B, H, Lq, Lk, Dk):
    return _context_or_self(RightOptionalContext, B, H, Lq, Lk, Dk)


def reference_context_or_self(module, x, context):
    k, v = project(context, module.to_kv).unflatten(-1, (2, module.heads, -1)).permute(2, 0, 3, 1, 4)
    return merge(attend(heads(x, module.to_q, module.heads), k, v), module.to_out)


class RightCrossBlock(nn.Module):
    def __init__(self, hidden, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.ln_attn, self.ln_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def cross(self, x, memory):
        B, T, C = x.shape
        q = self.q_proj(self.ln_attn(x)).view(B, T, self.n_heads, -1).transpose(1, 2)
        k = self.k_proj(memory).view(B, -1, self.n_heads, C // self.n_heads).transpose(1, 2)
        v = self.v_proj(memory).view(B, -1, self.n_heads, C // self.n_heads).transpose(1, 2)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))

    def mlp(self, x):
        return self.fc2(F.gelu(self.fc1(self.ln_mlp(x))))

    def forward(self, x, memory):
        h = x + self.cross(x, memory)
        return h + self.mlp(h)


class WrongCrossBlock(RightCrossBlock):
    def forward(self, x, memory):
        h = x + self.cross(x, memory)  # noqa: F841
        return x + self.mlp(x)


def _residual_overwrites(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_residual_overwrites(B, H, Lq, Lk, Dk):
    return _residual_overwrites(WrongCrossBlock, B, H, Lq, Lk, Dk)


def right_residual_overwrites(B, H, Lq, Lk, Dk):
    return _residual_overwrites(RightCrossBlock, B, H, Lq, Lk, Dk)


def reference_residual_overwrites(module, x, memory):
    q = heads(module.ln_attn(x), module.q_proj, module.n_heads)
    k, v = (heads(memory, p, module.n_heads) for p in (module.k_proj, module.v_proj))
    h = x + merge(attend(q, k, v), module.o_proj)
    inner = project(module.ln_mlp(h), module.fc1)
    return h + project(inner * (1 + torch.erf(inner / math.sqrt(2))) / 2, module.fc2)


class RightTorchCross(nn.Module):
    """Two attentions of torch's own: over the sequence, then over the memory."""

    def __init__(self, width, heads):
        super().__init__()
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def over_memory(self, x, memory):
        return self.cross_attention(x, memory, memory, need_weights=False)[0]

    def forward(self, x, memory):
        x = x + self.self_attention(x, x, x, need_weights=False)[0]
        return self.norm(x + self.over_memory(x, memory))


class WrongTorchCross(RightTorchCross):
    def over_memory(self, x, memory):
        return self.cross_attention(x, x, x, need_weights=False)[0]  # wrong: AS804 torch_multihead_self


def _torch_multihead_self(cls, B, H, Lq, Lk, Dk):
    return cls(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_torch_multihead_self(B, H, Lq, Lk, Dk):
    return _torch_multihead_self(WrongTorchCross, B, H, Lq, Lk, Dk)


def right_torch_multihead_self(B, H, Lq, Lk, Dk):
    return _torch_multihead_self(RightTorchCross, B, H, Lq, Lk, Dk)


def reference_torch_multihead_self(module, x, memory):
    def exact_torch(mha, query, key):
        packed = nn.Linear(1, 1)
        packed.weight, packed.bias = mha.in_proj_weight, mha.in_proj_bias
        q, k, v = fused(query, packed, mha.num_heads)[0], *fused(key, packed, mha.num_heads)[1:]
        return merge(attend(q, k, v), mha.out_proj)

    x = x + exact_torch(module.self_attention, x, x)
    return module.norm(x + exact_torch(module.cross_attention, x, memory))
