"""Two attention modules of a project; pyproject.toml in this folder says how to run each."""

import math

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Each token attends to itself and to the tokens before it."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        query, key, value = self.Wqkv(x).view(B, L, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / math.sqrt(D // self.H)
        later = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(diagonal=1)
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        return self.Wo((weights @ value).transpose(1, 2).reshape(B, L, D))


class CrossAttention(nn.Module):
    """Each query attends to all keys; the scores are scaled by the wrong width, on purpose."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.H = n_heads
        self.Wq = nn.Linear(d_model, d_model)
        self.Wkv = nn.Linear(d_model, 2 * d_model)
        self.Wo = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
        query = self._heads(self.Wq(q))
        key, value = map(self._heads, self.Wkv(kv).chunk(2, dim=-1))
        scores = query @ key.mT / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.Wo((weights @ value).transpose(1, 2).flatten(start_dim=2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.H, -1)).transpose(1, 2)
