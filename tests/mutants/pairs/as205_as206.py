"""AS205 and AS206: the scale is inverted, or computed and not used."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS205", "divided_by_scale", *SIZES),
    ("AS205", "multiplied_by_root", *CROSS),
    ("AS205", "kernel_root", *CROSS),
    ("AS206", "raw_scores_masked", *SIZES),
    ("AS206", "result_dropped", *CROSS),
    ("AS206", "query_dropped", *CROSS),
]


class Encoder(nn.Module):
    """Two layers of attention with residuals; the scores are a method."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.qkvs = nn.ModuleList(nn.Linear(dim, 3 * dim, bias=False) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) * self.scale

    def forward(self, x):
        b, n, d = x.shape
        for norm, qkv, out in zip(self.norms, self.qkvs, self.outs, strict=True):
            q, k, v = qkv(norm(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            context = self.scores(q, k).softmax(dim=-1) @ v
            x = x + out(context.transpose(1, 2).reshape(b, n, d))
        return x


class EncoderDivided(Encoder):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / self.scale  # wrong: AS205 divided_by_scale


def wrong_divided_by_scale(B, H, L, Dk):
    return EncoderDivided(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_divided_by_scale(B, H, L, Dk):
    return Encoder(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_divided_by_scale(module, x):
    for norm, qkv, out in zip(module.norms, module.qkvs, module.outs, strict=True):
        x = x + out(multihead(*qkv(norm(x)).chunk(3, dim=-1), module.heads))
    return x


class Cross(nn.Module):
    """Decoder queries, encoder keys and values."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(4))

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def attend(self, query, key, value):
        weights = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.head_dim)
        return torch.matmul(F.softmax(weights, dim=-1), value)

    def forward(self, hidden_states, key_value_states):
        query = self.heads(self.q_proj(hidden_states))
        key, value = self.heads(self.k_proj(key_value_states)), self.heads(self.v_proj(key_value_states))
        output = self.attend(query, key, value).transpose(1, 2).contiguous().view(hidden_states.shape)
        return self.out_proj(output)


class CrossMultiplied(Cross):
    def attend(self, query, key, value):
        weights = torch.matmul(query, key.transpose(2, 3)) * math.sqrt(self.head_dim)  # wrong: AS205 multiplied_by_root
        return torch.matmul(F.softmax(weights, dim=-1), value)


class CrossKernel(Cross):
    def attend(self, query, key, value):
        scale = self.head_dim**0.5
        return F.scaled_dot_product_attention(query, key, value, scale=scale)  # wrong: AS205 kernel_root


class CrossDropped(Cross):
    def attend(self, query, key, value):
        weights = torch.matmul(query, key.transpose(2, 3))
        weights.div(math.sqrt(self.head_dim))  # wrong: AS206 result_dropped
        return torch.matmul(F.softmax(weights, dim=-1), value)


def _cross(module, B, H, Lq, Lk, Dk):
    return module(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def wrong_multiplied_by_root(B, H, Lq, Lk, Dk):
    return _cross(CrossMultiplied, B, H, Lq, Lk, Dk)


def wrong_kernel_root(B, H, Lq, Lk, Dk):
    return _cross(CrossKernel, B, H, Lq, Lk, Dk)


def wrong_result_dropped(B, H, Lq, Lk, Dk):
    return _cross(CrossDropped, B, H, Lq, Lk, Dk)


def right_cross(B, H, Lq, Lk, Dk):
    return _cross(Cross, B, H, Lq, Lk, Dk)


def reference_cross(module, x, memory):
    context = multihead(module.q_proj(x), module.k_proj(memory), module.v_proj(memory), module.num_heads)
    return module.out_proj(context)


right_multiplied_by_root = right_kernel_root = right_result_dropped = right_cross
reference_multiplied_by_root = reference_kernel_root = reference_result_dropped = reference_cross


class CausalAttention(nn.Module):
    """The mask takes its shape from the scores."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def weights(self, scores, d_k):
        scaled = scores / math.sqrt(d_k)
        keep = torch.ones_like(scaled, dtype=torch.bool).tril()
        return F.softmax(scaled.masked_fill(~keep, float("-inf")), dim=-1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=-1))
        y = self.weights(q @ k.transpose(-2, -1), q.size(-1)) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class CausalAttentionRaw(CausalAttention):
    def weights(self, scores, d_k):
        scaled = scores / math.sqrt(d_k)
        keep = torch.ones_like(scaled, dtype=torch.bool).tril()
        return F.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1)


def wrong_raw_scores_masked(B, H, L, Dk):
    return CausalAttentionRaw(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_raw_scores_masked(B, H, L, Dk):
    return CausalAttention(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_raw_scores_masked(module, x):
    q, k, v = module.c_attn(x).chunk(3, dim=-1)
    return module.c_proj(multihead(q, k, v, module.n_head, keep=causal(x.shape[1], x.shape[1])))


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), the queries scaled."""
    q = torch.mul(q, q.shape[-1] ** -0.5)
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def forgotten_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), the queries scaled."""
    torch.mul(q, q.shape[-1] ** -0.5)  # wrong: AS206 query_dropped
    weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_query_dropped(B, H, Lq, Lk, Dk):
    return forgotten_query, _heads(B, H, Lq, Lk, Dk), {}


def right_query_dropped(B, H, Lq, Lk, Dk):
    return scaled_query, _heads(B, H, Lq, Lk, Dk), {}


def reference_query_dropped(function, q, k, v):
    return attention(q, k, v)
