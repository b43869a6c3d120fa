"""Multi-head latent attention, following DeepSeek-V2 (simplified)."""
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        # x: (*, dim) with any leading axes
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class MLA(nn.Module):
    def __init__(self, dim, n_heads, kv_rank, nope_dim, rope_dim, v_dim):
        super().__init__()
        self.n_heads = n_heads
        self.kv_rank = kv_rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.wq = nn.Linear(dim, n_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)

    def forward(self, x):
        bsz, seq, dim = x.shape
        n_heads, kv_rank = self.n_heads, self.kv_rank
        nope_dim, rope_dim, v_dim = self.nope_dim, self.rope_dim, self.v_dim

        q = self.wq(x).view(bsz, seq, n_heads, nope_dim + rope_dim)  # [bsz, seq, n_heads, nope_dim + rope_dim]
        q_nope, q_pe = q.split([nope_dim, rope_dim], dim=-1)
        # q_nope: [bsz, seq, n_heads, nope_dim], q_pe: [bsz, seq, n_heads, rope_dim]

        kv = self.wkv_a(x)  # [bsz, seq, kv_rank + rope_dim]
        kv, k_pe = kv.split([kv_rank, rope_dim], dim=-1)  # (latent, shared key)
        kv = self.kv_norm(kv)  # [bsz, seq, kv_rank] (cached)
        kv = self.wkv_b(kv).view(bsz, seq, n_heads, nope_dim + v_dim)
        k_nope, v = torch.split(kv, [nope_dim, v_dim], dim=-1)  # v: [bsz, seq, n_heads, v_dim]
        k_pe = k_pe.unsqueeze(2)  # [bsz, seq, 1, rope_dim]
        # rotary on q_pe, k_pe left out (see rope.py)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, n_heads, -1)], dim=-1)  # [bsz, seq, n_heads, nope_dim + rope_dim]

        s = torch.einsum("bshd,bthd->bsht", q, k) * (nope_dim + rope_dim) ** -0.5  # [bsz, seq, n_heads, seq]
        s = s.softmax(dim=-1)  # f(s, t)
        o = torch.einsum("bsht,bthd->bshd", s, v)  # [bsz, seq, n_heads, v_dim]
        return self.wo(o.flatten(2))  # [bsz, seq, dim]


def case(B, H, L, D, Dk, Dv, Lp, W):
    return MLA(D, H, W, Dk, Lp, Dv), (torch.randn(B, L, D),)
