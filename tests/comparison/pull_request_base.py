"""Attention before ten pull requests, which test_diff_behaviour.py makes."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fused(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.H, self.Dk = n_head, d_model // n_head
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def split(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        return x.view(B, L, self.H, self.Dk).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query, key, value = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=0.0, is_causal=True)
        return self.out_proj(context.transpose(1, 2).reshape(B, L, D))


class Plain(nn.Module):
    def __init__(self, d_model: int, n_head: int, max_len: int = 512):
        super().__init__()
        self.H, self.Dk = n_head, d_model // n_head
        self.scale = self.Dk**-0.5
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("causal", torch.ones(max_len, max_len, dtype=torch.bool).tril())

    def split(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        return x.view(B, L, self.H, self.Dk).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query, key, value = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        scores = query @ key.transpose(-2, -1) * self.scale
        scores = scores.masked_fill(~self.causal[:L, :L], -math.inf)
        weights = self.dropout(scores.softmax(dim=-1))
        context = weights @ value
        return self.out_proj(context.transpose(1, 2).reshape(B, L, D))


class Masked(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.H, self.Dk = n_head, d_model // n_head
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, L, _ = x.shape
        query, key, value = self.qkv(x).view(B, L, 3, self.H, self.Dk).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / math.sqrt(self.Dk)
        scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


class Grouped(nn.Module):
    def __init__(self, d_model: int, n_head: int, n_kv: int):
        super().__init__()
        self.H, self.Hkv, self.Dk = n_head, n_kv, d_model // n_head
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, self.Hkv * self.Dk)
        self.v_proj = nn.Linear(d_model, self.Hkv * self.Dk)

    def forward(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        G = self.H // self.Hkv
        query = self.q_proj(x).view(B, L, self.H, self.Dk).transpose(1, 2)
        key = self.k_proj(x).view(B, L, self.Hkv, self.Dk).transpose(1, 2)
        value = self.v_proj(x).view(B, L, self.Hkv, self.Dk).transpose(1, 2)
        key = key.repeat_interleave(G, dim=1)
        value = value.repeat_interleave(G, dim=1)
        weights = (query @ key.mT / self.Dk**0.5).softmax(dim=-1)
        return (weights @ value).transpose(1, 2).flatten(2)


def rotate(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    freqs = base ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * freqs
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + rotated * sin


class Rotary(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.H, self.Dk, self.base = n_head, d_model // n_head, 10000.0
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        query, key, value = self.qkv(x).view(B, L, 3, self.H, self.Dk).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, self.base), rotate(key, self.base)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return context.transpose(1, 2).flatten(2)


class Tokens(nn.Module):
    def __init__(self, vocabulary: int, d_model: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d_model)
        self.k_proj = nn.Linear(d_model, d_model)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids)
        scores = x @ self.k_proj(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~mask[:, None], -math.inf).softmax(dim=-1) @ x
