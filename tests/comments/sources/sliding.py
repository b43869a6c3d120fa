"""Sliding window attention (Longformer-like): each block sees itself and the block before."""
import torch
from jaxtyping import Bool, Float, Int  # noqa: F401
from torch import nn


def blocks(x: Float[torch.Tensor, "b h n d"], w: int) -> Float[torch.Tensor, "b h n/w w d"]:
    b, h, n, d = x.shape
    return x.view(b, h, n // w, w, d)  # view only (no copy)


def look_back(
    x: Float[torch.Tensor, "b h c w d"],
) -> Float[torch.Tensor, "b h c 2*w d"]:
    b, h, c, w, d = x.shape
    prev = torch.cat([x.new_zeros(b, h, 1, w, d), x[:, :, :-1]], dim=2)  # b h c w d
    return torch.cat([prev, x], dim=3)  # [previous, own]


class SlidingAttention(nn.Module):
    def __init__(self, dim: int, heads: int, w: int):
        super().__init__()
        self.heads, self.w = heads, w
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def mask(self, c: int) -> Bool[torch.Tensor, "c w 2*w"]:
        w = self.w
        i = torch.arange(w)[:, None] + w
        j = torch.arange(2 * w)[None, :]
        # the keys in (i - w, i]
        m = (j <= i) & (j > i - w)  # w 2*w
        m = m.repeat(c, 1, 1)
        m[0, :, :w] = False  # nothing before block 0 (zeros)
        return m

    def forward(self, x: Float[torch.Tensor, "b n dim"]) -> Float[torch.Tensor, "b n dim"]:
        b, n, dim = x.shape
        h, w = self.heads, self.w
        e = dim // h
        c = n // w
        q, k, v = self.qkv(x).view(b, n, 3, h, e).permute(2, 0, 3, 1, 4)
        # q, k, v: b h n e
        q = blocks(q, w)  # b h c w e
        k: Float[torch.Tensor, "b h c 2*w e"] = look_back(blocks(k, w))
        v = look_back(blocks(v, w))
        s: Float[torch.Tensor, "b h c w 2*w"] = q @ k.mT * e ** -0.5
        # TODO (someone): in place
        a = s.masked_fill(~self.mask(c), -1e9).softmax(-1)
        o = a @ v  # b h c w e
        o = o.flatten(2, 3)  # b h n e
        o = o.transpose(1, 2).flatten(2)  # b n dim
        return self.proj(o)


def case(B, H, L, Dk, W):
    return SlidingAttention(H * Dk, H, W), (torch.randn(B, L * W, H * Dk),)
