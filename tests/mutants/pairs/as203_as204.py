"""AS203 and AS204: scores are scaled twice, or not at all where a scale is claimed."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, join, multihead, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS203", "scaled_query_in_kernel", *SIZES),
    ("AS203", "query_and_scores", *CROSS),
    ("AS203", "no_root", *SIZES),
    ("AS203", "both_sides", *CROSS),
    ("AS204", "einsum_plain", *CROSS),
    ("AS204", "kernel_of_one", *SIZES),
    ("AS204", "bmm_plain", *SIZES),
]
CLAIMS = ["scale=1/sqrt(Dk)"]


class LlamaStyle(nn.Module):
    """Causal block: root-mean-square norms and a gated feed-forward."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden_size), nn.RMSNorm(hidden_size)
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def query(self, x):
        return self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        h = self.input_layernorm(x)
        k = self.k_proj(h).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(h).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        out = F.scaled_dot_product_attention(self.query(h), k, v, is_causal=True)
        x = x + self.o_proj(out.transpose(1, 2).flatten(2))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class LlamaStyleScaled(LlamaStyle):
    def query(self, x):
        q = self.q_proj(x) * self.head_dim**-0.5  # wrong: AS203 scaled_query_in_kernel
        return q.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def wrong_scaled_query_in_kernel(B, H, L, Dk):
    return LlamaStyleScaled(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_scaled_query_in_kernel(B, H, L, Dk):
    return LlamaStyle(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_scaled_query_in_kernel(module, x):
    h, keep = module.input_layernorm(x), causal(x.shape[1], x.shape[1])
    out = multihead(module.q_proj(h), module.k_proj(h), module.v_proj(h), module.num_heads, keep=keep)
    x = x + module.o_proj(out)
    h = module.post_attention_layernorm(x)
    return x + module.down_proj(F.silu(module.gate_proj(h)) * module.up_proj(h))


class ScaledProjection(nn.Module):
    """Scales the queries as it projects them, as sequence toolkits do."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def fold(self, x):
        bsz, length, _ = x.shape
        x = x.view(bsz, length, self.num_heads, self.head_dim).transpose(1, 2)
        return x.reshape(bsz * self.num_heads, length, self.head_dim)

    def scores(self, q, k):
        return torch.bmm(q, k.transpose(1, 2))

    def forward(self, query, key):
        bsz, tgt_len, embed_dim = query.shape
        q, k, v = self.fold(self.q_proj(query) * self.scaling), self.fold(self.k_proj(key)), self.fold(self.v_proj(key))
        attn = torch.bmm(self.scores(q, k).softmax(dim=-1), v)
        attn = attn.view(bsz, self.num_heads, tgt_len, self.head_dim).transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
        return self.out_proj(attn)


class ScaledProjectionAndScores(ScaledProjection):
    def scores(self, q, k):
        return torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)  # wrong: AS203 query_and_scores


def _crossed(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)


def wrong_query_and_scores(B, H, Lq, Lk, Dk):
    return ScaledProjectionAndScores(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def right_query_and_scores(B, H, Lq, Lk, Dk):
    return ScaledProjection(H * Dk, H), _crossed(B, H, Lq, Lk, Dk), {}


def reference_query_and_scores(module, query, key):
    return module.out_proj(multihead(module.q_proj(query), module.k_proj(key), module.v_proj(key), module.num_heads))


class Tutorial(nn.Module):
    """The formula of the paper, line by line."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.W = nn.Linear(d_model, 3 * d_model)

    def normalise(self, scores, d_k):
        return scores / d_k**0.5

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.W(x).chunk(3, dim=2))
        alpha = torch.softmax(self.normalise(q @ k.mT, q.shape[-1]), dim=-1)
        return (alpha @ v).transpose(1, 2).flatten(2), alpha


class TutorialRootless(Tutorial):
    def normalise(self, scores, d_k):
        return scores / d_k  # wrong: AS203 no_root


def wrong_no_root(B, H, L, Dk):
    return TutorialRootless(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_no_root(B, H, L, Dk):
    return Tutorial(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_no_root(module, x):
    return multihead(*module.W(x).chunk(3, dim=-1), module.heads)


def quarter_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scales both sides before the product, which halves need: (B, H, L, Dk)."""
    scale = q.shape[-1] ** -0.25
    return torch.softmax((q * scale) @ (k * scale).transpose(-1, -2), dim=-1) @ v


def half_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scales both sides before the product, which halves need: (B, H, L, Dk)."""
    scale = q.shape[-1] ** -0.5
    return torch.softmax((q * scale) @ (k * scale).transpose(-1, -2), dim=-1) @ v  # wrong: AS203 both_sides


def _heads(B, H, Lq, Lk, Dk):
    return torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)


def wrong_both_sides(B, H, Lq, Lk, Dk):
    return half_scaled, _heads(B, H, Lq, Lk, Dk), {}


def right_both_sides(B, H, Lq, Lk, Dk):
    return quarter_scaled, _heads(B, H, Lq, Lk, Dk), {}


def reference_both_sides(function, q, k, v):
    return attention(q, k, v)


def letters(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    scores = torch.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("nhql,nlhd->nqhd", torch.softmax(scores, dim=3), v)


def letters_unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in (B, L, H, Dk)."""
    scores = torch.einsum("nqhd,nkhd->nhqk", q, k)  # wrong: AS204 einsum_plain
    return torch.einsum("nhql,nlhd->nqhd", torch.softmax(scores, dim=3), v)


def _heads_third(B, H, Lq, Lk, Dk):
    return torch.randn(B, Lq, H, Dk), torch.randn(B, Lk, H, Dk), torch.randn(B, Lk, H, Dk)


def wrong_einsum_plain(B, H, Lq, Lk, Dk):
    return letters_unscaled, _heads_third(B, H, Lq, Lk, Dk), {}, CLAIMS


def right_einsum_plain(B, H, Lq, Lk, Dk):
    return letters, _heads_third(B, H, Lq, Lk, Dk), {}, CLAIMS


def reference_einsum_plain(function, q, k, v):
    return join(attention(*(t.transpose(1, 2) for t in (q, k, v)))).view(q.shape)


class Kernel(nn.Module):
    """The scale is an attribute, passed on to the kernel of torch."""

    scale = None

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class KernelOfOne(Kernel):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)  # wrong: AS204 kernel_of_one


class Products(Kernel):
    """The same block by products of matrices."""

    def attend(self, q, k, v):
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(q.new_zeros(1), q, k.mT, beta=0, alpha=1 / math.sqrt(q.shape[-1]))
        return torch.bmm(scores.softmax(dim=-1), v).unflatten(0, (-1, self.heads))


class PlainProducts(Kernel):
    def attend(self, q, k, v):
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.mT)  # wrong: AS204 bmm_plain
        return torch.bmm(scores.softmax(dim=-1), v).unflatten(0, (-1, self.heads))


def wrong_kernel_of_one(B, H, L, Dk):
    return KernelOfOne(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def right_kernel_of_one(B, H, L, Dk):
    return Kernel(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def wrong_bmm_plain(B, H, L, Dk):
    return PlainProducts(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def right_bmm_plain(B, H, L, Dk):
    return Products(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, CLAIMS


def reference_kernel_of_one(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(module.norm(x)).chunk(3, dim=-1))
    return x + module.out(join(attention(q, k, v)))


reference_bmm_plain = reference_kernel_of_one
