"""Perceiver-style latents read an array; functional style with jaxtyping and type aliases."""
from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int  # noqa: F401
from torch import Tensor
from torch.nn import functional as F


def layer_norm(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    return F.layer_norm(x, x.shape[-1:])  # no weight, no bias (see [2])


def attend(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b h j d"],
    v: Float[Tensor, "b h j d"],
    mask: Bool[Tensor, "b j"] | None = None,
) -> Float[Tensor, "b h i d"]:
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5  # b h i j
    if mask is None:
        return sim.softmax(-1) @ v
    sim = sim.masked_fill(~mask[:, None, None, :], -1e9)  # mask (b, j) broadcasts
    attn: Float[Tensor, "b h i j"] = sim.softmax(-1)
    return attn @ v


def read(
    latents: Float[Tensor, "n d"],
    array: Float[Tensor, "b m c"],
    w_q: Float[Tensor, "d h e"],
    w_k: Float[Tensor, "c h e"],
    w_v: Float[Tensor, "c h e"],
    mask: Bool[Tensor, "b m"],
) -> Float[Tensor, "b n h*e"]:
    b, m, c = array.shape
    n, d = latents.shape
    x = latents.expand(b, n, d)  # b n d
    q = torch.einsum("bnd,dhe->bhne", layer_norm(x), w_q)  # b h n e
    array = layer_norm(array)
    k = torch.einsum("bmc,che->bhme", array, w_k)  # b h m e
    v = torch.einsum("bmc,che->bhme", array, w_v)  # b h m e
    out = attend(q, k, v, mask)  # (q, k, v), all h heads
    # b h n e -> b n (h e)
    return out.transpose(1, 2).flatten(2)


def case(B, H, Lq, Lk, D, Dk, Dv):
    mask = torch.ones(B, Lk, dtype=torch.bool)
    mask[:, -1] = False  # [PAD] at the end
    args = (torch.randn(Lq, D), torch.randn(B, Lk, Dv), torch.randn(D, H, Dk), torch.randn(Dv, H, Dk), torch.randn(Dv, H, Dk), mask)
    return read, args
