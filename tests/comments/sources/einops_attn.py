# lucidrains-like: small, everything by einops
import torch
from torch import nn, einsum
from einops import rearrange, repeat


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)  # f(x, y)


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x, context=None, mask=None):
        b, n, d = x.shape
        h = self.heads
        context = default(context, x)
        j = context.shape[1]

        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)  # (k, v)
        hd = k.shape[-1]

        # b n (h e) -> b h n e
        q = rearrange(q, 'b n (h d) -> b h n d', h=h)
        k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=h), (k, v))
        # k, v: b h j e

        sim = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale  # b h n j

        if exists(mask):
            # b j -> b 1 1 j
            mask = rearrange(mask, 'b j -> b 1 1 j')
            sim.masked_fill_(~mask, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = einsum('b h i j, b h j d -> b h i d', attn, v)  # -> [b, h, n, e]
        out = rearrange(out, 'b h n d -> b n (h d)')  # b h n e -> b n hd
        return self.to_out(out)  # [b, n, d]


def case(B, H, Lq, Lk, D, Dk):
    m = PreNorm(D, Attention(D, heads=H, dim_head=Dk))
    mask = torch.ones(B, Lk, dtype=torch.bool)
    mask[:, -2:] = False  # last 2 (padding)
    return m, (torch.randn(B, Lq, D),), {'context': torch.randn(B, Lk, D), 'mask': mask}
