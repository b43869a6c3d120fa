"""AS111: heads are split without the transpose, so that a head holds a stretch of tokens."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 3, "L": 7, "Dk": 4}, {"B": 4, "H": 2, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
GROUPED = (
    {"B": 3, "Hkv": 2, "G": 4, "L": 5, "Dk": 6},
    {"B": 4, "Hkv": 5, "G": 2, "L": 7, "Dk": 6},
    {"B": 5, "Hkv": 3, "G": 2, "L": 6, "Dk": 4},
)
PAIRS = [
    ("AS111", "annotated", *SIZES),
    ("AS111", "fused_causal", *SIZES),
    ("AS111", "grouped_keys", *GROUPED),
    ("AS111", "folded_batch", *CROSS),
    ("AS111", "cross_values", *CROSS),
    ("AS111", "tokens_by_themselves", *SIZES),
    ("AS111", "fused_by_tokens", *SIZES),
    ("AS111", "pixels_of_channels", *SIZES),
    ("AS111", "patches_with_class_token", *SIZES),
    ("AS111", "class_token_by_tokens", *SIZES),
]


def scaled_dot_product(query, key, value):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value), p_attn


class MultiHeaded(nn.Module):
    """Four linear layers; also returns the weights."""

    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(p=0.1)

    def split(self, x):
        return x.view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def forward(self, query, key, value):
        query, key, value = (self.split(lin(x)) for lin, x in zip(self.linears[:3], (query, key, value), strict=True))
        x, p_attn = scaled_dot_product(query, key, value)
        x = x.transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linears[-1](self.dropout(x)), p_attn


class ViewedHeads(MultiHeaded):
    def split(self, x):
        return x.view(x.size(0), self.h, -1, self.d_k)  # wrong: AS111 annotated


def _thrice(B, H, L, Dk):
    return (torch.randn(B, L, H * Dk),) * 3


def wrong_annotated(B, H, L, Dk):
    return ViewedHeads(H, H * Dk), _thrice(B, H, L, Dk), {}


def right_annotated(B, H, L, Dk):
    return MultiHeaded(H, H * Dk), _thrice(B, H, L, Dk), {}


def reference_annotated(module, query, key, value):
    q, k, v = (lin(x) for lin, x in zip(module.linears, (query, key, value), strict=False))
    return module.linears[3](multihead(q, k, v, module.h))


class CausalSelfAttention(nn.Module):
    """One projection for all three, the causal kernel of torch."""

    def __init__(self, n_head, n_embd):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def heads(self, x):
        B, T, C = x.size()
        return [t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2)]

    def forward(self, x):
        q, k, v = self.heads(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(x.size()))


class Block(nn.Module):
    def __init__(self, attention, n_head, n_embd):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = attention(n_head, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class ReshapedCausalSelfAttention(CausalSelfAttention):
    def heads(self, x):
        B, T, C = x.size()
        parts = self.c_attn(x).split(C, dim=2)
        return [t.reshape(B, self.n_head, T, C // self.n_head) for t in parts]  # wrong: AS111 fused_causal


def _stack(attention, B, H, L, Dk):
    return nn.Sequential(*(Block(attention, H, H * Dk) for _ in range(2))), (torch.randn(B, L, H * Dk),), {}


def wrong_fused_causal(B, H, L, Dk):
    return _stack(ReshapedCausalSelfAttention, B, H, L, Dk)


def right_fused_causal(B, H, L, Dk):
    return _stack(CausalSelfAttention, B, H, L, Dk)


def reference_fused_causal(module, x):
    keep = causal(x.shape[1], x.shape[1])
    for block in module:
        q, k, v = block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1)
        x = x + block.attn.c_proj(multihead(q, k, v, block.attn.n_head, keep=keep))
        x = x + block.mlp(block.ln_2(x))
    return x


class GroupedAttention(nn.Module):
    """Several query heads share one of the keys and values."""

    def __init__(self, num_kv_heads, groups, head_dim):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_kv_heads * groups, num_kv_heads, head_dim
        hidden = self.num_heads * head_dim
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def keys(self, x):
        bsz, q_len, _ = x.shape
        return self.k_proj(x).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        bsz, q_len, _ = x.shape
        query_states = self.q_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        value_states = self.v_proj(x).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        groups = self.num_heads // self.num_kv_heads
        key_states = self.keys(x).repeat_interleave(groups, dim=1)
        value_states = value_states.repeat_interleave(groups, dim=1)
        attn_weights = query_states @ key_states.transpose(2, 3) / math.sqrt(self.head_dim)
        attn_output = torch.softmax(attn_weights, dim=-1) @ value_states
        return self.o_proj(attn_output.transpose(1, 2).reshape(bsz, q_len, -1))


class GroupedAttentionViewed(GroupedAttention):
    def keys(self, x):
        bsz, q_len, _ = x.shape
        return self.k_proj(x).view(bsz, self.num_kv_heads, q_len, self.head_dim)  # wrong: AS111 grouped_keys


def wrong_grouped_keys(B, Hkv, G, L, Dk):
    return GroupedAttentionViewed(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}


def right_grouped_keys(B, Hkv, G, L, Dk):
    return GroupedAttention(Hkv, G, Dk), (torch.randn(B, L, Hkv * G * Dk),), {}


def reference_grouped_keys(module, x):
    groups = module.num_heads // module.num_kv_heads
    shared = [proj(x).split(module.head_dim, dim=-1) for proj in (module.k_proj, module.v_proj)]
    k, v = (torch.cat([head for head in heads for _ in range(groups)], dim=-1) for heads in shared)
    return module.o_proj(multihead(module.q_proj(x), k, v, module.num_heads))


class FoldedCross(nn.Module):
    """Cross-attention by bmm over batch times heads."""

    def __init__(self, heads, dim):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def fold(self, x):
        b, n, d = x.shape
        return x.view(b, n, self.heads, d // self.heads).transpose(1, 2).reshape(b * self.heads, n, d // self.heads)

    def unfold(self, x):
        _, n, dk = x.shape
        return x.view(-1, self.heads, n, dk).transpose(1, 2).reshape(-1, n, self.heads * dk)

    def fold_values(self, x):
        return self.fold(x)

    def forward(self, x, memory):
        q, k, v = self.fold(self.q(x)), self.fold(self.k(memory)), self.fold_values(self.v(memory))
        attn = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).softmax(-1)
        return self.out(self.unfold(torch.bmm(attn, v)))


class FoldedCrossViewed(FoldedCross):
    def fold(self, x):
        b, n, d = x.shape
        return x.view(b * self.heads, n, d // self.heads)  # wrong: AS111 folded_batch


def _crossed(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)


def wrong_folded_batch(B, H, Lq, Lk, Dk):
    return FoldedCrossViewed(H, H * Dk), _crossed(B, H, Lq, Lk, Dk), {}


def right_folded_batch(B, H, Lq, Lk, Dk):
    return FoldedCross(H, H * Dk), _crossed(B, H, Lq, Lk, Dk), {}


def reference_folded_batch(module, x, memory):
    return module.out(multihead(module.q(x), module.k(memory), module.v(memory), module.heads))


class ValuesViewed(FoldedCross):
    def fold_values(self, x):
        b, n, d = x.shape
        return x.reshape(b, self.heads, n, d // self.heads).flatten(0, 1)  # wrong: AS111 cross_values


def wrong_cross_values(B, H, Lq, Lk, Dk):
    return ValuesViewed(H, H * Dk), _crossed(B, H, Lq, Lk, Dk), {}


def right_cross_values(B, H, Lq, Lk, Dk):
    return FoldedCross(H, H * Dk), _crossed(B, H, Lq, Lk, Dk), {}


reference_cross_values = reference_folded_batch


class ByHeads(nn.Module):
    """Splits and merges by methods."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(-2)

    def attend(self, q, k, v):
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v

    def forward(self, x):
        return self.merge(self.attend(self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))))


