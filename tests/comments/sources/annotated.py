# The Annotated Transformer, in the style of harvardnlp.
import copy
import math

import torch
import torch.nn as nn


def clones(module, N):
    "Produce N identical layers."
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def attention(query, key, value, mask=None, dropout=None):
    """
    Compute 'Scaled Dot Product Attention' (eq. 1 of the paper).

    query: (n_batch, h, n_Q, d_k)
    key: (n_batch, h, n_K, d_k)
    value: (n_batch, h, n_K, d_k)
    """
    d_k = query.size(-1)
    # softmax(QK^T / sqrt(d_k))
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)  # [n_batch, h, n_Q, n_K]
    if mask is not None:
        # mask: [n_batch, 1, 1, n_K]
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)  # sums to 1 over the last axis (the keys)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn  # ([n_batch, h, n_Q, d_k], [n_batch, h, n_Q, n_K])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        "Take in model size and number of heads."
        super().__init__()
        assert d_model % h == 0
        # We assume d_v always equals d_k (as in the paper)
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        "Implements Figure 2 (right)"
        if mask is not None:
            # Same mask applied to all h heads (broadcast).
            mask = mask.unsqueeze(1)  # [nbatches, 1, 1, n_K]
        nbatches = query.size(0)

        # 1) Do all the linear projections in batch from d_model => h x d_k
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        # query: [nbatches, h, n_Q, d_k]
        # key, value: [nbatches, h, n_K, d_k]

        # 2) Apply attention on all the projected vectors in batch.
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)  # x: [nbatches, h, n_Q, d_k]

        # 3) "Concat" using a view and apply a final linear (W^O).
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        # [nbatches, n_Q, h * d_k]
        return self.linears[-1](x)


def case(B, H, Lq, Lk, Dk):
    m = MultiHeadedAttention(H, H * Dk)
    mask = torch.ones(B, 1, Lk, dtype=torch.long)
    mask[0, :, 2:] = 0
    kv = torch.randn(B, Lk, H * Dk)
    return m, (torch.randn(B, Lq, H * Dk), kv, kv, mask)
