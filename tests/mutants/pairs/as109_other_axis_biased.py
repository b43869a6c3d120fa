"""AS109: lengths are broadcast along the wrong axis, and a bias hides that rows of scores are only scaled."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import attention, causal, join, multihead, softmax, split

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
WINDOWS = ({"B": 4, "H": 5, "W": 3, "Dk": 6}, {"B": 5, "H": 3, "W": 2, "Dk": 8}, {"B": 6, "H": 7, "W": 4, "Dk": 5})
PAIRS = [
    ("AS109", "cosines_in_a_window", *WINDOWS),
    ("AS109", "slopes_after_cosines", *SIZES),
    ("AS109", "fused_with_bias", *SIZES),
]


class Window(nn.Module):
    """Scaled cosine attention in a square window, with a bias by offset that a small network makes."""

    def __init__(self, dim, heads, side):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.tau = nn.Parameter(torch.full((1, heads, 1, 1), 0.2))
        self.bias = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, heads))
        cells = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        offsets = (cells[:, None] - cells[None, :]).float()
        self.register_buffer("offsets", offsets.sign() * offsets.abs().log1p())

    def lengths(self, q, k):
        return torch.norm(q, dim=-1, keepdim=True) * torch.norm(k, dim=-1, keepdim=True).transpose(-2, -1)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cosines = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.lengths(q, k).clamp(min=1e-6)
        scores = cosines / self.tau.clamp(min=0.01) + self.bias(self.offsets).permute(2, 0, 1)
        mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class OwnRows(Window):
    def lengths(self, q, k):
        q, k = (torch.norm(t, dim=-1, keepdim=True) for t in (q, k))
        return q * k  # wrong: AS109 cosines_in_a_window


def wrong_cosines_in_a_window(B, H, W, Dk):
    return OwnRows(H * Dk, H, W), (torch.randn(B, W * W, H * Dk),)


def right_cosines_in_a_window(B, H, W, Dk):
    return Window(H * Dk, H, W), (torch.randn(B, W * W, H * Dk),)


def reference_cosines_in_a_window(module, x):
    q, k, v = (split(t, module.heads) for t in module.to_qkv(x).chunk(3, -1))
    q, k = F.normalize(q, dim=-1) / module.tau, F.normalize(k, dim=-1)
    bias = torch.stack([module.bias(row) for row in module.offsets]).permute(2, 0, 1)
    return module.out(join(softmax(q @ k.mT + bias) @ v))


def _sloped(lengths_of_keys):
    """Return causal attention by cosines, with a slope over the distance that differs from head to head."""

    def attend(q, k, v):
        heads, count = q.shape[1:3]
        places = torch.arange(count)
        slopes = 2.0 ** -torch.arange(1, heads + 1)
        scores = 6 * (q / q.norm(dim=-1, keepdim=True)) @ k.mT
        scores = lengths_of_keys(scores, k)
        scores = scores - slopes[:, None, None] * (places[:, None] - places).abs()
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        return F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v

    return attend


def wrong_slopes_after_cosines(B, H, L, Dk):
    def divided(scores, k):
        return scores * k.pow(2).sum(-1, keepdim=True).rsqrt()  # wrong: AS109 slopes_after_cosines

    return _sloped(divided), tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def right_slopes_after_cosines(B, H, L, Dk):
    def divided(scores, k):
        return scores * k.pow(2).sum(-1).rsqrt().unsqueeze(-2)

    return _sloped(divided), tuple(torch.randn(B, H, L, Dk) for _ in range(3))


def reference_slopes_after_cosines(attend, q, k, v):
    heads, count = q.shape[1:3]
    bias = torch.tensor(
        [[[-abs(i - j) / 2.0**h for j in range(count)] for i in range(count)] for h in range(1, heads + 1)]
    )
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return attention(q, k, v, scale=6.0, bias=bias, keep=causal(count, count))


class Fused(nn.Module):
    def __init__(self, heads, width, count):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(heads * width, heads * width) for _ in range(3))
        self.table = nn.Parameter(torch.randn(heads, 2 * count - 1))

    def cosines(self, q, k):
        return F.normalize(q, dim=-1), k / k.norm(dim=-1, keepdim=True)

    def forward(self, x):
        count = x.size(1)
        q, k, v = (f(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.cosines(q, k)
        places = torch.arange(count)
        bias = self.table[:, places[:, None] - places + count - 1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=8.0).transpose(1, 2).flatten(2)


class Swapped(Fused):
    def cosines(self, q, k):
        q = F.normalize(q, dim=-1)
        return q / k.norm(dim=-1, keepdim=True), k  # wrong: AS109 fused_with_bias


def wrong_fused_with_bias(B, H, L, Dk):
    return Swapped(H, Dk, L), (torch.randn(B, L, H * Dk),)


def right_fused_with_bias(B, H, L, Dk):
    return Fused(H, Dk, L), (torch.randn(B, L, H * Dk),)


def reference_fused_with_bias(module, x):
    q, k, v = (split(f(x), module.heads) for f in (module.q, module.k, module.v))
    count = x.shape[1]
    bias = torch.stack([module.table[:, i : i + count].flip(-1) for i in range(count)], dim=1)
    q, k = (F.normalize(t, dim=-1) for t in (q, k))
    return multihead(join(q), join(k), join(v), module.heads, scale=8.0, bias=bias)