class ByTokens(ByHeads):
    """Every token attends to its own heads."""

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))  # wrong: AS111 tokens_by_themselves

    def merge(self, x):
        return x.flatten(-2)


class Fused(ByHeads):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class FusedByTokens(Fused):
    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1)  # wrong: AS111 fused_by_tokens

    def merge(self, x):
        return x.flatten(-2)


def _by_heads(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_tokens_by_themselves(B, H, L, Dk):
    return _by_heads(ByTokens, B, H, L, Dk)


def right_tokens_by_themselves(B, H, L, Dk):
    return _by_heads(ByHeads, B, H, L, Dk)


def reference_tokens_by_themselves(module, x):
    return multihead(module.q(x), module.k(x), module.v(x), module.heads)


def wrong_fused_by_tokens(B, H, L, Dk):
    return _by_heads(FusedByTokens, B, H, L, Dk)


def right_fused_by_tokens(B, H, L, Dk):
    return _by_heads(Fused, B, H, L, Dk)


def reference_fused_by_tokens(module, x):
    return reference_tokens_by_themselves(module, x)


class PixelAttention(nn.Module):
    """Attention over the pixels of an image, (B, channels, rows, columns)."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.out = nn.Conv2d(channels, channels, 1)

    def split(self, t):
        return t.reshape(t.shape[0], self.heads, -1, t.shape[2] * t.shape[3]).transpose(2, 3)

    def forward(self, x):
        b, c, rows, columns = x.shape
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=1))
        context = scaled_dot_product(q, k, v)[0]
        return self.out(context.transpose(2, 3).reshape(b, c, rows, columns))


class ViewedPixels(PixelAttention):
    def split(self, t):
        return t.reshape(t.shape[0], self.heads, t.shape[2] * t.shape[3], -1)  # wrong: AS111 pixels_of_channels


def _pixels(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, L, 3),), {}


def wrong_pixels_of_channels(B, H, L, Dk):
    return _pixels(ViewedPixels, B, H, L, Dk)


def right_pixels_of_channels(B, H, L, Dk):
    return _pixels(PixelAttention, B, H, L, Dk)


def reference_pixels_of_channels(module, x):
    q, k, v = (t.flatten(2).mT for t in module.qkv(x).chunk(3, dim=1))
    return module.out(multihead(q, k, v, module.heads).mT.reshape(x.shape))


class Patches(nn.Module):
    """Pairs of tokens are embedded as patches, with a class token, so no axis of the input counts the keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(3 * width, width)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def patches(self, x):
        return torch.cat([self.cls.expand(x.size(0), -1, -1), self.embed(x.flatten(2))], dim=1)

    def forward(self, x):
        h = self.patches(x)
        q, k, v = (self.split(w(h)) for w in (self.wq, self.wk, self.wv))
        context = F.scaled_dot_product_attention(q, k, v)
        return self.wo(context.transpose(1, 2).flatten(2))[:, 0]


class ViewedPatches(Patches):
    def split(self, t):
        return t.reshape(t.size(0), self.heads, t.size(1), -1)  # wrong: AS111 patches_with_class_token


def _patches(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, 3, H * Dk),), {}


