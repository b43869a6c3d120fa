"""AS112: heads are split with the number of heads and their width swapped."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import einsum, nn

from tests.mutants.plain import multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS112", "swapped_view", *SIZES),
    ("AS112", "einops_letters", *CROSS),
    ("AS112", "strided_heads", *SIZES),
    ("AS112", "transpose_for_scores", *SIZES),
]


class Attention(nn.Module):
    """Returns the context of each query."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.fc = nn.Linear(d_model, d_model, bias=False)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.n_heads, self.d_k).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.w_qs(x)), self.split(self.w_ks(x)), self.split(self.w_vs(x))
        attn = F.softmax(torch.matmul(q / self.d_k**0.5, k.transpose(2, 3)), dim=-1)
        output = torch.matmul(attn, v).transpose(1, 2).contiguous().view(x.size())
        return self.fc(output) + x


class SwappedAttention(Attention):
    def split(self, x):
        return x.view(x.size(0), x.size(1), self.d_k, self.n_heads).transpose(1, 2)  # wrong: AS112 swapped_view


def wrong_swapped_view(B, H, L, Dk):
    return SwappedAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_swapped_view(B, H, L, Dk):
    return Attention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_swapped_view(module, x):
    return module.fc(multihead(module.w_qs(x), module.w_ks(x), module.w_vs(x), module.n_heads)) + x


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def split(self, q, k, v):
        return (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

    def forward(self, x, context):
        q, k, v = self.split(self.to_q(x), *self.to_kv(context).chunk(2, dim=-1))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        out = einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class CrossAttentionLetters(CrossAttention):
    def split(self, q, k, v):
        return (rearrange(t, "b n (d h) -> b h n d", h=self.heads) for t in (q, k, v))  # wrong: AS112 einops_letters


def wrong_einops_letters(B, H, Lq, Lk, Dk):
    return CrossAttentionLetters(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def right_einops_letters(B, H, Lq, Lk, Dk):
    return CrossAttention(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_einops_letters(module, x, context):
    k, v = module.to_kv(context).chunk(2, dim=-1)
    return module.to_out(multihead(module.to_q(x), k, v, module.heads))


class VisionAttention(nn.Module):
    """One projection for all three, cut after a permutation."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def cut(self, qkv):
        B, N, _ = qkv.shape
        return qkv.reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.cut(self.qkv(x)).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class VisionBlock(nn.Module):
    def __init__(self, attention, dim, num_heads):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), attention(dim, num_heads), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class StridedVisionAttention(VisionAttention):
    def cut(self, qkv):
        B, N, _ = qkv.shape
        parts = qkv.reshape(B, N, 3, self.head_dim, self.num_heads)  # wrong: AS112 strided_heads
        return parts.permute(2, 0, 4, 1, 3)


def wrong_strided_heads(B, H, L, Dk):
    return VisionBlock(StridedVisionAttention, H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_strided_heads(B, H, L, Dk):
    return VisionBlock(VisionAttention, H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_strided_heads(module, x):
    q, k, v = module.attn.qkv(module.norm1(x)).chunk(3, dim=-1)
    x = x + module.attn.proj(multihead(q, k, v, module.attn.num_heads))
    return x + module.fc2(F.gelu(module.fc1(module.norm2(x))))


class BertStyle(nn.Module):
    """The queries of one layer, split in a separate method."""

    def __init__(self, hidden_size, heads):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = heads, hidden_size // heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        x = x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def query_layer(self, hidden_states):
        return self.transpose_for_scores(self.query(hidden_states))

    def forward(self, hidden_states):
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(self.query_layer(hidden_states), key_layer.transpose(-1, -2))
        attention_probs = nn.Softmax(dim=-1)(attention_scores / math.sqrt(self.attention_head_size))
        context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
        return context_layer.view(hidden_states.shape)


class BertStyleQuery(BertStyle):
    def query_layer(self, hidden_states):
        shape = (*hidden_states.shape[:-1], self.attention_head_size, self.num_attention_heads)
        query = self.query(hidden_states).view(shape)  # wrong: AS112 transpose_for_scores
        return query.permute(0, 3, 1, 2)


def wrong_transpose_for_scores(B, H, L, Dk):
    return BertStyleQuery(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_transpose_for_scores(B, H, L, Dk):
    return BertStyle(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_transpose_for_scores(module, x):
    return multihead(module.query(x), module.key(x), module.value(x), module.num_attention_heads)
