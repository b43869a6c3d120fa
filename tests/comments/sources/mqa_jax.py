"""Multi-query attention ("one write-head is all you need"), with jaxtyping."""
from typing import Optional

import torch
from jaxtyping import Bool, Float, Int  # noqa: F401
from torch import Tensor, nn

# Notation: batch, seq (length), d_model (width)
# n_heads query heads, but one key head of width d_head


class MultiQueryAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_head
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.kv_proj = nn.Linear(d_model, 2 * d_head, bias=False)  # one head (shared)
        self.o_proj = nn.Linear(n_heads * d_head, d_model, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        mask: Optional[Bool[Tensor, "batch seq"]] = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        batch, seq, d_model = x.shape
        n_heads, d_head = self.n_heads, self.d_head
        q: Float[Tensor, "batch seq n_heads d_head"] = self.q_proj(x).view(batch, seq, n_heads, d_head)
        kv = self.kv_proj(x)  # (k, v)
        k: Float[Tensor, "batch seq d_head"] = kv[..., :d_head]
        v: Float[Tensor, "batch seq d_head"] = kv[..., d_head:]

        # no head axis on the keys: softmax(QK^T / sqrt(d_k)) all the same
        scores = torch.einsum("bqhd,bkd->bhqk", q, k) * d_head ** -0.5  # [batch, n_heads, seq, seq]
        if mask is not None:
            keep: Bool[Tensor, "batch 1 1 seq"] = mask[:, None, None, :]
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1)  # in [0, 1]
        out: Float[Tensor, "batch seq n_heads d_head"] = torch.einsum("bhqk,bkd->bqhd", probs, v)
        return self.o_proj(out.flatten(2))  # (see Shazeer, 2019)