def wrong_patches_with_class_token(B, H, L, Dk):
    return _patches(ViewedPatches, B, H, L, Dk)


def right_patches_with_class_token(B, H, L, Dk):
    return _patches(Patches, B, H, L, Dk)


def reference_patches_with_class_token(module, x):
    h = module.patches(x)
    return module.wo(multihead(module.wq(h), module.wk(h), module.wv(h), module.heads))[:, 0]


class WithClassToken(nn.Module):
    """Attention of tokens behind a class token, so one more than the input has."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, q, k, v):
        context = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return context.transpose(1, 2)

    def forward(self, x):
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        B, N, C = x.shape
        parts = self.qkv(x).reshape(B, N, 3, self.num_heads, -1)  # wrong: AS111 class_token_by_tokens
        q, k, v = parts.unbind(2)
        return self.proj(self.attend(q, k, v).reshape(B, N, C))


class ClassTokenByTokens(WithClassToken):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


def wrong_class_token_by_tokens(B, H, L, Dk):
    return _by_heads(ClassTokenByTokens, B, H, L, Dk)


def right_class_token_by_tokens(B, H, L, Dk):
    return _by_heads(WithClassToken, B, H, L, Dk)


def reference_class_token_by_tokens(module, x):
    x = torch.cat((module.cls_token.repeat(x.shape[0], 1, 1), x), dim=1)
    return module.proj(multihead(*module.qkv(x).chunk(3, dim=-1), module.num_heads))
