"""GQA block, every tensor annotated."""
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Spec:
    vocab: int
    D: int  # model width (residual stream)
    nq: int
    nkv: int
    hd: int


def positions(T: int) -> Int[Tensor, "T"]:
    return torch.arange(T)  # [0, T)


def causal(T: int, S: int) -> Bool[Tensor, "T S"]:
    i: Int[Tensor, "T 1"] = positions(T)[:, None] + (S - T)
    j: Int[Tensor, "1 S"] = positions(S)[None, :]
    return j <= i  # (i, j) pairs


class GQA(nn.Module):
    def __init__(self, s: Spec):
        super().__init__()
        self.s = s
        self.q = nn.Linear(s.D, s.nq * s.hd, bias=False)
        self.k = nn.Linear(s.D, s.nkv * s.hd, bias=False)
        self.v = nn.Linear(s.D, s.nkv * s.hd, bias=False)
        self.o = nn.Linear(s.nq * s.hd, s.D, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mem: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "T S"],
    ) -> Float[Tensor, "B T D"]:
        B, T, D = x.shape
        S = mem.shape[1]
        nq, nkv, hd = self.s.nq, self.s.nkv, self.s.hd
        g = nq // nkv  # queries per key (group)
        q: Float[Tensor, "B T nkv g hd"] = self.q(x).view(B, T, nkv, g, hd)
        k: Float[Tensor, "B S nkv hd"] = self.k(mem).view(B, S, nkv, hd)
        v: Float[Tensor, "B S nkv hd"] = self.v(mem).view(B, S, nkv, hd)
        s: Float[Tensor, "B nkv g T S"] = torch.einsum("btngd,bsnd->bngts", q, k)
        p = (s / hd**0.5).masked_fill(~mask, float("-inf")).softmax(-1)  # softmax(QK^T / sqrt(d_k))
        y: Float[Tensor, "B T nkv g hd"] = torch.einsum("bngts,bsnd->btngd", p, v)
        z: Float[Tensor, "B T nq*hd"] = y.flatten(2)
        return self.o(z)


class Block(nn.Module):
    def __init__(self, s: Spec):
        super().__init__()
        self.attn = GQA(s)
        self.norm = nn.LayerNorm(s.D)

    def forward(self, x, mem):
        mask = causal(x.shape[1], mem.shape[1])
        return x + self.attn(self.norm(x), mem, mask)  # x + f(x), (pre-norm)


def case(B, Lq, Lp, D, H, Hkv, Dk):
    S = Lq + Lp
    return Block(Spec(100, D, H * Hkv, Hkv, Dk)), (torch.randn(B, Lq, D), torch.randn(B, S, D))
