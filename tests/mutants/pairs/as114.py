"""AS114: heads are merged without transposing back."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, join, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
VALUES = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3, "Dv": 6},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6, "Dv": 5},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6, "Dv": 2},
)
PAIRS = [
    ("AS114", "kernel_output_viewed", *SIZES),
    ("AS114", "context_layer", *CROSS),
    ("AS114", "folded_output", *SIZES),
    ("AS114", "einsum_output", *VALUES),
    ("AS114", "pixels_of_channels", *SIZES),
]


class Block(nn.Module):
    """Causal block around the kernel of torch."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.fc, self.fc_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.resid_dropout = nn.Dropout(0.1)

    def merge(self, y):
        B, nh, T, hs = y.size()
        return y.transpose(1, 2).contiguous().view(B, T, nh * hs)

    def forward(self, x):
        B, T, C = x.size()
        qkv = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in qkv)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        x = x + self.resid_dropout(self.c_proj(self.merge(y)))
        return x + self.resid_dropout(self.fc_proj(F.gelu(self.fc(self.ln_2(x)))))


class ViewedBlock(Block):
    def merge(self, y):
        B, nh, T, hs = y.size()
        return y.contiguous().view(B, T, nh * hs)  # wrong: AS114 kernel_output_viewed


def wrong_kernel_output_viewed(B, H, L, Dk):
    return ViewedBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_kernel_output_viewed(B, H, L, Dk):
    return Block(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_kernel_output_viewed(module, x):
    q, k, v = module.c_attn(module.ln_1(x)).chunk(3, dim=-1)
    x = x + module.c_proj(multihead(q, k, v, module.n_head, keep=causal(x.shape[1], x.shape[1])))
    return x + module.fc_proj(F.gelu(module.fc(module.ln_2(x))))


class CrossLayer(nn.Module):
    """Attention over another encoder's states, with the residual and the norm that follow."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query, self.key = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.value, self.dense = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)

    def transpose_for_scores(self, x):
        return x.view(x.size(0), x.size(1), self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def merge(self, context_layer, shape):
        return context_layer.permute(0, 2, 1, 3).contiguous().view(shape)

    def forward(self, hidden_states, encoder_hidden_states):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(encoder_hidden_states))
        value_layer = self.transpose_for_scores(self.value(encoder_hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_probs = F.softmax(attention_scores / math.sqrt(self.attention_head_size), dim=-1)
        context_layer = self.merge(torch.matmul(attention_probs, value_layer), hidden_states.size())
        return self.LayerNorm(self.dense(context_layer) + hidden_states)


class CrossLayerUnpermuted(CrossLayer):
    def merge(self, context_layer, shape):
        return context_layer.contiguous().view(shape)  # wrong: AS114 context_layer


def wrong_context_layer(B, H, Lq, Lk, Dk):
    return CrossLayerUnpermuted(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def right_context_layer(B, H, Lq, Lk, Dk):
    return CrossLayer(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_context_layer(module, x, memory):
    context = multihead(module.query(x), module.key(memory), module.value(memory), module.num_attention_heads)
    return module.LayerNorm(module.dense(context) + x)


class FoldedAttention(nn.Module):
    """Batch and heads are one axis while it attends."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, x):
        bsz, seq_len, _ = x.shape
        x = x.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()
        return x.view(bsz * self.num_heads, seq_len, self.head_dim)

    def unfold(self, out, bsz, tgt_len, embed_dim):
        out = out.view(bsz, self.num_heads, tgt_len, self.head_dim).transpose(1, 2)
        return out.reshape(bsz, tgt_len, embed_dim)

    def forward(self, x):
        q, k, v = self.fold(self.q_proj(x) * self.head_dim**-0.5), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        probs = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        return self.out_proj(self.unfold(torch.bmm(probs, v), *x.shape))


class FoldedAttentionViewed(FoldedAttention):
    def unfold(self, out, bsz, tgt_len, embed_dim):
        return out.view(bsz, tgt_len, embed_dim)  # wrong: AS114 folded_output


def wrong_folded_output(B, H, L, Dk):
    return FoldedAttentionViewed(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_folded_output(B, H, L, Dk):
    return FoldedAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_folded_output(module, x):
    return module.out_proj(multihead(module.q_proj(x), module.k_proj(x), module.v_proj(x), module.num_heads))


def attend(q: Tensor, k: Tensor, v: Tensor, wo: Tensor) -> Tensor:
    """Query, key and value are (B, L, H, width), `wo` is (H*Dv, D)."""
    batch, queries = q.shape[:2]
    alpha = torch.einsum("bqhd,bkhd->bhqk", q, k).div(q.shape[-1] ** 0.5).softmax(dim=-1)
    context = torch.einsum("bhqk,bkhd->bqhd", alpha, v)
    return context.reshape(batch, queries, -1) @ wo


def attend_heads_first(q: Tensor, k: Tensor, v: Tensor, wo: Tensor) -> Tensor:
    """Query, key and value are (B, L, H, width), `wo` is (H*Dv, D)."""
    batch, queries = q.shape[:2]
    alpha = torch.einsum("bqhd,bkhd->bhqk", q, k).div(q.shape[-1] ** 0.5).softmax(dim=-1)
    context = torch.einsum("bhqk,bkhd->bhqd", alpha, v)
    return context.reshape(batch, queries, -1) @ wo  # wrong: AS114 einsum_output


def _heads(B, H, Lq, Lk, Dk, Dv):
    q, k, v = torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dv)
    return q, k, v, torch.randn(H * Dv, H * Dk)


def wrong_einsum_output(B, H, Lq, Lk, Dk, Dv):
    return attend_heads_first, _heads(B, H, Lq, Lk, Dk, Dv), {}


def right_einsum_output(B, H, Lq, Lk, Dk, Dv):
    return attend, _heads(B, H, Lq, Lk, Dk, Dv), {}


def reference_einsum_output(function, q, k, v, wo):
    return join(attention(*(x.transpose(1, 2) for x in (q, k, v)))) @ wo


class PixelAttention(nn.Module):
    """Attention over the pixels of an image, (B, channels, rows, columns); the merged heads are the result."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)

    def merge(self, context, shape):
        return context.transpose(-1, -2).reshape(shape)

    def forward(self, x):
        b, c, rows, columns = x.shape
        qkv = self.qkv(x).reshape(b, 3 * self.heads, c // self.heads, rows * columns).transpose(-1, -2)
        q, k, v = qkv.split(self.heads, dim=1)
        weights = (q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5).softmax(dim=-1)
        return self.merge(weights @ v, x.shape)


class MixedPixels(PixelAttention):
    def merge(self, context, shape):
        return context.transpose(1, 2).reshape(shape)  # wrong: AS114 pixels_of_channels


def _pixels(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, H * Dk, L, 3),), {}


def wrong_pixels_of_channels(B, H, L, Dk):
    return _pixels(MixedPixels, B, H, L, Dk)


def right_pixels_of_channels(B, H, L, Dk):
    return _pixels(PixelAttention, B, H, L, Dk)


def reference_pixels_of_channels(module, x):
    q, k, v = (t.flatten(2).mT for t in module.qkv(x).chunk(3, dim=1))
    return multihead(q, k, v, module.heads).mT.reshape(x.shape)
