"""AS201 and AS202: scores are scaled by the model's width, or by a length, in place of the heads' width."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS201", "lecture_head", *SIZES),
    ("AS201", "model_width", *CROSS),
    ("AS201", "kernel_scale", *SIZES),
    ("AS201", "einops_dim", *SIZES),
    ("AS202", "length_of_keys", *CROSS),
    ("AS202", "transposed_keys", *CROSS),
    ("AS202", "heads_third", *SIZES),
    ("AS202", "kernel_length", *SIZES),
]


class Head(nn.Module):
    """One head of causal self-attention over (B, T, C)."""

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def scores(self, x):
        k, q = self.key(x), self.query(x)
        return q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5

    def forward(self, x):
        T = x.shape[1]
        wei = self.scores(x)
        wei = wei.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class ByEmbedding(Head):
    def scores(self, x):
        C = x.shape[-1]
        k, q = self.key(x), self.query(x)
        return q @ k.transpose(-2, -1) * C**-0.5  # wrong: AS201 lecture_head


class Heads(nn.Module):
    def __init__(self, head, n_head, head_size):
        super().__init__()
        self.heads = nn.ModuleList(head(n_head * head_size, head_size) for _ in range(n_head))
        self.proj = nn.Linear(n_head * head_size, n_head * head_size)

    def forward(self, x):
        return x + self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


def wrong_lecture_head(B, H, L, Dk):
    return Heads(ByEmbedding, H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_lecture_head(B, H, L, Dk):
    return Heads(Head, H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_lecture_head(module, x):
    keep = causal(x.shape[1], x.shape[1])
    heads = [attention(h.query(x), h.key(x), h.value(x), keep=keep) for h in module.heads]
    return x + module.proj(torch.cat(heads, dim=-1))


class CrossAttention(nn.Module):
    """Cross-attention with the scores in a separate method."""

    def __init__(self, d_model, h):
        super().__init__()
        self.d_model, self.h, self.d_k = d_model, h, d_model // h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def scores(self, query, key):
        return torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)

    def forward(self, x, memory):
        q = self.w_q(x).view(x.size(0), x.size(1), self.h, self.d_k).transpose(1, 2)
        k = self.w_k(memory).view(memory.size(0), memory.size(1), self.h, self.d_k).transpose(1, 2)
        v = self.w_v(memory).view(memory.size(0), memory.size(1), self.h, self.d_k).transpose(1, 2)
        out = self.scores(q, k).softmax(dim=-1) @ v
        return self.w_o(out.transpose(1, 2).contiguous().view(x.size(0), x.size(1), self.h * self.d_k))


class CrossAttentionModelWidth(CrossAttention):
    def scores(self, query, key):
        return torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_model)  # wrong: AS201 model_width


class CrossAttentionKeys(CrossAttention):
    def scores(self, query, key):
        return torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(key.size(-2))  # wrong: AS202 length_of_keys


def _cross(module, B, H, Lq, Lk, Dk):
    return module(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_model_width(B, H, Lq, Lk, Dk):
    return _cross(CrossAttentionModelWidth, B, H, Lq, Lk, Dk)


def wrong_length_of_keys(B, H, Lq, Lk, Dk):
    return _cross(CrossAttentionKeys, B, H, Lq, Lk, Dk)


def right_model_width(B, H, Lq, Lk, Dk):
    return _cross(CrossAttention, B, H, Lq, Lk, Dk)


def reference_model_width(module, x, memory):
    return module.w_o(multihead(module.w_q(x), module.w_k(memory), module.w_v(memory), module.h))


right_length_of_keys = right_model_width
reference_length_of_keys = reference_model_width


class KernelAttention(nn.Module):
    """torch's fused attention with an explicit scale."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(embed_dim)
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def attend(self, x, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=q.size(-1) ** -0.5)

    def forward(self, x):
        q, k, v = self.qkv_proj(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out_proj(self.attend(x, q, k, v).transpose(1, 2).flatten(2))


class KernelAttentionWidth(KernelAttention):
    def attend(self, x, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=x.size(-1) ** -0.5)  # wrong: AS201 kernel_scale


class KernelAttentionLength(KernelAttention):
    def attend(self, x, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=q.size(2) ** -0.5)  # wrong: AS202 kernel_length


def wrong_kernel_scale(B, H, L, Dk):
    return KernelAttentionWidth(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_kernel_length(B, H, L, Dk):
    return KernelAttentionLength(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_kernel_scale(B, H, L, Dk):
    return KernelAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_kernel_scale(module, x):
    return x + module.out_proj(multihead(*module.qkv_proj(module.norm(x)).chunk(3, dim=-1), module.num_heads))


right_kernel_length = right_kernel_scale
reference_kernel_length = reference_kernel_scale


class EinopsAttention(nn.Module):
    """`dim` is the width of the tokens, `dim_head` that of a head."""

    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, self.scale_of(dim, dim_head)
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def scale_of(self, dim, dim_head):
        return dim_head**-0.5

    def forward(self, x):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        return self.to_out(rearrange(torch.matmul(dots.softmax(dim=-1), v), "b h n d -> b n (h d)"))


class EinopsAttentionDim(EinopsAttention):
    def scale_of(self, dim, dim_head):
        return dim**-0.5


def wrong_einops_dim(B, H, L, Dk):
    return EinopsAttentionDim(H * Dk, H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_einops_dim(B, H, L, Dk):
    return EinopsAttention(H * Dk, H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_einops_dim(module, x):
    return module.to_out(multihead(*module.to_qkv(x).chunk(3, dim=-1), module.heads))


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B*H, L, Dk)."""
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(k.size(-1))
    return torch.bmm(F.softmax(scores, dim=-1), v)


def folded_transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B*H, L, Dk)."""
    k = k.transpose(1, 2)
    scores = torch.bmm(q, k) / math.sqrt(k.size(-1))  # wrong: AS202 transposed_keys
    return torch.bmm(F.softmax(scores, dim=-1), v)


def _folded(B, H, Lq, Lk, Dk):
    return torch.randn(B * H, Lq, Dk), torch.randn(B * H, Lk, Dk), torch.randn(B * H, Lk, Dk)


def wrong_transposed_keys(B, H, Lq, Lk, Dk):
    return folded_transposed, _folded(B, H, Lq, Lk, Dk), {}


def right_transposed_keys(B, H, Lq, Lk, Dk):
    return folded, _folded(B, H, Lq, Lk, Dk), {}


def reference_transposed_keys(function, q, k, v):
    return attention(q, k, v)


class HeadsThird(nn.Module):
    """Never transposes: (B, L, H, Dk) throughout."""

    def __init__(self, heads, width):
        super().__init__()
        self.query = nn.Parameter(torch.randn(heads * width, heads, width) * width**-0.5)
        self.key = nn.Parameter(torch.randn(heads * width, heads, width) * width**-0.5)
        self.value = nn.Parameter(torch.randn(heads * width, heads, width) * width**-0.5)

    def scale(self, q):
        return 1.0 / math.sqrt(q.shape[3])

    def forward(self, x):
        q, k, v = (torch.einsum("btd,dnh->btnh", x, w) for w in (self.query, self.key, self.value))
        probs = torch.softmax(torch.einsum("btnh,bsnh->bnts", q, k) * self.scale(q), dim=-1)
        return torch.einsum("bnts,bsnh->btnh", probs, v)


class HeadsThirdLength(HeadsThird):
    def scale(self, q):
        return 1.0 / math.sqrt(q.shape[1])


def wrong_heads_third(B, H, L, Dk):
    return HeadsThirdLength(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_heads_third(B, H, L, Dk):
    return HeadsThird(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_heads_third(module, x):
    q, k, v = (x @ w.flatten(1) for w in (module.query, module.key, module.value))
    return multihead(q, k, v, module.query.shape[1]).unflatten(-1, module.query.shape[1:])
