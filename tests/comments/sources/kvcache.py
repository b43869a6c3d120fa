"""Incremental decoding with a key/value cache."""
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn


class Cache(NamedTuple):
    k: Tensor
    v: Tensor


class CachedAttention(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.proj_q = nn.Linear(d_model, d_model)
        self.proj_kv = nn.Linear(d_model, 2 * d_model)
        self.proj_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, cache: Optional[Cache] = None) -> Tuple[Tensor, Cache]:
        """One decoding step (or several tokens at once).

        Parameters
        ----------
        x : Tensor, shape [B, T, D]
            The new tokens only (T of them).
        cache : Cache or None
            Keys and values of the past, (k, v).

        Returns
        -------
        out : Tensor, shape [B, T, D]
        cache : Cache
            With the new tokens appended.
        """
        B, T, D = x.shape
        nh = self.n_head
        hs = D // nh
        q = self.proj_q(x).view(B, T, nh, hs).transpose(1, 2)  # [B, nh, T, hs]
        k, v = self.proj_kv(x).chunk(2, dim=-1)  # [B, T, D] each
        k = k.view(B, T, nh, hs).transpose(1, 2)
        v = v.view(B, T, nh, hs).transpose(1, 2)
        P = 0
        if cache is not None:
            P = cache.k.shape[2]
            # cache.k, cache.v: [B, nh, P, hs]
            k = torch.cat([cache.k, k], dim=2)  # [B, nh, P+T, hs]
            v = torch.cat([cache.v, v], dim=2)  # [B, nh, P+T, hs]
        S = k.shape[2]

        # row i (of T) may look at columns [0, P + i]
        mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=P)  # [T, S]
        att = q @ k.transpose(-1, -2) / hs ** 0.5  # [B, nh, T, S]
        att.masked_fill_(~mask, float("-inf"))  # in place (saves memory)
        y = att.softmax(-1) @ v  # [B, nh, T, S] @ [B, nh, S, hs] -> [B, nh, T, hs]
        y = y.transpose(1, 2).flatten(2)  # noqa: E501 (long line in the original)
        return self.proj_o(y), Cache(k, v)


def case(B, H, L, Lp, Dk):
    cache = Cache(torch.randn(B, H, Lp, Dk), torch.randn(B, H, Lp, Dk))
    return CachedAttention(H * Dk, H), (torch.randn(B, L, H * Dk), cache)
