"""Versions of one attention module, each with one change."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Separate(nn.Module):
    """Three projections; the other versions differ from this one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Wq = nn.Linear(width, width)
        self.Wk = nn.Linear(width, width)
        self.Wv = nn.Linear(width, width)
        self.Wo = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Renamed(nn.Module):
    """Every variable and attribute has another name."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.q_proj = nn.Linear(n_embd, n_embd)
        self.k_proj = nn.Linear(n_embd, n_embd)
        self.v_proj = nn.Linear(n_embd, n_embd)
        self.out_proj = nn.Linear(n_embd, n_embd)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, T, C = hidden.shape
        query = self.q_proj(hidden).view(batch, T, self.n_head, -1).transpose(1, 2)
        key = self.k_proj(hidden).view(batch, T, self.n_head, -1).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, T, self.n_head, -1).transpose(1, 2)
        att = query @ key.mT / query.shape[-1] ** 0.5
        probs = att.softmax(-1)
        y = probs @ value
        return self.out_proj(y.transpose(1, 2).reshape(batch, T, C))


class Masked(Separate):
    """Additional steps: the mask is created, converted to bool, and applied."""

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(L, L).triu(1).bool()
        scores = scores.masked_fill(later, -1e9)
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Reshaped(Separate):
    """One `reshape` instead of a `view`."""

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).reshape(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Fused(nn.Module):
    """One projection instead of three."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(width, 3 * width)
        self.Wo = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=-1)
        q = q.view(B, L, self.heads, -1).transpose(1, 2)
        k = k.view(B, L, self.heads, -1).transpose(1, 2)
        v = v.view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Copied(Separate):
    """The keys are copied after the transposition, with other strides."""

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).permute(0, 2, 1, 3).contiguous()
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Swapped(Separate):
    """The projection of the keys follows that of the values."""

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.heads, -1).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ v
        return self.Wo(context.transpose(1, 2).reshape(B, L, D))


class Misled(Separate):
    """The weights are applied to the keys: every shape is the same."""

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q = self.Wq(x).view(B, L, self.heads, -1).transpose(1, 2)
        k = self.Wk(x).view(B, L, self.heads, -1).transpose(1, 2)
        v = self.Wv(x).view(B, L, self.heads, -1).transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        context = weights @ k
        return self.Wo(context.transpose(1, 2).reshape(B, L, D)) + 0 * v.sum()
