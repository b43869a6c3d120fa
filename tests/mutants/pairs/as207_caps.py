"""AS207: scores are capped before they are scaled, so that the products of queries and keys saturate."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible
from tests.mutants.plain import softmax

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7}, {"B": 4, "H": 3, "L": 7, "Dk": 8})
PAIRS = [
    ("AS207", "scaled_after_cap", *SIZES),
    ("AS207", "causal_scaled_after_cap", *SIZES),
    ("AS207", "folded_scaled_after_cap", *SIZES),
]
CLAIMS = ["scale=1/sqrt(Dk)"]


class ScaleThenCap(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return (3 * torch.tanh(scores / 3)).softmax(dim=-1) @ v


class CapThenScale(nn.Module):
    def forward(self, q, k, v):
        scores = 3 * torch.tanh(q @ k.mT / 3)
        return (scores / q.shape[-1] ** 0.5).softmax(dim=-1) @ v  # wrong: AS207 scaled_after_cap


def _given(cls, B, H, L, Dk):
    return cls(), tuple(torch.randn(B, H, L, Dk) for _ in range(3)), {}, CLAIMS


def wrong_scaled_after_cap(B, H, L, Dk):
    return _given(CapThenScale, B, H, L, Dk)


def right_scaled_after_cap(B, H, L, Dk):
    return _given(ScaleThenCap, B, H, L, Dk)


def capped(scores, cap):
    """Cap by the exponential: tanh(x) is (e^2x - 1) / (e^2x + 1)."""
    double = (2 * scores / cap).exp()
    return cap * (double - 1) / (double + 1)


def reference_scaled_after_cap(_, q, k, v):
    weights = softmax(capped(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, 3))
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class Causal(nn.Module):
    """Scales the queries, and caps the scores by a function of the class."""

    def __init__(self, width, n_heads, cap=2.0):
        super().__init__()
        self.n_heads, self.cap = n_heads, cap
        self.query_key, self.value, self.out = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )

    def soft_cap(self, scores):
        return torch.tanh(scores.div(self.cap)).mul(self.cap)

    def scores(self, q, k):
        q = q * q.shape[-1] ** -0.5
        return self.soft_cap(torch.einsum("blhd,bmhd->bhlm", q, k))

    def forward(self, x):
        q, k = (t.unflatten(-1, (self.n_heads, -1)) for t in self.query_key(x).chunk(2, dim=-1))
        v = self.value(x).unflatten(-1, (self.n_heads, -1))
        seen = torch.ones(x.shape[1], x.shape[1]).tril() == 1
        scores = torch.where(seen, self.scores(q, k), -torch.inf)
        return self.out(torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), v).flatten(2))


class CausalScaledLate(Causal):
    def scores(self, q, k):
        scores = self.soft_cap(torch.einsum("blhd,bmhd->bhlm", q, k))
        return scores * q.shape[-1] ** -0.5  # wrong: AS207 causal_scaled_after_cap


def _causal(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, [*CLAIMS, "causal"]


def wrong_causal_scaled_after_cap(B, H, L, Dk):
    return _causal(CausalScaledLate, B, H, L, Dk)


def right_causal_scaled_after_cap(B, H, L, Dk):
    return _causal(Causal, B, H, L, Dk)


def reference_causal_scaled_after_cap(module, x):
    width = x.shape[-1]
    parts = nn.Linear(width, 3 * width)
    parts.weight = nn.Parameter(torch.cat([module.query_key.weight, module.value.weight]))
    parts.bias = nn.Parameter(torch.cat([module.query_key.bias, module.value.bias]))
    q, k, v = fused(x, parts, module.n_heads)
    scores = capped(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, module.cap)
    nothing = torch.zeros_like(q)
    return merge(attend(nothing, nothing, v, keep=visible(x.shape[1], x.shape[1]), bias=scores), module.out)


class Folded(nn.Module):
    """Folds heads into the batch, and attends to a memory of the same length."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads, self.cap = n_heads, 4
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))

    def fold(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).flatten(0, 1)

    def logits(self, q, k):
        logits = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
        logits = logits / self.cap
        return logits.tanh() * self.cap

    def forward(self, x, memory):
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(memory)), self.fold(self.v_proj(memory))
        context = torch.bmm(torch.softmax(self.logits(q, k), -1), v)
        return context.unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2)


class FoldedScaledLate(Folded):
    def logits(self, q, k):
        logits = torch.bmm(q, k.mT) / self.cap
        logits = logits.tanh() * self.cap
        return logits * q.shape[-1] ** -0.5  # wrong: AS207 folded_scaled_after_cap


def _folded(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L, H * Dk)), {}, CLAIMS


def wrong_folded_scaled_after_cap(B, H, L, Dk):
    return _folded(FoldedScaledLate, B, H, L, Dk)


def right_folded_scaled_after_cap(B, H, L, Dk):
    return _folded(Folded, B, H, L, Dk)


def reference_folded_scaled_after_cap(module, x, memory):
    inputs = ((x, module.q_proj), (memory, module.k_proj), (memory, module.v_proj))
    q, k, v = (heads(t, linear, module.n_heads) for t, linear in inputs)
    weights = softmax(capped(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5, module.cap))
    return merge(torch.einsum("bhqk,bhkd->bhqd", weights, v))
