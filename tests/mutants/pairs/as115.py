"""AS115: heads are joined along the wrong axis, or in the wrong order."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS115", "list_of_heads", *SIZES),
    ("AS115", "widths_before_heads", *CROSS),
    ("AS115", "stacked_last", *SIZES),
    ("AS115", "einops_merge", *SIZES),
]


class Head(nn.Module):
    """One head of causal self-attention."""

    def __init__(self, n_embd, head_size, dropout=0.2):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.ones(T, T, device=x.device).tril() == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        n_embd = num_heads * head_size
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def join(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)

    def forward(self, x):
        return self.proj(self.join(x))


class ListOfHeadsAlongTokens(ListOfHeads):
    def join(self, x):
        return torch.cat([h(x) for h in self.heads], dim=1).view(x.shape)  # wrong: AS115 list_of_heads


def wrong_list_of_heads(B, H, L, Dk):
    return ListOfHeadsAlongTokens(H, Dk), (torch.randn(B, L, H * Dk),), {}


def right_list_of_heads(B, H, L, Dk):
    return ListOfHeads(H, Dk), (torch.randn(B, L, H * Dk),), {}


def reference_list_of_heads(module, x):
    q, k, v = (
        x @ torch.cat([getattr(head, name).weight for head in module.heads]).T for name in ("query", "key", "value")
    )
    return module.proj(multihead(q, k, v, len(module.heads), keep=causal(x.shape[1], x.shape[1])))


class CrossBlock(nn.Module):
    """A decoder's layer: reads the memory, then a feed-forward, norms behind."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)

    def merge(self, x):
        return x.permute(0, 2, 1, 3).flatten(2)

    def forward(self, x, memory):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(memory)), self.split(self.wv(memory))
        x = self.norm1(x + self.wo(self.merge(F.scaled_dot_product_attention(q, k, v))))
        return self.norm2(x + self.ff(x))


class CrossBlockWidths(CrossBlock):
    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)  # wrong: AS115 widths_before_heads


def wrong_widths_before_heads(B, H, Lq, Lk, Dk):
    return CrossBlockWidths(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def right_widths_before_heads(B, H, Lq, Lk, Dk):
    return CrossBlock(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_widths_before_heads(module, x, memory):
    context = multihead(module.wq(x), module.wk(memory), module.wv(memory), module.heads)
    x = module.norm1(x + module.wo(context))
    return module.norm2(x + module.ff(x))


class LoopedHeads(nn.Module):
    """A loop over the heads of one projection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.depth = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width)

    def one_head(self, q, k, v):
        logits = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=self.depth**-0.5)
        return torch.bmm(logits.softmax(-1), v)

    def together(self, outs):
        return torch.stack(outs, dim=2).flatten(start_dim=2)

    def forward(self, x):
        chunks = [f(x).split(self.depth, dim=-1) for f in (self.query, self.key, self.value)]
        return self.output(self.together([self.one_head(*parts) for parts in zip(*chunks, strict=True)]))


class LoopedHeadsLast(LoopedHeads):
    def together(self, outs):
        return torch.stack(outs, dim=-1).flatten(start_dim=2)  # wrong: AS115 stacked_last


def wrong_stacked_last(B, H, L, Dk):
    return LoopedHeadsLast(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_stacked_last(B, H, L, Dk):
    return LoopedHeads(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_stacked_last(module, x):
    return module.output(multihead(module.query(x), module.key(x), module.value(x), module.heads))


def merged(x, w_in, w_out, heads):
    """Self-attention of (B, N, D); `w_in` is (D, 3*D), `w_out` (D, D)."""
    q, k, v = rearrange(x @ w_in, "b n (three h d) -> three b h n d", three=3, h=heads)
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
    return rearrange(out, "b h n d -> b n (h d)") @ w_out


def merged_widths_first(x, w_in, w_out, heads):
    """Self-attention of (B, N, D); `w_in` is (D, 3*D), `w_out` (D, D)."""
    q, k, v = rearrange(x @ w_in, "b n (three h d) -> three b h n d", three=3, h=heads)
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
    return rearrange(out, "b h n d -> b n (d h)") @ w_out  # wrong: AS115 einops_merge


def _weights(B, H, L, Dk):
    D = H * Dk
    return torch.randn(B, L, D), torch.randn(D, 3 * D) / D**0.5, torch.randn(D, D) / D**0.5, H


def wrong_einops_merge(B, H, L, Dk):
    return merged_widths_first, _weights(B, H, L, Dk), {}


def right_einops_merge(B, H, L, Dk):
    return merged, _weights(B, H, L, Dk), {}


def reference_einops_merge(function, x, w_in, w_out, heads):
    q, k, v = (x @ w for w in w_in.chunk(3, dim=1))
    depth = q.shape[-1] // heads
    parts = [attention(*(t[..., i * depth : (i + 1) * depth] for t in (q, k, v))) for i in range(heads)]
    return sum(part @ w for part, w in zip(parts, w_out.split(depth), strict=True))
