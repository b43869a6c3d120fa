"""AS126: queries and keys have letters of their own for their features, which are summed separately."""

import einops
import torch
from torch import nn

from tests.mutants.pairs.as4_reference import heads, merge, project

SIZES = (
    {"B": 2, "H": 3, "L": 7, "Dk": 5},
    {"B": 3, "H": 4, "L": 9, "Dk": 8},
    {"B": 4, "H": 5, "L": 11, "Dk": 6},
)
GROUPED = (
    {"B": 2, "Hkv": 3, "G": 4, "L": 7, "Dk": 5},
    {"B": 5, "Hkv": 2, "G": 3, "L": 9, "Dk": 4},
    {"B": 3, "Hkv": 4, "G": 2, "L": 11, "Dk": 6},
)
PAIRS = [
    ("AS126", "letters_of_a_function", *SIZES),
    ("AS126", "names_of_einops", *SIZES),
    ("AS126", "letters_of_groups", *GROUPED),
]


def attention(q, k, v):
    """Attend in (B, L, H, Dk)."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


def attention_of_sums(q, k, v):
    """Attend in (B, L, H, Dk)."""
    scores = torch.einsum("bqhd,bkhe->bhqk", q, k) * q.shape[-1] ** -0.5  # wrong: AS126 letters_of_a_function
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


def _function(function, B, H, L, Dk):
    return function, tuple(torch.randn(B, L, H, Dk) for _ in range(3)), {}


def wrong_letters_of_a_function(B, H, L, Dk):
    return _function(attention_of_sums, B, H, L, Dk)


def right_letters_of_a_function(B, H, L, Dk):
    return _function(attention, B, H, L, Dk)


def plain(q, k, v):
    """Attend in (B, H, L, Dk)."""
    weights = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def reference_letters_of_a_function(_, q, k, v):
    return plain(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


class Named(nn.Module):
    """Causal self-attention whose products have words for axes."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.to_out = nn.Linear(width, width)

    def scores(self, q, k):
        return einops.einsum(q, k, "batch head i feature, batch head j feature -> batch head i j")

    def forward(self, x):
        q, k, v = (
            einops.rearrange(to(x), "b n (h d) -> b h n d", h=self.n_heads) for to in (self.to_q, self.to_k, self.to_v)
        )
        scores = self.scores(q, k) / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        return self.to_out(einops.rearrange(weights @ v, "b h n d -> b n (h d)"))


class NamedApart(Named):
    def scores(self, q, k):
        pattern = "batch head i of_query, batch head j of_key -> batch head i j"
        return einops.einsum(q, k, pattern)  # wrong: AS126 names_of_einops


def _named(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_names_of_einops(B, H, L, Dk):
    return _named(NamedApart, B, H, L, Dk)


def right_names_of_einops(B, H, L, Dk):
    return _named(Named, B, H, L, Dk)


def reference_names_of_einops(module, x):
    q, k, v = (heads(x, to, module.n_heads) for to in (module.to_q, module.to_k, module.to_v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).exp().tril()
    return merge(weights / weights.sum(-1, keepdim=True) @ v, module.to_out)


class Grouped(nn.Module):
    """Self-attention in which several heads of queries share one of keys and values."""

    scores = "bihgd,bjhd->bhgij"

    def __init__(self, width, n_groups, n_heads):
        super().__init__()
        self.n_groups, self.n_heads = n_groups, n_heads
        head_width = width // (n_groups * n_heads)
        self.wq = nn.Linear(width, width)
        self.wk, self.wv = (nn.Linear(width, n_heads * head_width) for _ in range(2))

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, self.n_groups, -1))
        k, v = (layer(x).unflatten(-1, (self.n_heads, -1)) for layer in (self.wk, self.wv))
        scores = torch.einsum(self.scores, q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhgij,bjhd->bihgd", scores.softmax(-1), v).flatten(2)


class GroupedApart(Grouped):
    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, self.n_groups, -1))
        k, v = (layer(x).unflatten(-1, (self.n_heads, -1)) for layer in (self.wk, self.wv))
        scores = torch.einsum("bihgd,bjhe->bhgij", q, k) / q.shape[-1] ** 0.5  # wrong: AS126 letters_of_groups
        return torch.einsum("bhgij,bjhd->bihgd", scores.softmax(-1), v).flatten(2)


def _grouped(cls, B, Hkv, G, L, Dk):
    return cls(Hkv * G * Dk, G, Hkv), (torch.randn(B, L, Hkv * G * Dk),), {}


def wrong_letters_of_groups(B, Hkv, G, L, Dk):
    return _grouped(GroupedApart, B, Hkv, G, L, Dk)


def right_letters_of_groups(B, Hkv, G, L, Dk):
    return _grouped(Grouped, B, Hkv, G, L, Dk)


def reference_letters_of_groups(module, x):
    q = project(x, module.wq).unflatten(-1, (module.n_heads * module.n_groups, -1)).transpose(1, 2)
    k, v = (heads(x, layer, module.n_heads).repeat_interleave(module.n_groups, 1) for layer in (module.wk, module.wv))
    return plain(q, k, v).transpose(1, 2).flatten(2)
