"""Attention whose scores are no plain dot products of whole queries and keys, or whose weights are no plain softmax."""

import math

import torch
from torch import nn


def turn(x):
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


class Drain(nn.Module):
    """The first column of the softmax is a learned score for each head."""

    def __init__(self, width, count):
        super().__init__()
        self.count = count
        self.a, self.b, self.c = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.level = nn.Parameter(torch.randn(count, 1, 1))

    def forward(self, x):
        n, t, _ = x.shape
        u, v, w = (f(x).view(n, t, self.count, -1).transpose(1, 2) for f in (self.a, self.b, self.c))
        e = u @ v.transpose(2, 3) / math.sqrt(u.shape[-1])
        e = e.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        e = torch.cat([self.level.expand(n, -1, t, 1), e], -1)
        p = e.softmax(-1)[..., 1:]
        return (p @ w).transpose(1, 2).reshape(n, t, -1)


class Pairs(nn.Module):
    """A small network scores each pair."""

    def __init__(self, left, right, inner):
        super().__init__()
        self.f = nn.Linear(left, inner, bias=False)
        self.g = nn.Linear(right, inner, bias=False)
        self.out = nn.Linear(inner, 1, bias=False)

    def forward(self, s, h, gone):
        e = self.out(torch.tanh(self.f(s).unsqueeze(2) + self.g(h).unsqueeze(1))).squeeze(-1)
        return e.masked_fill(gone.unsqueeze(1), float("-inf")).softmax(-1) @ h


class Compressed(nn.Module):
    """One compressed vector serves as key and value of all heads; a turned part of the scores is added."""

    def __init__(self, dim, nh, dh, dr, rank):
        super().__init__()
        self.nh, self.dh, self.dr, self.rank = nh, dh, dr, rank
        self.q = nn.Linear(dim, nh * (dh + dr), bias=False)
        self.down = nn.Linear(dim, rank + dr, bias=False)
        self.up = nn.Parameter(torch.randn(nh, dh, rank) / dh**0.5)

    def forward(self, x):
        n, t, _ = x.shape
        plain, turned = self.q(x).view(n, t, self.nh, -1).transpose(1, 2).split([self.dh, self.dr], -1)
        c, kr = self.down(x).split([self.rank, self.dr], -1)
        wide = torch.einsum("bhtd,hdr->bhtr", plain, self.up)
        s = torch.einsum("bhtr,bsr->bhts", wide, c) + torch.einsum("bhtd,bsd->bhts", turn(turned), turn(kr))
        p = (s * (self.dh + self.dr) ** -0.5).softmax(-1)
        return torch.einsum("bhts,bsr->bhtr", p, c)


class Contrast(nn.Module):
    """Each head's weights are the difference of two softmaxes."""

    def __init__(self, dim, nh):
        super().__init__()
        self.nh = nh
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.lam = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        n, t, d = x.shape
        q, k = (f(x).view(n, t, 2 * self.nh, -1).transpose(1, 2) for f in (self.wq, self.wk))
        v = self.wv(x).view(n, t, self.nh, -1).transpose(1, 2)
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1).view(n, self.nh, 2, t, t)
        p = p[:, :, 0] - self.lam * p[:, :, 1]
        return (p @ v).transpose(1, 2).reshape(n, t, d)


class Step(nn.Module):
    """New tokens attend to given keys and values, and to their own."""

    def __init__(self, dim, nh):
        super().__init__()
        self.nh = nh
        self.p = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x, ck, cv):
        n, t, d = x.shape
        q, k, v = self.p(x).view(n, t, 3, self.nh, -1).unbind(2)
        k, v = torch.cat([ck, k], 1), torch.cat([cv, v], 1)
        e = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        total = k.shape[1]
        later = torch.arange(total)[None] > torch.arange(total - t, total)[:, None]
        y = torch.einsum("bhts,bshd->bthd", e.masked_fill(later, float("-inf")).softmax(-1), v)
        return y.reshape(n, t, d)
